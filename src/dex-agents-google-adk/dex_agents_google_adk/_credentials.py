"""Credentials that tools ask for: what of a request is stored, and how an answer becomes one.

``docs/design/credentials.md`` says what lives where. Nothing in here that is returned for storage
holds a secret: requests are built from named fields only, and results are searched for what was
resolved.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_schemes import AuthSchemeType
from google.adk.auth.auth_tool import AuthConfig

from dex_agents._contract import DeferredToolExecution, InterruptKind, InterruptRequest, Json
from dex_agents._errors import ToolExecutionError, ToolNotStartedError
from dex_agents_google_adk._adk_compat import credential_state
from dex_agents_google_adk._secrets import Secrets
from dex_agents_google_adk._tool_errors import ends_the_attempt

MINIMUM_SECRET_BYTES = 32
_SHOWN_OAUTH2 = (
    "client_id",
    "auth_uri",
    "nonce",
    "state",
    "redirect_uri",
    "audience",
    "prompt",
    "code_challenge_method",
    "token_endpoint_auth_method",
)
_TYPE_OF_SCHEME: Mapping[Any, AuthCredentialTypes] = {
    AuthSchemeType.apiKey: AuthCredentialTypes.API_KEY,
    AuthSchemeType.http: AuthCredentialTypes.HTTP,
    AuthSchemeType.oauth2: AuthCredentialTypes.OAUTH2,
    AuthSchemeType.openIdConnect: AuthCredentialTypes.OPEN_ID_CONNECT,
}


@dataclass(frozen=True)
class CredentialRequest:
    """Which credential a tool asks for.

    Attributes:
        session_id, tool_name, agent_name: Who asks.
        user_id: ADK user id of the session.
        auth_config: ADK's request without any secret: scheme, ``credential_key``, and of an
            authorization its client id, URL, state and redirect URI in
            ``exchanged_auth_credential.oauth2``.
    """

    session_id: str
    user_id: str
    tool_name: str
    agent_name: str
    auth_config: AuthConfig


CredentialResolver: TypeAlias = Callable[[str, CredentialRequest], Awaitable[AuthCredential | None]]
"""Gives the credential that the application keeps under a reference, ``None`` if there is none.

