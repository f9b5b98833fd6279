"""Open responses of a paused turn, as the next attempt gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from google.adk.events.event import Event

from dex_agents._contract import Json
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk._actions import actions_to_json
from dex_agents_google_adk._attempt import Attempt
from dex_agents_google_adk._json import to_json
from dex_agents_google_adk._open_response import OpenResponse
from dex_agents_google_adk._run_state import CallKind, PausedCall, PausedEvent


def paused_event(attempt: Attempt, response: OpenResponse, turn: Sequence[Event]) -> PausedEvent:
    """What the next attempt needs of an open response.

    Args:
        turn: Events of the turn so far.
    """
    # When the other calls of such a response wait, its tasks are done.
    tasks = () if response.tasks_first and response.deferred else tuple(sorted(response.tasks))
    done = response.tasks.difference(tasks)
    return PausedEvent(
        response.event_id,
        response.agent_name,
        response.branch,
        calls=tuple(
            _paused_call(attempt, response, turn, *call)
            for call in response.calls
            if call[0] not in done
        ),
        tasks=tasks,
        node_path=response.node_path,
        inline=tuple(sorted(response.inline)),
        tasks_first=response.is_left_for_later,
        mixed=response.mixed and response.is_left_for_later,
    )


def _paused_call(
    attempt: Attempt,
    response: OpenResponse,
    turn: Sequence[Event],
    call_id: str,
    tool_name: str,
) -> PausedCall:
    replay = attempt.replay_of(response, call_id) if response.replayed else None
    if call_id in response.answered:
        context = response.contexts.get(call_id)
        return PausedCall(
            call_id=call_id,
            kind=CallKind.SETTLED,
            tool_name=tool_name,
            actions=actions_to_json(context.actions) if context is not None else {},
            response=_settled_response(response, call_id, turn),
        )
    if replay is not None:
        kept = replace(replay.call, begun=call_id in response.begun)
        if replay.record is None:
            return kept
        return replace(kept, kind=CallKind.RECORDED, record=replay.record)
    actions = response.actions.get(call_id) or {}
    if (deferred := response.deferred.get(call_id)) is not None:
        return PausedCall(
            call_id=call_id,
            kind=CallKind.NATIVE if deferred.native else CallKind.STEP,
            tool_name=tool_name,
            arguments=deferred.arguments if deferred.arguments_changed else None,
            actions=actions,
        )
    if call_id in response.begun or call_id in response.tasks or not response.deferred:
        return PausedCall(
            call_id=call_id,
            kind=CallKind.NATIVE,
            tool_name=tool_name,
            begun=call_id in response.begun,
        )
    return PausedCall(
        call_id=call_id,
        kind=CallKind.SETTLED,
        tool_name=tool_name,
        actions=actions,
        response=_settled_response(response, call_id, turn),
    )


def _settled_response(response: OpenResponse, call_id: str, turn: Sequence[Event]) -> Json:
    for event in reversed(turn):
        if event.id == response.event_id:
            break  # a model may have used the id before, for a call that has another result
        if event.branch != response.branch:
            continue
        for item in event.get_function_responses():
            if item.id == call_id and event.author == response.agent_name:
                return item.model_dump(mode="json", exclude_none=True, fallback=to_json)
    raise AgentTurnError(f"ADK wrote no response for the answered call {call_id!r}")
