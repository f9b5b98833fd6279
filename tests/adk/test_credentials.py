"""Credentials as waits: asked for in the pending list, answered by reference, stored nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.auth.credential_service.in_memory_credential_service import (
    InMemoryCredentialService,
)
from google.adk.runners import InMemoryRunner
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    DeferredToolExecution,
    InterruptError,
    InvalidInputError,
    PendingInterrupt,
    ToolEffect,
)
from dex_agents.testing import WorkerProcess, is_failpoint_reached, private_engine, session_client
from dex_agents_google_adk import AdkAgentRunner, CredentialRequest, adk_agent_session_flow
from support.credential_agent import (
    AUTHORIZATION_SECRET,
    BalanceModel,
    Vault,
    api_key_config,
    authorization_config,
    build_agent,
    build_flow,
    build_session_flow,
    client_credentials_config,
)
from support.oauth_provider import API_KEY, CLIENT_SECRET, OAuthProvider
from support.serving import serve
from support.stored import holders_of

TURN_S = 60.0
REPORT = "report: {'balance': 42}"


@pytest.fixture
def provider() -> Iterator[OAuthProvider]:
    with OAuthProvider() as provider:
        yield provider


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "vault")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a session's files lie, and no secret may."""
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


@contextlib.asynccontextmanager
async def session(flow: AgentSessionFlow, folder: Path) -> AsyncIterator[AgentSessionClient]:
    async with (
        private_engine(folder / "e.db") as engine,
        serve(engine.address, flow, folder) as sessions,
    ):
        await sessions.start_session("s", "balance?")
        yield sessions


async def pending(sessions: AgentSessionClient, after: str = "") -> PendingInterrupt:
    """The one interrupt that waits, after the one that was answered before."""
    while True:
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        assert snapshot.turns_done == 0, snapshot.last_turn
        if [item for item in snapshot.pending_interrupts if item.interrupt_id != after]:
            (asked,) = snapshot.pending_interrupts
            return asked


async def final_text(sessions: AgentSessionClient) -> str:
    snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert snapshot.last_turn is not None
    assert not snapshot.last_turn.error
    return snapshot.last_turn.final_text


def check_nowhere(folder: Path, log: str, *texts: str) -> None:
    """No secret was stored or logged. The reference was, so the search finds what there is."""
    assert "e.db" in holders_of("my-secret", folder)
    for text in texts:
        assert len(text) > 8
        assert not holders_of(text, folder)
        assert text not in log


async def plain_requests(agent: LlmAgent, answer: AuthCredential) -> list[Any]:
    """What the model is asked by plain ADK when the user gives the credential."""
    runner = InMemoryRunner(agent, app_name="root")
    plain = await runner.session_service.create_session(app_name="root", user_id="u")
    where: Any = {"user_id": "u", "session_id": plain.id}
    parts = [types.Part(text="balance?")]
    for _ in range(2):
        asked = []
        content = types.Content(role="user", parts=parts)
        async for event in runner.run_async(new_message=content, **where):
            asked += [c for c in event.get_function_calls() if c.name == "adk_request_credential"]
        if not asked:
            break
        (call,) = asked
        config = AuthConfig.model_validate((call.args or {})["authConfig"])
        config.exchanged_auth_credential = answer
        response = config.model_dump(mode="json", by_alias=True, exclude_none=True)
        given = types.FunctionResponse(id=call.id, name=call.name, response=response)
        parts = [types.Part(function_response=given)]
    return list(agent.model.requests)  # type: ignore[union-attr]


async def test_an_api_key(
    provider: OAuthProvider, vault: Vault, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain_agent = build_agent(api_key_config(), provider.url)
    key = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=API_KEY)
    plain = await plain_requests(plain_agent, key)
    assert provider.opened == 1

    caplog.clear()  # plain ADK logs the answer, with the key in it
    caplog.set_level(logging.DEBUG)
    agent = build_agent(api_key_config(), provider.url)
    async with session(build_session_flow(agent, vault), folder) as sessions:
        asked = await pending(sessions)
        assert (asked.kind, asked.tool_name) == ("credential", "balance")
        assert asked.payload["auth_scheme"] == {
            "type": "apiKey",
            "in": "header",
            "name": "X-Api-Key",
        }
        first = asked.interrupt_id
        with pytest.raises(InterruptError, match="asks for a credential; use provide_credential"):
            await sessions.answer_question("s", first, {"reference": "my-secret"})
        with pytest.raises(InterruptError, match="asks for a credential; use provide_credential"):
            await sessions.resolve_interrupt("s", first, approved=True)
        for bad in ("", "two words", "https://app.example/callback?code=1", "x" * 257):
            with pytest.raises(InvalidInputError, match="reference must be a name") as refused:
                await sessions.provide_credential("s", first, bad)
            assert not bad or bad not in str(refused.value)
        assert (await pending(sessions)) == asked

        await sessions.provide_credential("s", first, "unknown")
        asked = await pending(sessions, after=first)
        assert "nothing is kept under the reference 'unknown'" in asked.hint
        with pytest.raises(InterruptError, match="not pending"):
            await sessions.provide_credential("s", first, "my-secret")
        vault.keep("my-secret", API_KEY)
        await sessions.provide_credential("s", asked.interrupt_id, "my-secret")
        assert await final_text(sessions) == REPORT
        with pytest.raises(InterruptError, match="not pending"):
            await sessions.provide_credential("s", asked.interrupt_id, "my-secret")
    assert provider.opened == 2
    assert agent.model.requests == plain  # type: ignore[union-attr]
    check_nowhere(folder, caplog.text, API_KEY)


