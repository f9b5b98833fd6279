"""An agent whose tool needs a credential of the loopback provider, served from any process.

The application keeps its secrets in a folder, one file for each reference.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
from fastapi.openapi.models import (
    APIKey,
    APIKeyIn,
    OAuth2,
    OAuthFlowAuthorizationCode,
    OAuthFlowClientCredentials,
    OAuthFlows,
)
from google.adk.agents.llm_agent import LlmAgent
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_tool import AuthConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.authenticated_function_tool import AuthenticatedFunctionTool
from google.genai import types
from pydantic import Field

from dex_agents import AgentSessionFlow, ToolEffect
from dex_agents_google_adk import CredentialRequest, adk_agent_session_flow
from support.adk_oracle import request_json
from support.oauth_provider import CLIENT_ID, CLIENT_SECRET, REDIRECT_URI

AUTHORIZATION_SECRET = b"an authorization secret of 32 bytes or more"


def api_key_config() -> AuthConfig:
    """The tool asks for an API key."""
    scheme = APIKey.model_validate({"in": APIKeyIn.header, "name": "X-Api-Key"})
    return AuthConfig(auth_scheme=scheme)


def authorization_config(url: str) -> AuthConfig:
    """The tool asks for an authorization of a public client, which takes PKCE."""
    flow = OAuthFlowAuthorizationCode(
        authorizationUrl=f"{url}/authorize", tokenUrl=f"{url}/token", scopes={"read": "Read"}
    )
    return AuthConfig(
        auth_scheme=OAuth2(flows=OAuthFlows(authorizationCode=flow)),
        raw_auth_credential=AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2,
            oauth2=OAuth2Auth(client_id=CLIENT_ID, redirect_uri=REDIRECT_URI),
        ),
    )


def client_credentials_config(url: str) -> AuthConfig:
    """The tool has all that it needs, and asks nobody."""
    flow = OAuthFlowClientCredentials(tokenUrl=f"{url}/token", scopes={"read": "Read"})
    return AuthConfig(
        auth_scheme=OAuth2(flows=OAuthFlows(clientCredentials=flow)),
        raw_auth_credential=AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2,
            oauth2=OAuth2Auth(client_id=CLIENT_ID, client_secret=CLIENT_SECRET),
        ),
    )


class BalanceModel(BaseLlm):
    """Asks for the balance, then reports what it read."""

    model: str = "balance"
    requests: list[Any] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer from the request alone."""
        self.requests.append(request_json(llm_request))
        parts = llm_request.contents[-1].parts or []
        answers = [p.function_response for p in parts if p.function_response is not None]
        part = types.Part(
            function_call=types.FunctionCall(name="balance", args={"account": "a"}, id="c")
        )
        if answers:
            part = types.Part(text=f"report: {answers[0].response}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def balance_tool(config: AuthConfig, url: str) -> AuthenticatedFunctionTool:
    """A tool that asks the provider at ``url``."""

    async def balance(account: str, credential: AuthCredential) -> Any:
        """The balance of an account."""
        headers = {"X-Api-Key": credential.api_key or ""}
        if credential.oauth2 is not None:
            headers = {"Authorization": f"Bearer {credential.oauth2.access_token}"}
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{url}/api", headers=headers)
        answer.raise_for_status()
        return answer.json()

    return AuthenticatedFunctionTool(func=balance, auth_config=config)


def build_agent(config: AuthConfig, url: str) -> LlmAgent:
    """The agent; its tool asks the provider at ``url``."""
    return LlmAgent(name="root", model=BalanceModel(), tools=[balance_tool(config, url)])


class Vault:
    """Where the application keeps secrets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, reference: str, secret: str) -> None:
        """Keep a secret."""
        (self.folder / reference).write_text(secret)

    async def resolve(self, reference: str, request: CredentialRequest) -> AuthCredential | None:
        """The application's credential resolver."""
        file = self.folder / reference
        if not file.exists():
            return None
        if request.auth_config.exchanged_auth_credential is None:
            return AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=file.read_text())
        return AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2,
            oauth2=OAuth2Auth(auth_response_uri=file.read_text()),
        )


def build_session_flow(agent: LlmAgent, vault: Vault, **arguments: Any) -> AgentSessionFlow:
    """The agent's Flow."""
    return adk_agent_session_flow(
        agent,
        flow_type="Balance",
        default_tool_effect=ToolEffect.READ,
        credential_resolver=vault.resolve,
        authorization_secret=AUTHORIZATION_SECRET,
        **arguments,
    )


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The Flow for a Worker process: the file ``provider`` has the provider's URL."""
    url = (data_dir / "provider").read_text()
    vault = Vault(data_dir.parent / "vault")
    return build_session_flow(build_agent(authorization_config(url), url), vault)