It runs in the Worker, in the Step of the tool, once for each attempt. Of an authorization it gives
``AuthCredential`` with ``oauth2.auth_response_uri``, the URL that the callback was called with, or
with the tokens if the application has exchanged them itself; ADK exchanges the code otherwise.
"""


@dataclass
class GivenCredentials:
    """What a Step may use of the answers.

    Attributes:
        state: Session state by which ADK hands a credential to a tool; never stored.
        secrets: Texts that must not get out.
        problems: Why an answer is of no use, by credential key.
    """

    state: dict[str, AuthCredential] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CredentialBroker:
    """The one place where requests are made storable and answers are resolved.

    Attributes:
        resolver: The application's; without one, tools cannot ask.
        authorization_secret: From what PKCE verifiers are derived, so that none is stored.
        user_id: ADK user id of every session.
    """

    resolver: CredentialResolver | None = None
    authorization_secret: bytes | None = None
    user_id: str = ""

    def ask(
        self, call: DeferredToolExecution, requested: AuthConfig, given: GivenCredentials
    ) -> InterruptRequest:
        """What the session waits for when a tool has asked for a credential.

        Raises:
            ToolExecutionError: The session cannot get one.
        """
        if self.resolver is None:
            raise ToolExecutionError(
                f"Tool {call.tool_name!r} asked for a credential, but the session has no "
                "credential_resolver that could give it one. Set credential_resolver where the "
                "Flow is built, or give the tool its credential through a credential_service."
            )
        request = self._storable(call, requested)
        key = str(requested.credential_key)
        kind = f" of type {request['auth_type']}" if request["auth_type"] else ""
        hint = f"Tool {call.tool_name!r} needs a credential{kind}."
        if key in given.problems:
            hint = f"{hint} What was given could not be used: {given.problems[key]}."
        elif f"temp:{key}" in given.state:
            hint = f"{hint} What was given was not accepted."
        properties: dict[str, Json] = {"reference": {"type": "string"}}
        required = ["reference"]
        if state := (request.get("oauth2") or {}).get("state"):
            properties["state"] = {"const": state}
            required.append("state")
        return InterruptRequest(
            InterruptKind.CREDENTIAL,
            hint=hint,
            payload=request,
            response_schema={"type": "object", "properties": properties, "required": required},
            framework_data=request,
        )

    async def resolve(self, call: DeferredToolExecution) -> GivenCredentials:
        """Turn the references that a call was answered with into credentials.

        Raises:
            ToolNotStartedError: The resolver failed.
        """
        given = GivenCredentials()
        answers = call.answer.get("credentials") if isinstance(call.answer, dict) else None
        # Of several answers to one request the newest counts.
        newest = {answer["request"]["credential_key"]: answer for answer in answers or ()}
        for key, answer in newest.items():
            found = await self._resolve(call, answer, given.secrets)
            if isinstance(found, str):
                given.problems[key] = found
            else:
                given.state[f"temp:{key}"] = found
        return given

    async def _resolve(
        self, call: DeferredToolExecution, answer: Mapping[str, Json], secrets: Secrets
    ) -> AuthCredential | str:
        request, reference = answer["request"], str(answer["reference"])
        config = _auth_config(request)
        credential = await self._ask_resolver(call, reference, config)
        if credential is None:
            return f"nothing is kept under the reference {reference!r}"
        secrets.add(credential)
        if request["auth_type"] not in (None, credential.auth_type.value):
            return f"it is a credential of type {credential.auth_type.value}"
        if credential.oauth2 is not None and request.get("oauth2"):
            if problem := _authorization_problem(credential.oauth2, request["oauth2"]):
                return problem
            self._complete(credential.oauth2, call, request["oauth2"])
        stored = await credential_state(config, credential, call.call_id)
        if stored is None:
            return "ADK did not take it"
        secrets.add(stored)
        return stored

    async def _ask_resolver(
        self, call: DeferredToolExecution, reference: str, config: AuthConfig
    ) -> AuthCredential | None:
        if self.resolver is None:
            raise ToolNotStartedError("this Worker's Flow has no credential_resolver any more")
        request = CredentialRequest(
            call.session_id, self.user_id, call.tool_name, call.agent_name, config
        )
        try:
            found = self.resolver(reference, request)
            credential = await found if inspect.isawaitable(found) else found
        except BaseException as error:
            if ends_the_attempt(error):
                raise
            # Whatever it is, the tool was not entered. Its text may hold the secret.
            raise ToolNotStartedError(
                f"the credential resolver failed with {type(error).__name__}"
            ) from None
        if credential is not None and not isinstance(credential, AuthCredential):
            raise ToolNotStartedError(
                "the credential resolver must return an AuthCredential or None, got "
                f"{type(credential).__name__}"
            )
        # It may be the application's own object.
        return None if credential is None else credential.model_copy(deep=True)

    def _complete(
        self, oauth2: OAuth2Auth, call: DeferredToolExecution, asked: Mapping[str, Json]
    ) -> None:
        oauth2.state = asked.get("state")
        if asked.get("is_verifier_derived") and not oauth2.access_token:
            oauth2.code_verifier = self._verifier(call, str(asked.get("state")))

    def _storable(self, call: DeferredToolExecution, requested: AuthConfig) -> dict[str, Json]:
        scheme, raw = requested.auth_scheme, requested.raw_auth_credential
        exchanged = requested.exchanged_auth_credential
        shown = exchanged or raw
        kind = shown.auth_type if shown else _TYPE_OF_SCHEME.get(scheme.type_)
        request: dict[str, Json] = {
            "v": 1,
            "credential_key": requested.credential_key,
            "auth_type": kind.value if kind else None,  # of a scheme of the application's own
            "auth_scheme": scheme.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        if shown is not None and (oauth2 := shown.oauth2) is not None:
            request["oauth2"] = {
                name: value
                for name in _SHOWN_OAUTH2
                if (value := getattr(oauth2, name)) is not None
            }
            if exchanged is not None and oauth2.code_verifier and oauth2.auth_uri:
                self._derive(call, request["oauth2"])
        return request

    def _derive(self, call: DeferredToolExecution, shown: dict[str, Json]) -> None:
        """Put a challenge into the URL whose verifier any Worker can compute."""
        parts = urlsplit(shown["auth_uri"])
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "code_challenge" not in query:
            return
        verifier = self._verifier(call, str(shown.get("state")))
        query["code_challenge"] = _unpadded(hashlib.sha256(verifier.encode()).digest())
        shown["auth_uri"] = urlunsplit(parts._replace(query=urlencode(query)))
        shown["is_verifier_derived"] = True

    def _verifier(self, call: DeferredToolExecution, state: str) -> str:
        if self.authorization_secret is None:
            raise ToolExecutionError(
                f"Tool {call.tool_name!r} asked for an authorization with PKCE, whose verifier a "
                "session does not store. Set authorization_secret where the Flow is built, to the "
                "same bytes in every Worker."
            )
        message = f"pkce\0{call.idempotency_key}\0{state}".encode()
        return _unpadded(hmac.digest(self.authorization_secret, message, "sha256"))


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _auth_config(request: Mapping[str, Json]) -> AuthConfig:
    shown: dict[str, Any] = {
        "auth_scheme": request["auth_scheme"],
        "credential_key": request["credential_key"],
    }
    if oauth2 := request.get("oauth2"):
        fields = {name: oauth2[name] for name in _SHOWN_OAUTH2 if name in oauth2}
        shown["exchanged_auth_credential"] = AuthCredential(
            auth_type=AuthCredentialTypes(request["auth_type"]), oauth2=OAuth2Auth(**fields)
        )
    return AuthConfig(**shown)


def _authorization_problem(given: OAuth2Auth, asked: Mapping[str, Json]) -> str:
    """Why a callback does not belong to the request, or empty."""
    if given.access_token or not given.auth_response_uri:
        return ""
    query = parse_qs(urlsplit(given.auth_response_uri).query)
    if error := query.get("error"):
        return f"the authorization was refused ({error[0][:100]})"
    if asked.get("state") and query.get("state") != [asked["state"]]:
        return "its callback is that of another authorization"
    return ""


def checked_resolver(resolver: CredentialResolver | None) -> CredentialResolver | None:
    """The application's resolver.

    Raises:
        TypeError: It cannot be called.
    """
    if resolver is not None and not callable(resolver):
        raise TypeError(
            "credential_resolver must be an async function of a reference and a "
            f"CredentialRequest, got {type(resolver).__name__}"
        )
    return resolver


def checked_authorization_secret(secret: bytes | None) -> bytes | None:
    """The secret behind PKCE verifiers.

    Raises:
        TypeError, ValueError: It is of no use.
    """
    if secret is None:
        return None
    if not isinstance(secret, bytes):
        raise TypeError(f"authorization_secret must be bytes, got {type(secret).__name__}")
    if len(secret) < MINIMUM_SECRET_BYTES:
        raise ValueError(
            f"authorization_secret has {len(secret)} bytes, at least {MINIMUM_SECRET_BYTES} random "
            "ones are needed; secrets.token_bytes(32) makes them"
        )
    return secret