async def test_an_authorization_with_pkce_over_a_killed_worker(
    provider: OAuthProvider, vault: Vault, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (folder / "provider").write_text(provider.url)
    flow = build_flow(folder)
    async with private_engine(folder / "e.db") as engine:
        # Each Worker is another process, or a new one in this process.
        async with serve(engine.address, flow, folder) as sessions:
            await sessions.start_session("s", "balance?")
            asked = await pending(sessions)
        oauth2 = asked.payload["oauth2"]
        vault.keep("my-secret", callback := provider.consent(oauth2["auth_uri"]))
        # This one dies when the answer is stored and the tool is about to run.
        killed = await WorkerProcess.start(
            "support.credential_agent:build_flow",
            server_address=engine.address,
            data_dir=folder,
            failpoints=("tool.before_call",),
        )
        async with session_client(flow, server_address=engine.address) as sessions:
            with pytest.raises(InterruptError, match="'state' is a required property"):
                await sessions.provide_credential("s", asked.interrupt_id, "my-secret")
            with pytest.raises(InterruptError, match=r"state: '.*' was expected"):
                await sessions.provide_credential(
                    "s", asked.interrupt_id, "my-secret", state="other"
                )
            assert (await pending(sessions)) == asked
            await sessions.provide_credential(
                "s", asked.interrupt_id, "my-secret", state=oauth2["state"]
            )
            assert await killed.wait() == -signal.SIGKILL
        assert is_failpoint_reached("tool.before_call", folder)
        assert not provider.tokens
        async with serve(engine.address, flow, folder) as sessions:
            assert await final_text(sessions) == REPORT
    assert (len(provider.tokens), provider.refused, provider.opened) == (1, [], 1)
    exchange = next(request for request in provider.requests if request.path == "/token")
    check_nowhere(
        folder,
        caplog.text + killed.log.read_text(),
        callback,
        provider.codes[0],
        exchange.form["code_verifier"],
        provider.tokens[0],
        AUTHORIZATION_SECRET.decode(),
    )


@pytest.mark.parametrize("service", [None, InMemoryCredentialService()])
async def test_an_attempt_that_died_behind_the_exchange(
    provider: OAuthProvider, vault: Vault, service: InMemoryCredentialService | None
) -> None:
    """The code is used up: the next attempt finds the token in the service, or asks again."""

    def runner_of(secret: bytes) -> AdkAgentRunner:
        return AdkAgentRunner(
            build_agent(authorization_config(provider.url), provider.url),
            credential_resolver=vault.resolve,
            authorization_secret=secret,
            credential_service=service,
        )

    def execution(answer: Any = None) -> DeferredToolExecution:
        return DeferredToolExecution(
            session_id="s",
            turn_id="t1",
            call_id="c",
            tool_name="balance",
            arguments={"account": "a"},
            effect=ToolEffect.UNCLASSIFIED,
            agent_name="root",
            step_execution_id="CallTool-1",
            attempt=1,
            idempotency_key="s/t1/c",
            answer=answer,
        )

    runner = runner_of(AUTHORIZATION_SECRET)
    asked = (await runner.execute_deferred_tool_call(execution())).interrupt
    assert asked is not None
    oauth2 = asked.payload["oauth2"]
    vault.keep("my-secret", provider.consent(oauth2["auth_uri"]))
    given = {"reference": "my-secret", "state": oauth2["state"], "request": asked.framework_data}
    answered = execution({"credentials": [given]})
    if service is None:
        # A Worker with another secret has another verifier, which the provider refuses.
        other = (await runner_of(b"x" * 32).execute_deferred_tool_call(answered)).interrupt
        assert other is not None
        assert "What was given was not accepted" in other.hint
        assert provider.refused[0] == "the verifier does not fit"
        vault.keep("my-secret", provider.consent(oauth2["auth_uri"]))
    assert (await runner.execute_deferred_tool_call(answered)).output == {"balance": 42}
    again = await runner.execute_deferred_tool_call(answered)
    assert len(provider.tokens) == 1
    if service is not None:
        assert again.output == {"balance": 42}
        return
    assert again.interrupt is not None
    assert "What was given was not accepted" in again.interrupt.hint
    assert again.interrupt.payload["oauth2"]["state"] != oauth2["state"]


async def test_client_credentials_ask_nobody(
    provider: OAuthProvider, vault: Vault, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    agent = build_agent(client_credentials_config(provider.url), provider.url)
    async with session(build_session_flow(agent, vault), folder) as sessions:
        assert await final_text(sessions) == REPORT
        # A second turn, so that the search for what is stored finds this text.
        await sessions.send_user_message("s", "my-secret")
        await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
    assert len(provider.tokens) == provider.opened == 2
    check_nowhere(folder, caplog.text, CLIENT_SECRET, *provider.tokens)


async def test_an_approval_and_a_credential_for_one_call(vault: Vault, folder: Path) -> None:
    config = api_key_config()

    def balance(account: str, tool_context: ToolContext) -> Any:
        """The balance of an account."""
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="sure?")
        elif (credential := tool_context.get_auth_response(config)) is None:
            tool_context.request_credential(config)
        else:
            return credential.api_key == API_KEY and tool_context.tool_confirmation.payload
        return None

    vault.keep("my-secret", API_KEY)
    agent = LlmAgent(name="root", model=BalanceModel(), tools=[balance])
    async with session(build_session_flow(agent, vault), folder) as sessions:
        approval = await pending(sessions)
        assert (approval.kind, approval.hint) == ("approval", "sure?")
        with pytest.raises(InterruptError, match="asks for an approval"):
            await sessions.provide_credential("s", approval.interrupt_id, "my-secret")
        await sessions.resolve_interrupt("s", approval.interrupt_id, approved=True, payload="yes")
        asked = await pending(sessions, after=approval.interrupt_id)
        assert asked.kind == "credential"
        await sessions.provide_credential("s", asked.interrupt_id, "my-secret")
        assert await final_text(sessions) == "report: {'result': 'yes'}"
    assert not holders_of(API_KEY, folder)


async def test_a_toolset_that_needs_a_credential_first(vault: Vault, folder: Path) -> None:
    class Toolset(BaseToolset):
        async def get_tools(
            self, readonly_context: ReadonlyContext | None = None
        ) -> list[BaseTool]:
            raise AssertionError("listed without a credential")

        def get_auth_config(self) -> AuthConfig | None:
            return api_key_config()

        async def close(self) -> None:
            return None

    agent = LlmAgent(name="root", model=BalanceModel(), tools=[Toolset()])
    async with session(build_session_flow(agent, vault), folder) as sessions:
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert snapshot.last_turn is not None
    assert "needs a credential before its tools can be listed" in snapshot.last_turn.error
    assert "credential_service" in snapshot.last_turn.error


async def test_a_credential_may_be_withheld(
    provider: OAuthProvider, vault: Vault, folder: Path
) -> None:
    agent = build_agent(authorization_config(provider.url), provider.url)
    async with session(build_session_flow(agent, vault), folder) as sessions:
        asked = await pending(sessions)
        await sessions.resolve_interrupt("s", asked.interrupt_id, approved=False, message="No.")
        assert await final_text(sessions) == "report: {'error': 'No.'}"
    assert not provider.opened


@pytest.mark.parametrize(
    "error",
    [
        SystemExit("my-secret"),
        BaseExceptionGroup("my-secret", [SystemExit(3)]),
        asyncio.CancelledError("my-secret"),
        GeneratorExit("my-secret"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_the_resolver_raises_the_call_never_ran(
    provider: OAuthProvider, vault: Vault, folder: Path, error: BaseException
) -> None:
    async def resolve(reference: str, request: CredentialRequest) -> AuthCredential | None:
        raise error

    agent = build_agent(api_key_config(), provider.url)
    flow = adk_agent_session_flow(agent, flow_type="Balance", credential_resolver=resolve)
    async with session(flow, folder) as sessions:
        approval = await pending(sessions)
        await sessions.resolve_interrupt("s", approval.interrupt_id, approved=True)
        asked = await pending(sessions, after=approval.interrupt_id)
        await sessions.provide_credential("s", asked.interrupt_id, "kept")
        said = await final_text(sessions)
    why = f"the credential resolver failed with {type(error).__name__}"
    assert said == f"report: {{'error': 'The tool call failed: The tool did not run: {why}'}}"
    assert not provider.opened
