"""How a turn ends: its messages, its outcome and the way to the next turn in one commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, StepDecision, go_to_many

from dex_agents._contract import (
    AgentMessage,
    ImageMessageBuilder,
    Json,
    StateMessageBuilder,
)
from dex_agents._errors import ModelCallError
from dex_agents._media.reference import ImageReference
from dex_agents._session import resources, step_options
from dex_agents._session.compaction import size_of
from dex_agents._session.encoding import decode, encode
from dex_agents._session.failures import RUNNER_FAILURES, clean_text, model_failure
from dex_agents._session.notes import turn_failure_note
from dex_agents._session.outcomes import check_size, encoded
from dex_agents._session.records import (
    Header,
    LastTurn,
    Round,
    TurnState,
    message_from_json,
    message_to_json,
    turn_number,
)
from dex_agents._session.results import fit_output
from dex_agents._tracing import SpanPlace

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow

_LOGGER = logging.getLogger("dex_agents")
OUTCOME_BYTES = 256 * 1024
"""What a snapshot shows of an answer's text and of its output; the history has all of it."""


def read_header(context: AsyncContext) -> Header:
    """The session header."""
    stored = resources.header.get(context)
    return Header.from_json(decode(stored)) if stored else Header()


def write_header(context: AsyncContext, header: Header) -> None:
    """Store the session header."""
    resources.header.set(context, encode(header.to_json()))


def read_turn_state(context: AsyncContext, turn_id: str) -> TurnState:
    """The open turn."""
    stored = resources.turn_states.get(context, turn_id)
    assert stored, f"turn {turn_id} has no state"
    return TurnState.from_json(decode(stored))


def forget_round(context: AsyncContext, before: Round) -> None:
    """Remove what was stored for the calls of a response that the model has now read."""
    for index in range(before.calls):
        key = resources.call_key(before.batch, index)
        resources.records.delete(context, key)
        resources.call_notes.delete(context, key)
    if before.has_context:
        resources.tool_contexts.delete(context, before.batch)


def grow_revision(context: AsyncContext) -> None:
    """Wake the clients that wait for the session to settle."""
    resources.revision.set(context, (resources.revision.get(context) or 0) + 1)


def build_user_message(
    flow: AgentSessionFlow, text: str, images: Sequence[ImageReference] = ()
) -> AgentMessage:
    """The runner's form of a message, its failures in a form that the SDK can carry."""
    try:
        if not images:
            return flow.runner.build_user_message(text)
        if not isinstance(flow.runner, ImageMessageBuilder):
            raise RuntimeError("a message has images, but this Worker's Flow has no media store")
        return flow.runner.build_user_message_with_images(text, images)
    except RUNNER_FAILURES as error:
        raise model_failure(error) from None


def store_state(
    context: AsyncContext, flow: AgentSessionFlow, header: Header, state: Mapping[str, Json]
) -> None:
    """Store what a session was given at its creation, as a page before that of the first turn."""
    if not isinstance(flow.runner, StateMessageBuilder):
        raise ModelCallError("a session has a state, but this Worker's runner takes none")
    try:
        message = flow.runner.build_state_message(state)
    except RUNNER_FAILURES as error:
        raise model_failure(error) from None
    page = [message_to_json(replace(message, sequence=header.next_sequence))]
    header.next_sequence += 1
    resources.messages.set(context, resources.page_key(0), encode(page))


def fail_turn(
    context: AsyncContext,
    flow: AgentSessionFlow,
    header: Header,
    state: TurnState,
    before: Round,
    reason: str,
    *,
    is_cancelled: bool = False,
    is_by_close: bool = False,
) -> StepDecision:
    """End a turn without an answer: its message stays, and a note says what its calls did."""
    if not is_cancelled and not is_by_close:
        _LOGGER.warning("turn %s of session %s failed: %s", before.turn_id, context.flow_id, reason)
    text = turn_failure_note(reason, state.finished, is_cancelled=is_cancelled)
    messages = [message_from_json(item) for item in (state.user_message, *state.steered)]
    try:
        messages.append(replace(build_user_message(flow, text), is_note=True))
    except Exception:
        if not is_by_close:
            raise
        # No model will read it, and a runner that is broken must not keep a session open.
    last = LastTurn(before.turn_id, "", reason, is_cancelled, is_by_close)
    return end_turn(context, flow, header, state, before, messages, last)


def _shown(role: str, text: str, **fields: Json) -> Json:
    return [{"role": role, "parts": [{"type": "text", "content": text}], **fields}]


def end_turn(
    context: AsyncContext,
    flow: AgentSessionFlow,
    header: Header,
    state: TurnState,
    before: Round,
    messages: Sequence[AgentMessage],
    last: LastTurn,
) -> StepDecision:
    """Store a turn's messages and wait for the next one.

    Raises:
        AgentTurnError: The messages cannot be stored; nothing was written.
    """
    numbered = [
        message_to_json(
            replace(message, turn_id=before.turn_id, sequence=header.next_sequence + index)
        )
        for index, message in enumerate(messages)
    ]
    page = encoded("a message of the turn", numbered)
    shown = replace(
        last,
        final_text=clean_text(last.final_text, OUTCOME_BYTES),
        output=fit_output(last.output, OUTCOME_BYTES),
    )
    outcome = encode(shown.to_json())
    check_size("the messages of this turn", (page, outcome, outcome))
    header.next_sequence += len(numbered)
    header.usage += state.usage
    header.turn_id = ""
    number = turn_number(before.turn_id)
    if header.history_bytes is not None or number == 1:
        header.history_bytes = (header.history_bytes or 0) + size_of(messages)
    resources.messages.set(context, resources.page_key(number), page)
    resources.last_turn.set(context, resources.LAST_TURN_KEY, outcome)
    resources.outcomes.set(context, resources.page_key(number), outcome)
    resources.turn_states.delete(context, before.turn_id)
    if state.has_run_state:
        resources.run_states.delete(context, before.turn_id)
    forget_round(context, before)
    write_header(context, header)
    span = flow.tracer.turn(SpanPlace(context.flow_id, before.turn_id), state.started_ms)
    span.describe(
        {
            "gen_ai.usage.input_tokens": state.usage.input_tokens,
            "gen_ai.usage.output_tokens": state.usage.output_tokens,
        },
        {
            "gen_ai.input.messages": _shown("user", state.user_message.get("text", "")),
            "gen_ai.output.messages": _shown(
                "assistant", last.final_text, finish_reason="error" if last.error else "stop"
            ),
        },
    )
    span.end("turn_failed" if last.error else "", last.error)
    resources.turns_done.set(context, (resources.turns_done.get(context) or 0) + 1)
    grow_revision(context)
    return go_to_many(step_options.await_user_message(flow))
