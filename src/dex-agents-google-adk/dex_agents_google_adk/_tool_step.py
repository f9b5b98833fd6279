"""Run one tool in its Step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents._contract import (
    DeferredToolExecution,
    InterruptKind,
    InterruptRequest,
    Json,
    ToolExecutionResult,
)
from dex_agents._effects import ToolEffect
from dex_agents._errors import ToolNotStartedError
from dex_agents_google_adk._actions import actions_to_json
from dex_agents_google_adk._adk_compat import invocation_of
from dex_agents_google_adk._adk_workarounds import agent_tool_pauses, mcp_errors
from dex_agents_google_adk._adk_workarounds.tool_threads import own_threads
from dex_agents_google_adk._artifacts import SessionArtifacts
from dex_agents_google_adk._effects import needs_more_care
from dex_agents_google_adk._events import shown_text
from dex_agents_google_adk._idempotency import IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY
from dex_agents_google_adk._images import put_images, split_images
from dex_agents_google_adk._json import copy_json, to_json
from dex_agents_google_adk._secrets import Secrets
from dex_agents_google_adk._session import AttemptSessionService, make_session
from dex_agents_google_adk._setup import RunnerSetup
from dex_agents_google_adk._tool_errors import ends_the_attempt, result_or_answer
from dex_agents_google_adk._tool_events import EVENTS_KEY, collected_events


def make_tool_context(
    invocation_id: str, state: Json, user_content: types.Content | None
) -> dict[str, Json]:
    """What every tool Step of a response needs, as JSON."""
    context: dict[str, Json] = {"v": 1, "invocation_id": invocation_id, "state": to_json(state)}
    if user_content is not None:
        context["user_content"] = user_content.model_dump(
            mode="json", exclude_none=True, fallback=to_json
        )
    return context


async def execute(setup: RunnerSetup, call: DeferredToolExecution) -> ToolExecutionResult:
    """Run the tool of ``call`` once.

    Raises:
        ToolNotStartedError: The tool was not entered.
        ToolExecutionError: The tool reported a failure, or asked for a credential that the session
            has no way to get.
        Exception: Whatever else the tool raised.
    """
    if setup.sources.owns(call):
        has_store = setup.images.store is not None
        return await setup.sources.execute(call, has_media_store=has_store)
    try:
        context = _context(setup, call)
        tool = await _find(setup, call, ReadonlyContext(context._invocation_context))
        _check_effect(setup, call, tool)
        arguments = copy_json(dict(call.arguments))
    except ToolNotStartedError:
        raise
    except BaseException as error:
        if ends_the_attempt(error):
            raise
        raise ToolNotStartedError(
            f"tool {call.tool_name!r} could not be prepared: {type(error).__name__}: {error}"
        ) from error
    given = await setup.credentials.resolve(call)
    invocation_of(context).session.state.update(given.state)
    shown = _LiveEvents(call, tool, given.secrets)
    collecting = collected_events(
        invocation_of(context), given.secrets.without_credentials, shown.emit
    )
    try:
        async with collecting as events:
            running = _run(setup, call, tool, arguments, context)
            value = await result_or_answer(running, tool, arguments, context)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if ends_the_attempt(error):
            raise
        if (safe := given.secrets.hide_error(error)) is error:
            raise
        raise safe from None
    # ADK hands credentials to a tool through session state, and tools leave them there.
    context.actions.state_delta = given.secrets.without_credentials(context.actions.state_delta)
    if asked := list(context.actions.requested_auth_configs.values()):
        return ToolExecutionResult(interrupt=setup.credentials.ask(call, asked[0], given))
    result = await _result(setup, call.effect, tool, value, context.actions, events)
    return given.secrets.hide_in_result(result)


async def _result(
    setup: RunnerSetup,
    effect: ToolEffect,
    tool: BaseTool,
    value: Any,
    actions: EventActions,
    events: Sequence[Json],
) -> ToolExecutionResult:
    if actions.requested_tool_confirmations:
        confirmation = next(iter(actions.requested_tool_confirmations.values()))
        return ToolExecutionResult(
            interrupt=InterruptRequest(
                InterruptKind.APPROVAL,
                hint=confirmation.hint or "",
                payload=to_json(confirmation.payload),
            )
        )
    framework_data: dict[str, Json] = {"ended_at": time.time()}
    changes = actions_to_json(actions)
    if tool.is_long_running:
        # It keeps ADK from going on with what the tool returns at once, as of ``get_user_choice``; with
        # the answer the model goes on.
        changes.pop("skip_summarization", None)
    if changes:
        framework_data["actions"] = changes
    if events:
        framework_data[EVENTS_KEY] = list(events)
    if tool.is_long_running:
        # What the tool returns at once is for whoever answers; the answer is the call's result.
        return ToolExecutionResult(
            interrupt=InterruptRequest(
                InterruptKind.LONG_RUNNING, payload=to_json(value), framework_data=framework_data
            )
        )
    remaining, blobs = split_images(value)
    images, lost = await put_images(setup.images.store, blobs, effect)
    output = to_json(remaining)
    if isinstance(output, dict) and not isinstance(remaining, dict):
        # ADK wraps whatever is no dict, such as a pydantic model, before it becomes JSON.
        output = {"result": output}
    return ToolExecutionResult(output, framework_data, images, not_stored=lost)


class _LiveEvents:
    """Shows what nodes behind a tool write while it runs."""

    def __init__(self, call: DeferredToolExecution, tool: BaseTool, secrets: Secrets) -> None:
        self._call = call
        self._tool = tool
        self._secrets = secrets

    def emit(self, event: Event) -> None:
        """Send what there is to see of an event."""
        text = shown_text(event.content)
        if self._call.events is None or not (text or event.output is not None):
            return
        shown = {"text": text, "output": to_json(event.output), "author": event.author}
        self._call.events.emit(
            "tool_call_progress",
            tool_call_id=self._call.call_id,
            tool_name=self._tool.name,
            agent_name=self._call.agent_name,
            is_partial=bool(event.partial),
            **self._secrets.hide(shown),
        )


async def _run(
    setup: RunnerSetup,
    call: DeferredToolExecution,
    tool: BaseTool,
    arguments: dict[str, Any],
    context: ToolContext,
) -> Any:
    run_async = mcp_errors.run_of(tool, call.effect)
    if not setup.runs_in_thread(tool.name):
        result = await run_async(args=arguments, tool_context=context)
    else:
        with own_threads():
            result = await run_async(args=arguments, tool_context=context)
    agent_tool_pauses.check_result(tool, result)
    return result


def _context(setup: RunnerSetup, call: DeferredToolExecution) -> ToolContext:
    stored: dict[str, Any] = call.tool_context or {}
    data: dict[str, Any] = call.framework_data or {}
    session = make_session(
        session_id=call.session_id,
        app_name=setup.app.name,
        user_id=setup.user_id,
        state=copy_json(stored.get("state") or {}),
        events=[],
    )
    user_content = stored.get("user_content")
    invocation = InvocationContext(
        session_service=AttemptSessionService(session),
        artifact_service=_artifacts(setup, call.session_id, stored),
        memory_service=setup.memory_service,
        credential_service=setup.credential_service,
        # An AgentTool hands these to its inner run.
        plugin_manager=PluginManager(plugins=list(setup.app.plugins)),
        context_cache_config=setup.app.context_cache_config,
        invocation_id=stored.get("invocation_id") or "",
        branch=data.get("branch"),
        node_path=data.get("path") or None,
        agent=setup.tree.find_llm_agent(call.agent_name, data.get("path") or "") or setup.tree.root,
        user_content=types.Content.model_validate(user_content) if user_content else None,
        session=session,
        run_config=setup.step_run_config(call.tool_name),
    )
    # A person has approved the call, so a tool that asks for confirmation itself need not ask
    # again.
    approved = ToolConfirmation(confirmed=True) if data.get("approved") else None
    if isinstance(call.answer, dict) and "approved" in call.answer:
        approved = ToolConfirmation(
            confirmed=bool(call.answer.get("approved")), payload=call.answer.get("payload")
        )
    context = ToolContext(
        invocation_context=invocation, function_call_id=call.call_id, tool_confirmation=approved
    )
    context.custom_metadata[IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY] = call.idempotency_key
    return context


def _artifacts(
    setup: RunnerSetup, session_id: str, stored: dict[str, Any]
) -> BaseArtifactService | None:
    service, seen = setup.artifact_service, stored.get("artifacts")
    if service is None or seen is None:
        return service
    return SessionArtifacts.from_json(service, session_id, seen)


async def _find(
    setup: RunnerSetup, call: DeferredToolExecution, context: ReadonlyContext
) -> BaseTool:
    data: dict[str, Any] = call.framework_data or {}
    agent = setup.tree.find_llm_agent(call.agent_name, data.get("path") or "")
    if agent is not None:
        for tool in await agent.canonical_tools(context):
            if tool.name == call.tool_name:
                return tool
    raise ToolNotStartedError(
        f"agent {call.agent_name!r} has no tool named {call.tool_name!r} any more"
    )


def _check_effect(setup: RunnerSetup, call: DeferredToolExecution, tool: BaseTool) -> None:
    """Refuse a tool that a later release of the application declares more dangerous.

    Attempts and record of the call follow the effect that it was asked with, so a read that has
    become a write would be run again after a crash.
    """
    effect = setup.resolver.resolve(tool).effect
    if needs_more_care(effect, call.effect):
        raise ToolNotStartedError(
            f"tool {call.tool_name!r} was asked for when its effect was {str(call.effect)!r}, and has "
            f"the effect {str(effect)!r} now; ask for it again"
        )
