"""Steps that end what is open on somebody's word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex import AsyncContext, StepDecision, dead_end, force_complete

from dex_agents import _failpoints
from dex_agents._session import interrupts, resources
from dex_agents._session.encoding import decode
from dex_agents._session.events import StepEvents
from dex_agents._session.notes import stopped_call
from dex_agents._session.records import FinishedCall, Header, TurnState
from dex_agents._session.session_step import SessionStep
from dex_agents._session.turn_end import fail_turn, read_header, read_turn_state

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow

CANCELLED_TEXT = "the user cancelled the turn"
CLOSED_TEXT = "the session was closed"


class CancelTurn(SessionStep):
    """Ends a turn whose Steps were cancelled, with what is known of its calls."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        _failpoints.reach("cancel.before", context.flow_id)
        header = read_header(context)
        if resources.closing.get(context):
            return dead_end()  # the Step that closes the session ends its turn
        if header.turn_id != decode(input)["turn_id"]:
            return dead_end()  # it ended by itself while the cancel was on its way
        return end_cancelled_turn(context, self._flow, header, CANCELLED_TEXT)


class CloseSession(SessionStep):
    """Ends a session whose Steps were cancelled, with its open turn.

    Messages that wait stay where they are: what a closed session still has of them was dropped.
    """

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        _failpoints.reach("close.before", context.flow_id)
        header = read_header(context)
        if header.turn_id:
            reason = decode(input)["reason"]
            text = f"{CLOSED_TEXT}: {reason}" if reason else CLOSED_TEXT
            end_cancelled_turn(context, self._flow, header, text, is_by_close=True)
        return force_complete()


def end_cancelled_turn(
    context: AsyncContext,
    flow: AgentSessionFlow,
    header: Header,
    reason: str,
    *,
    is_by_close: bool = False,
) -> StepDecision:
    """End the open turn, none of whose Steps is left."""
    turn_id = header.turn_id
    state = read_turn_state(context, turn_id)
    before = state.open_round(turn_id)
    _finish_calls(context, state, before.batch)
    header.cancelled_turn = turn_id
    decision = fail_turn(
        context,
        flow,
        header,
        state,
        before,
        reason,
        is_cancelled=True,
        is_by_close=is_by_close,
    )
    events = StepEvents(flow.event_stream, context, turn_id)
    events.emit("turn_cancelled", reason=reason)
    events.close()
    return decision


def _finish_calls(context: AsyncContext, state: TurnState, batch: str) -> None:
    unapproved = set(resources.unapproved.get_all_instance_keys(context))
    unanswered = interrupts.unanswered_calls(context)
    for index, call in enumerate(state.open_calls):
        key = resources.call_key(batch, index)
        note = resources.call_notes.get(context, key)
        if note:
            state.finished.append(FinishedCall.from_json(decode(note)))
        else:
            stopped = stopped_call(
                call, is_unapproved=key in unapproved, is_unanswered=key in unanswered
            )
            state.finished.append(stopped)
        if key in unapproved:
            resources.unapproved.delete(context, key)
            resources.interrupts.delete(context, key)
