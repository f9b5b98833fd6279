"""The plugin before the application's own.

It answers replayed calls before anybody's ``before_tool_callback`` runs a second time, ends the
attempt when its model call is used up, and hides from the other plugins what plain ADK would not
show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types

from dex_agents._errors import AgentTurnError
from dex_agents_google_adk._actions import apply_actions
from dex_agents_google_adk._adk_compat import (
    CONFIRMATION_CALL,
    FRAMEWORK_CALLS,
    INPUT_CALL,
    invocation_of,
)
from dex_agents_google_adk._adk_workarounds import agent_states, task_delegations
from dex_agents_google_adk._attempt import Attempt
from dex_agents_google_adk._branches import branch_around
from dex_agents_google_adk._effects import (
    is_control_tool,
    is_inline_agent_tool,
    is_task_tool,
)
from dex_agents_google_adk._events import USER, is_resumption_marker, shown_text
from dex_agents_google_adk._json import copy_json, to_json
from dex_agents_google_adk._node_path import parse_node_path
from dex_agents_google_adk._open_response import AgentKey, DeferredCall
from dex_agents_google_adk._pauses import YIELD_TOOL_NAME, agent_key, put_off, yield_answer
from dex_agents_google_adk._records import actions_of, given_answer, response_of
from dex_agents_google_adk._run_state import CallKind
from dex_agents_google_adk._source_tools import note_called
from dex_agents_google_adk._tool_events import replay_events
from dex_agents_google_adk._tree import AgentTree

if TYPE_CHECKING:
    from dex_agents._contract import AgentEventWriter


FIRST_PLUGIN_NAME = "dex_agents_first"

_UNNAMED = "unnamed_tool"
_OUR_NAMES = FRAMEWORK_CALLS | {YIELD_TOOL_NAME}
_MEDIA_KEY = "__dex_media__"


def _make_call_ids_unique(event: Event) -> None:
    """Give a call that repeats an id of its own response another one, and each one that can be stored.

    ADK keys confirmations and results by id, so two calls with one id could not be told apart.
    Later responses may use the id again; ADK pairs results with the newest call, and so do we.
    """
    if event.content is not None and event.content.parts:
        event.content.parts = _without_shared_calls(event.content.parts)
    seen: set[str] = set()
    for call in event.get_function_calls():
        call.id = to_json(call.id)  # what storage would change would not be found again
        if call.id in seen:
            number = 2
            while f"{call.id}-{number}" in seen:
                number += 1
            call.id = f"{call.id}-{number}"
        if call.id:
            seen.add(call.id)


def _without_shared_calls(parts: Sequence[types.Part]) -> list[types.Part]:
    """The same, with a copy where a callback or model put in one object twice: it has one id only."""
    seen: set[int] = set()
    own: list[types.Part] = []
    for part in parts:
        call = part.function_call
        if call is not None and id(call) in seen:
            part = part.model_copy(update={"function_call": call.model_copy(deep=True)})
        seen.add(id(call))
        own.append(part)
    return own


def _refuse_framework_names(response: LlmResponse, tools: Mapping[str, BaseTool]) -> None:
    """Take from a model's calls the names by which ADK and we know events of our own.

    A call without a name makes ADK wait for ever, so it gets one. None of the new names is a
    tool's, so ADK answers that there is no such tool.
    """
    for part in (response.content.parts if response.content else None) or []:
        call = part.function_call
        if call is None:
            continue
        if not call.name or not call.name.strip():
            call.name = _UNNAMED
        elif call.name in _OUR_NAMES and call.name not in tools:
            call.name = f"unknown_{call.name}"


class FirstPlugin(BasePlugin):
    """Runs before every plugin of the application."""

    def __init__(self, attempt: Attempt, events: AgentEventWriter, tree: AgentTree) -> None:
        super().__init__(FIRST_PLUGIN_NAME)
        self._attempt = attempt
        self._events = events
        self._tree = tree
        self._inline_turns: dict[str | None, asyncio.Lock] = {}
        self._inline_runs: dict[int, asyncio.Lock] = {}

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        self._attempt.invocation_id = invocation_context.invocation_id
        agent_states.restore(invocation_context, self._attempt)

    async def before_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> types.Content | None:
        if not self._tree.knows(agent):
            raise AgentTurnError(
                f"agent {agent.name!r} stands nowhere in the tree as it is, so the Steps of its tools "
                "could not find it; it did not run. Name it in dynamic_agents when you build the "
                "Flow, and run that very object or its clone()"
            )
        return None

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        key = agent_key(callback_context)
        if (held := await self._attempt.held.take(key, callback_context)) is not None:
            self._attempt.model_calls.request_built(key, llm_request)
            return held
        elif self._attempt.model_calls.has_permit(key[1]):
            if self._attempt.offer is not None:
                self._attempt.offer.check(llm_request)
            await self._steer(callback_context, llm_request)
            self._attempt.model_calls.request_built(key, llm_request)
            return None
        return yield_answer(self._attempt, callback_context, llm_request.tools_dict)

    async def _steer(self, context: CallbackContext, request: LlmRequest) -> None:
        """Let the model read what the user sent into the turn, behind everything else."""
        invocation = invocation_of(context)
        while self._attempt.steering:
            content = self._attempt.steering.pop(0)
            event = Event(
                invocation_id=invocation.invocation_id,
                author=USER,
                content=content,
                branch=invocation.branch,
            )
            await invocation.session_service.append_event(invocation.session, event)
            request.contents.append(content.model_copy(deep=True))
            self._attempt.took_steering = True

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        key = agent_key(callback_context)
        _refuse_framework_names(llm_response, self._attempt.model_calls.tools_of(key))
        self._attempt.model_calls.answered(key, llm_response)
        return None

    async def on_event_callback(
        self, *, invocation_context: InvocationContext, event: Event
    ) -> Event | None:
        if event.partial or event.author == USER or event.id in self._attempt.tool_events:
            return None
        if self._attempt.is_replayed(event):
            return Event(author=event.author, partial=True)  # it has been stored before
        event.branch = self._attempt.branch_of(event)
        if event.id in self._attempt.synthetic_events:
            return event
        if _is_synthetic(event):
            self._attempt.synthetic_events.add(event.id)
            response = self._attempt.open_response((event.author, event.branch))
            if response is not None and event.get_function_responses():
                response.keep_actions()
            return event
        if is_resumption_marker(event):
            if event.actions.end_of_agent:
                self._attempt.branches_ended((event.author, event.branch))
            return event  # returned, an event is hidden from the application's plugins
        key = (event.author, event.branch)
        if self._attempt.is_putting_off(key) and not event.get_function_responses():
            self._attempt.held.hold(event)
            self._attempt.synthetic_events.add(event.id)
            return event
        if event.content is not None:
            self._attempt.model_calls.content_came(key)
        self._complete_output(event)
        if event.get_function_responses():
            self._attempt.response_answered(event)
            self._end_if_tasks_are_next(key)
        if event.actions.escalate:
            self._end_branches_beside(event)
        if event.actions.transfer_to_agent and _runs_as_node(event):
            # ADK leaves the agent in the middle of its run and does not come back to it.
            self._attempt.agent_ends(key)
        tools = self._attempt.model_calls.tools_of(key)
        called = [call.name for call in event.get_function_calls()]
        if INPUT_CALL in called and INPUT_CALL not in tools:
            self._check_path(event)
            self._attempt.asks_input(event)
        elif called:
            self._check_path(event)
            _make_call_ids_unique(event)
            control = {name for name, tool in tools.items() if is_control_tool(tool)}
            self._unmark_long_running(event, set(tools) - control)
            note_called(self._attempt, (c.name or "" for c in event.get_function_calls()), tools)
            tasks = {name for name, tool in tools.items() if is_task_tool(tool)}
            inline = {name for name, tool in tools.items() if is_inline_agent_tool(tool)}
            author = self._tree.find_llm_agent(event.author, event.node_info.path)
            self._attempt.response_opened(
                event,
                set(tools) - control,
                control,
                tasks,
                inline,
                tasks_first=author is not None and task_delegations.come_first(event, author),
            )
            self._end_if_tasks_are_next(key)
        return None

    def _end_if_tasks_are_next(self, key: AgentKey) -> None:
        """ADK hands on tasks behind the response's other results, and then starts the agent anew."""
        response = self._attempt.open_response(key)
        if response is None or not response.tasks or not response.is_complete:
            return
        if not (response.tasks_first and response.answered):
            self._attempt.agent_ends(key)

    def _end_branches_beside(self, event: Event) -> None:
        """A branch that escalates ends the ParallelAgent that it is a branch of."""
        for parallel in self._tree.parallel_agents:
            names = [agent.name for agent in parallel.sub_agents]
            around = branch_around(event, parallel.name)
            if event.author in names and around is not None:
                self._attempt.branches_end((parallel.name, around or None), names)

    def _check_path(self, event: Event) -> None:
        """What waits is known by the path of its node."""
        visits = parse_node_path(event.node_info.path)
        if not visits and isinstance(self._tree.root, Workflow):
            raise AgentTurnError(
                f"ADK gave the calls of {event.author!r} no node path, so the Workflow could not go "
                "on from them"
            )

    def _unmark_long_running(self, event: Event, deferrable: set[str]) -> None:
        # ADK would take the mark for a pause of its own, and not replay the event's calls.
        marked = event.long_running_tool_ids or set()
        ours = {c.id for c in event.get_function_calls() if c.name in deferrable} & marked
        if ours:
            self._attempt.long_running[event.id] = sorted(str(item) for item in ours)
            event.long_running_tool_ids = marked - ours

    def _complete_output(self, event: Event) -> None:
        # ADK adds up an agent's texts for its output_key in a local variable, which a pause loses.
        author = self._tree.find_llm_agent(event.author, event.node_info.path)
        if author is None or not author.output_key or author.output_schema:
            return
        output = event.actions.state_delta.get(author.output_key)
        if isinstance(output, str) and shown_text(event.content):
            whole = self._attempt.whole_output((event.author, event.branch), output)
            event.actions.state_delta[author.output_key] = whole

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> Any:
        if tool.name == YIELD_TOOL_NAME:
            return {}
        key = agent_key(tool_context)
        call_id = tool_context.function_call_id or ""
        replay = self._attempt.take_replay(key, call_id)
        if replay is not None:
            call = replay.call
            response = self._attempt.open_response(key)
            if response is not None:
                response.contexts[call_id] = tool_context
            if call.kind is CallKind.NATIVE:
                await self._begin_control(tool, tool_context)
                if not call.begun:
                    return None
                # Run here, so that nobody's callback sees the call a second time.
                result = await tool.run_async(args=tool_args, tool_context=tool_context)
                return {"result": None} if result is None else result
            if call.arguments is not None:
                tool_args.clear()
                tool_args.update(copy_json(call.arguments))
            apply_actions(tool_context, copy_json(call.actions))
            if replay.record is None:
                self._attempt.call_settled(tool_context)
                return _settled_answer(call.response)
            apply_actions(tool_context, copy_json(actions_of(replay.record)))
            await replay_events(
                tool_context,
                replay.record,
                self._attempt.tool_events,
                self._attempt.model_calls.ran_in_step,
            )
            answer = copy_json(response_of(replay.record))
            return given_answer(answer) if tool.is_long_running else answer
        response = self._attempt.open_response(key)
        if response is not None and not response.replayed:
            response.contexts[call_id] = tool_context
            if is_control_tool(tool) and response.mixed:
                self._attempt.agent_pauses(key)
                return put_off(
                    response, tool_context, DeferredCall(tool_name=tool.name, native=True)
                )
        if is_control_tool(tool):
            await self._begin_control(tool, tool_context)
        return None

    async def _begin_control(self, tool: BaseTool, context: ToolContext) -> None:
        response = self._attempt.open_response(agent_key(context))
        if is_inline_agent_tool(tool):
            # One at a time: when a sub-agent pauses, ADK cancels those beside it, and with them
            # model calls that are paid for.
            turn = self._inline_turns.setdefault(invocation_of(context).branch, asyncio.Lock())
            await turn.acquire()
            self._inline_runs[id(context)] = turn
            if response is not None:
                response.begun.add(context.function_call_id or "")
        elif response is not None:
            # Else what it does now it would do again when the sub-agent goes on after a pause.
            await response.wait_for_inline()
        self._emit("tool_call_started", tool, context)

    async def after_tool_callback(
        self,
        *,
        tool: BaseTool,
        tool_args: dict[str, Any],
        tool_context: ToolContext,
        result: Any,
    ) -> Any:
        if tool.name == YIELD_TOOL_NAME:
            return {}
        if (turn := self._inline_runs.pop(id(tool_context), None)) is not None:
            turn.release()
        response = self._attempt.open_response(agent_key(tool_context))
        if response is not None and tool_context.function_call_id in response.deferred:
            return result
        if response is not None:
            response.inline_ends(tool_context.function_call_id or "")
        if self._attempt.is_settled(tool_context):
            return result
        if is_control_tool(tool):
            if tool_context.function_call_id in tool_context.actions.requested_tool_confirmations:
                raise AgentTurnError(
                    f"a callback asked for a confirmation of {tool.name!r}, which steers ADK "
                    f"itself and has no Step that could wait; it did not run. Ask for the "
                    f"confirmation of an ordinary tool that is called before it"
                )
            self._emit("tool_call_finished", tool, tool_context)
        return None

    def _emit(self, event_type: str, tool: BaseTool, context: ToolContext) -> None:
        self._events.emit(
            event_type,
            tool_call_id=context.function_call_id,
            tool_name=tool.name,
            agent_name=context.agent_name,
        )


def _runs_as_node(event: Event) -> bool:
    return event.node_info.name == event.author


def _is_synthetic(event: Event) -> bool:
    if event.actions.requested_tool_confirmations:
        return True
    return any(
        call.name in (CONFIRMATION_CALL, YIELD_TOOL_NAME) for call in event.get_function_calls()
    )


def _settled_answer(response: Any) -> dict[str, Any]:
    answer: dict[str, Any] = copy_json(response.get("response") or {})
    media = [
        part
        for item in response.get("parts") or []
        if (part := _media_part(types.FunctionResponsePart.model_validate(item))) is not None
    ]
    if media:
        # ADK moves parts out of a result again, and drops the list that they leave empty.
        answer[_MEDIA_KEY] = media
    return answer


def _media_part(part: types.FunctionResponsePart) -> types.Part | None:
    if (blob := part.inline_data) is not None and blob.data is not None:
        return types.Part.from_bytes(data=blob.data, mime_type=blob.mime_type or "")
    if (file := part.file_data) is not None and file.file_uri:
        return types.Part.from_uri(file_uri=file.file_uri, mime_type=file.mime_type)
    return None
