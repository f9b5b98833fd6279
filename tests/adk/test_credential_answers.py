"""What becomes of a request and of its answers in one tool Step."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from fastapi.openapi.models import HTTPBearer
from google.adk.agents.llm_agent import LlmAgent
from google.adk.auth.auth_credential import (
    AuthCredential,
    AuthCredentialTypes,
    HttpAuth,
    HttpCredentials,
    OAuth2Auth,
)
from google.adk.auth.auth_tool import AuthConfig
from google.adk.auth.credential_service.session_state_credential_service import (
    SessionStateCredentialService,
)
from google.adk.tools.tool_context import ToolContext

from dex_agents import DeferredToolExecution, InterruptKind, InterruptRequest, ToolEffect
from dex_agents._errors import ToolExecutionError, ToolNotStartedError
from dex_agents_google_adk import AdkAgentRunner, CredentialRequest
from dex_agents_google_adk._secrets import HIDDEN, Secrets
from support.adk_oracle import ScriptedLlm, World
from support.credential_agent import AUTHORIZATION_SECRET, api_key_config, authorization_config

SECRET = "a-very-secret-key"
KEY = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=SECRET)
URL = "https://provider.example"
TOOL_NAME = "ask"


def runner_of(tool: Callable[..., Any], given: Any = None, **arguments: Any) -> AdkAgentRunner:
    async def resolve(reference: str, request: CredentialRequest) -> Any:
        assert (reference, request.tool_name) == ("my-secret", TOOL_NAME)
        if isinstance(given, Exception):
            raise given
        return given

    agent = LlmAgent(name="root", model=ScriptedLlm(world=World([])), tools=[tool])
    settings: dict[str, Any] = {
        "credential_resolver": resolve,
        "authorization_secret": AUTHORIZATION_SECRET,
    }
    return AdkAgentRunner(agent, **settings | arguments)


def execution(answer: Any = None) -> DeferredToolExecution:
    return DeferredToolExecution(
        session_id="s",
        turn_id="t1",
        call_id="c",
        tool_name=TOOL_NAME,
        arguments={},
        effect=ToolEffect.UNCLASSIFIED,
        agent_name="root",
        step_execution_id="CallTool-1",
        attempt=1,
        idempotency_key="s/t1/c",
        answer=answer,
    )


def asking(config: AuthConfig, seen: list[Any], **more: Any) -> Callable[..., Any]:
    """A tool that asks ADK itself, and gives away what it gets in every way there is."""

    def ask(tool_context: ToolContext) -> Any:
        """Ask."""
        credential = tool_context.get_auth_response(config)
        if credential is None:
            tool_context.request_credential(config)
            return {"status": "pending"}
        seen.append(credential)
        if error := more.get("raises"):
            raise error(f"401 for https://api.example?key={SECRET}")
        tool_context.state["mine"] = credential.model_dump(exclude_none=True)
        tool_context.state["other"] = "kept"
        return {"used": f"key {credential.api_key}", "n": 1, SECRET: [SECRET]}

    return ask


async def asked(runner: AdkAgentRunner) -> InterruptRequest:
    interrupt = (await runner.execute_deferred_tool_call(execution())).interrupt
    assert interrupt is not None
    assert interrupt.kind is InterruptKind.CREDENTIAL
    return interrupt


def answered(interrupt: InterruptRequest) -> DeferredToolExecution:
    state = (interrupt.payload.get("oauth2") or {}).get("state")
    given = {"reference": "my-secret", "state": state, "request": interrupt.framework_data}
    return execution({"credentials": [json.loads(json.dumps(given))]})


async def test_what_a_tool_gives_away_does_not_leave_the_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Any] = []
    runner = runner_of(asking(api_key_config(), seen), KEY)
    result = await runner.execute_deferred_tool_call(answered(await asked(runner)))
    assert result.interrupt is None
    assert [credential.api_key for credential in seen] == [SECRET]
    assert result.output == {"used": "key ***", "n": 1, "***": ["***"]}
    assert result.framework_data["actions"]["state_delta"] == {"other": "kept"}
    assert "session state ['mine']" in caplog.text
    assert SECRET not in repr(result) + caplog.text


@pytest.mark.parametrize("kind", [ToolExecutionError, ToolNotStartedError, RuntimeError, KeyError])
async def test_what_a_tool_raises_has_no_secret(kind: type[Exception]) -> None:
    runner = runner_of(asking(api_key_config(), [], raises=kind), KEY)
    interrupt = await asked(runner)
    with pytest.raises(Exception, match=r"key=\*\*\*") as caught:
        await runner.execute_deferred_tool_call(answered(interrupt))
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    is_ours = issubclass(kind, (ToolExecutionError, ToolNotStartedError))
    assert isinstance(caught.value, kind) == is_ours
    assert is_ours or kind.__name__ in str(caught.value)


def callback(query: str) -> AuthCredential:
    return AuthCredential(
        auth_type=AuthCredentialTypes.OAUTH2,
        oauth2=OAuth2Auth(auth_response_uri=f"https://app.example/callback?{query}"),
    )


BEARER = AuthCredential(
    auth_type=AuthCredentialTypes.HTTP,
    http=HttpAuth(scheme="bearer", credentials=HttpCredentials(token=SECRET)),
)


@pytest.mark.parametrize(
    ("config", "given", "why"),
    [
        (api_key_config(), None, "nothing is kept under the reference 'my-secret'"),
        (api_key_config(), BEARER, "it is a credential of type http"),
        (authorization_config(URL), KEY, "it is a credential of type apiKey"),
        (authorization_config(URL), callback("code=abcdef&state=x"), "that of another auth"),
        (authorization_config(URL), callback("code=abcdef"), "that of another auth"),
        (authorization_config(URL), callback("error=access_denied"), "refused (access_denied)"),
    ],
)
async def test_what_fits_no_request_is_asked_for_again(
    config: AuthConfig, given: Any, why: str
) -> None:
    seen: list[Any] = []
    runner = runner_of(asking(config, seen), given)
    first = await asked(runner)
    second = (await runner.execute_deferred_tool_call(answered(first))).interrupt
    assert second is not None
    assert second.kind is InterruptKind.CREDENTIAL
    assert why not in first.hint
    assert why in second.hint
    assert SECRET not in repr(second)
    assert not seen


@pytest.mark.parametrize("given", [RuntimeError(f"vault says {SECRET}"), "no credential"])
async def test_a_broken_resolver_means_not_run(given: Any) -> None:
    seen: list[Any] = []
    runner = runner_of(asking(api_key_config(), seen), given)
    interrupt = await asked(runner)
    with pytest.raises(ToolNotStartedError, match="the credential resolver") as caught:
        await runner.execute_deferred_tool_call(answered(interrupt))
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert not seen


async def test_only_named_fields_of_a_request_are_stored() -> None:
    config = authorization_config(URL)
    assert config.raw_auth_credential is not None
    oauth2 = config.raw_auth_credential.oauth2
    assert oauth2 is not None
    oauth2.client_secret = SECRET
    oauth2.code_challenge_method = "S256"
    oauth2.refresh_token = SECRET
    config.raw_auth_credential.api_key = SECRET
    interrupt = await asked(runner_of(asking(config, [])))
    assert SECRET not in repr(interrupt)
    assert set(interrupt.payload["oauth2"]) == {
        "auth_uri",
        "client_id",
        "code_challenge_method",
        "is_verifier_derived",
        "redirect_uri",
        "state",
        "token_endpoint_auth_method",
    }
    assert interrupt.response_schema["required"] == ["reference", "state"]


async def test_a_request_needs_what_it_needs() -> None:
    tool = asking(authorization_config(URL), [])
    with pytest.raises(ToolExecutionError, match="Set credential_resolver where the Flow is built"):
        await asked(runner_of(tool, credential_resolver=None))
    with pytest.raises(ToolExecutionError, match="Set authorization_secret where the Flow is"):
        await asked(runner_of(tool, authorization_secret=None))
    bearer = asking(AuthConfig(auth_scheme=HTTPBearer()), [])
    interrupt = await asked(runner_of(bearer, authorization_secret=None))
    assert interrupt.payload["auth_type"] == "http"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"credential_resolver": "vault"}, TypeError, "must be an async function"),
        ({"authorization_secret": "text"}, TypeError, "must be bytes"),
        ({"authorization_secret": b"short"}, ValueError, "at least 32 random ones"),
        (
            {"credential_service": SessionStateCredentialService()},
            ValueError,
            "keeps credentials in session state",
        ),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        runner_of(asking(api_key_config(), []), **arguments)


async def test_a_tool_may_ask_for_an_approval_and_a_credential() -> None:
    config = api_key_config()

    def ask(tool_context: ToolContext) -> Any:
        """Ask for both, one after the other."""
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="sure?")
            return None
        if tool_context.get_auth_response(config) is None:
            tool_context.request_credential(config)
            return None
        return tool_context.tool_confirmation.confirmed

    runner = runner_of(ask, KEY)
    approval = (await runner.execute_deferred_tool_call(execution())).interrupt
    assert approval is not None
    assert approval.kind is InterruptKind.APPROVAL
    given = {"approved": True, "payload": None}
    credential = (await runner.execute_deferred_tool_call(execution(given))).interrupt
    assert credential is not None
    both = {**given, **answered(credential).answer}
    assert (await runner.execute_deferred_tool_call(execution(both))).output is True


_HARD = 'pä ss"w\\ord\n+/long'
_FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": lambda secret: json.dumps({"a": secret}),
    "JSON with its letters": lambda secret: json.dumps({"a": secret}, ensure_ascii=False),
    "JSON in JSON": lambda secret: json.dumps({"b": json.dumps({"a": secret})}),
    "a path": lambda secret: quote(secret, safe=""),
    "a form": lambda secret: urlencode({"a": secret, "b": "c"}),
    "a Basic header": lambda secret: base64.b64encode(f"me:{secret}".encode()).decode(),
    "base64 one further": lambda secret: base64.b64encode(f"you:{secret}:x".encode()).decode(),
    "base64 two further": lambda secret: base64.urlsafe_b64encode(f"a{secret}".encode()).decode(),
}


@pytest.mark.parametrize("form", _FORMS)
def test_a_secret_is_found_in_any_form(form: str) -> None:
    secrets = Secrets()
    secrets.add(AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=_HARD))
    shown = _FORMS[form](_HARD)
    assert HIDDEN in secrets.hide({"x": [shown]})["x"][0]
    assert secrets.without_credentials({"k": shown, f"k {shown}": 1, "other": "kept"}) == {
        "other": "kept"
    }
