"""Every private name of ADK that the driver reads, in one place.

``tests/adk_canaries`` checks the behaviour behind each; ``docs/design/adk-driving.md`` says why
each is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.auth._auth_resume import _oauth_state_key, store_auth_response
from google.adk.auth.auth_credential import AuthCredential
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.adk.flows.llm_flows.core._model_call import apply_empty_response_policy
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions.state import State
from google.adk.tools._node_tool import NodeTool
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.utils._callback_pipeline import (
    _run_callbacks,
    _stop_on_non_none,
    _stop_on_truthy,
)
from google.adk.utils._function_call_names import (
    REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
    REQUEST_EUC_FUNCTION_CALL_NAME,
    REQUEST_INPUT_FUNCTION_CALL_NAME,
)
from google.adk.workflow._base_node import BaseNode

CONFIRMATION_CALL = REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
CREDENTIAL_CALL = REQUEST_EUC_FUNCTION_CALL_NAME
INPUT_CALL = REQUEST_INPUT_FUNCTION_CALL_NAME
FRAMEWORK_CALLS = frozenset({CONFIRMATION_CALL, CREDENTIAL_CALL, INPUT_CALL})


def invocation_of(context: ReadonlyContext) -> InvocationContext:
    """The invocation itself; the public accessor returns a copy, whose ``end_invocation`` nobody
    reads.
    """
    return context._invocation_context


async def first_answer(callbacks: Sequence[Any], **arguments: Any) -> Any:
    """Run callbacks until one answers, exactly as ADK's tool pipeline does."""
    return await _run_callbacks(callbacks, _stop_on_non_none, **arguments)


async def first_content(callbacks: Sequence[Any], **arguments: Any) -> Any:
    """Run callbacks until one returns something true, as ADK does around an agent."""
    return await _run_callbacks(callbacks, _stop_on_truthy, **arguments)


def mark_empty_answer(context: ReadonlyContext, response: LlmResponse) -> None:
    """Give an answer that says nothing ADK's error code, which it does only after all callbacks."""
    apply_empty_response_policy(context._invocation_context, response)


def is_unknown_tool(tool: BaseTool) -> bool:
    """Whether ``tool`` is the placeholder that ADK makes for a name that no tool has."""
    return type(tool) is BaseTool


def node_behind(tool: BaseTool) -> BaseNode | None:
    """The agent or Workflow node that a tool runs, if that is what it does."""
    if isinstance(tool, AgentTool):
        return tool.agent
    return tool.node if isinstance(tool, NodeTool) else None


def open_event_queue(invocation: InvocationContext) -> asyncio.Queue[Any]:
    """Give the invocation the queue that its nodes write events to.

    It holds pairs: an event, and what to set when the event has been taken, or ``None``.
    """
    queue: asyncio.Queue[Any] = asyncio.Queue()
    invocation._event_queue = queue
    return queue


async def send_event(context: ReadonlyContext, event: Event) -> None:
    """Hand an event to ADK's runner, and wait until it has been appended to the session.

    Below a composite root ADK has no queue, and such a tool fails there; the event is then appended
    here.
    """
    invocation = context._invocation_context
    if invocation._event_queue is not None:
        await invocation._enqueue_event(event)
        return
    changed = await invocation.plugin_manager.run_on_event_callback(
        invocation_context=invocation, event=event
    )
    await invocation.session_service.append_event(invocation.session, changed or event)


async def credential_state(
    requested: AuthConfig, credential: AuthCredential, call_id: str
) -> AuthCredential | None:
    """What ADK keeps in its ``temp:`` state of an answer to a credential request.

    ADK completes the answer from the request, checks its ``state``, and exchanges it if it can.
    """
    state = State(value={}, delta={})
    oauth2 = requested.exchanged_auth_credential and requested.exchanged_auth_credential.oauth2
    if oauth2 and oauth2.state:
        state[_oauth_state_key(call_id)] = oauth2.state
    stored = await store_auth_response(
        requested=requested, response=credential, state=state, interrupt_id=call_id
    )
    found = state.get(f"temp:{requested.credential_key}") if stored is not None else None
    return found if isinstance(found, AuthCredential) else None
