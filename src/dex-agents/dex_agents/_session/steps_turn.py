"""Steps of a turn that run alone in it; only they write the session header."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, StepMovement, StepOptions, Wait, go_to_many

from dex_agents import _failpoints
from dex_agents._contract import (
    AgentMessage,
    ContinueTurn,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    ToolCallRecord,
    ToolCallsRequested,
    TurnCompleted,
)
from dex_agents._errors import AgentTurnError
from dex_agents._session import resources, step_options
from dex_agents._session.encoding import decode, encode
from dex_agents._session.events import StepEvents
from dex_agents._session.failures import clean_text, model_failure, turn_error_text
from dex_agents._session.heartbeat import beating
from dex_agents._session.notes import finished_call, turn_failure_note
from dex_agents._session.pages import read_history
from dex_agents._session.records import (
    CallTask,
    Header,
    LastTurn,
    Round,
    StoredInterrupt,
    TurnState,
    message_from_json,
    message_to_json,
    record_from_json,
)
from dex_agents._session.steps_tools import now_ms

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow


def read_header(context: AsyncContext) -> Header:
    """The session header."""
    stored = resources.header.get(context)
    return Header.from_json(decode(stored)) if stored else Header()


def _write_header(context: AsyncContext, header: Header) -> None:
    resources.header.set(context, encode(header.to_json()))


def _read_records(context: AsyncContext, before: Round) -> list[ToolCallRecord]:
    found = []
    for index in range(before.calls):
        stored = resources.records.get(context, resources.call_key(before.batch, index))
        assert stored, f"call {index} of {before.batch} has no record"
        found.append(record_from_json(decode(stored)))
    return found


def _forget_round(context: AsyncContext, before: Round) -> None:
    for index in range(before.calls):
        resources.records.delete(context, resources.call_key(before.batch, index))
    if before.has_context:
        resources.tool_contexts.delete(context, before.batch)


class AwaitUserMessage(Step[bytes]):
    """Waits for a message of the user and opens a turn with it."""

    def __init__(self, flow: AgentSessionFlow) -> None:
        self._flow = flow

    def get_step_options(self) -> StepOptions:
        return step_options.pure_step()

    async def wait_for(self, context: AsyncContext, input: bytes) -> Wait:
        if "message" in decode(input):
            return Wait.skip_immediately()
        return Wait.until(resources.user_messages.for_one())

    async def execute(self, context: AsyncContext, input: bytes) -> StepDecision:
        message = decode(input).get("message")
        if message is None:
            message = decode(resources.user_messages.results(context)[0])
        header = read_header(context)
        if not header.remember_message(message["id"]):
            # The client sent it again because it did not hear that the first one had arrived.
            return go_to_many(step_options.await_user_message(self._flow))
        header.turns_started += 1
        header.turn_id = f"t{header.turns_started}"
        state = TurnState(message_to_json(self._flow.runner.build_user_message(message["text"])))
        resources.turn_states.set(context, header.turn_id, encode(state.to_json()))
        _write_header(context, header)
        return go_to_many(step_options.run_model(self._flow.options, Round(header.turn_id)))


class RunModel(Step[bytes]):
    """Makes the model call and decides how the turn goes on."""

    def __init__(self, flow: AgentSessionFlow) -> None:
        self._flow = flow

    async def execute(self, context: AsyncContext, input: bytes) -> StepDecision:
        before = Round.from_json(decode(input))
        header = read_header(context)
        stored = resources.turn_states.get(context, before.turn_id)
        assert stored, f"turn {before.turn_id} has no state"
        state = TurnState.from_json(decode(stored))
        records = _read_records(context, before)
        events = StepEvents(self._flow.event_stream, context, before.turn_id)
        try:
            if not before.batch and not state.model_calls and state.run_state is None:
                events.emit("turn_started", text=state.user_message.get("text", ""))
            try:
                outcome = await self._run(context, before, state, records, events)
            except AgentTurnError as error:
                state.finished += [finished_call(record) for record in records]
                return self._fail(context, events, header, state, before, turn_error_text(error))
            state.usage += outcome.usage
            state.model_calls += outcome.usage.model_calls
            if isinstance(outcome, TurnCompleted):
                return self._complete(context, events, header, state, before, outcome)
            state.run_state = outcome.run_state
            state.finished += [finished_call(record) for record in records]
            _forget_round(context, before)
            if isinstance(outcome, ContinueTurn):
                return self._continue(context, before, state)
            return self._pause(context, events, before, state, outcome)
        finally:
            events.close()

    async def _run(
        self,
        context: AsyncContext,
        before: Round,
        state: TurnState,
        records: Sequence[ToolCallRecord],
        events: StepEvents,
    ) -> RunModelOutcome:
        request = RunModelRequest(
            session_id=context.flow_id,
            turn_id=before.turn_id,
            step_execution_id=context.step_execution_id,
            attempt=context.attempt,
            history=read_history(context),
            user_message=state.user_message["framework_item"],
            run_state=state.run_state,
            records=records,
            model_calls_so_far=state.model_calls,
            events=events,
        )
        _failpoints.reach("resume.before" if before.batch else "model.before_call")
        try:
            async with beating(context, self._flow.options.heartbeat_timeout.total_seconds()):
                outcome = await self._flow.runner.run_model(request)
        except AgentTurnError:
            raise
        except Exception as error:
            raise model_failure(error) from None
        _failpoints.reach("resume.after_call" if before.batch else "model.after_call")
        return outcome

    def _complete(
        self,
        context: AsyncContext,
        events: StepEvents,
        header: Header,
        state: TurnState,
        before: Round,
        outcome: TurnCompleted,
    ) -> StepDecision:
        header.last_turn = LastTurn(before.turn_id, outcome.final_text)
        header.usage += state.usage
        events.emit("turn_completed", text=outcome.final_text)
        return end_turn(context, self._flow, header, before, outcome.messages)

    def _fail(
        self,
        context: AsyncContext,
        events: StepEvents,
        header: Header,
        state: TurnState,
        before: Round,
        reason: str,
    ) -> StepDecision:
        events.emit("turn_failed", error=reason)
        return fail_turn(context, self._flow, header, state, before, reason)

    def _continue(self, context: AsyncContext, before: Round, state: TurnState) -> StepDecision:
        resources.turn_states.set(context, before.turn_id, encode(state.to_json()))
        return go_to_many(step_options.run_model(self._flow.options, Round(before.turn_id)))

    def _pause(
        self,
        context: AsyncContext,
        events: StepEvents,
        before: Round,
        state: TurnState,
        outcome: ToolCallsRequested,
    ) -> StepDecision:
        state.rounds += 1
        batch = f"{before.turn_id}.{state.rounds}"
        has_context = outcome.tool_context is not None
        if has_context:
            resources.tool_contexts.set(context, batch, encode(outcome.tool_context))
        movements: list[StepMovement[bytes]] = []
        asked = 0
        uses = Counter(state.call_ids)
        for index, call in enumerate(outcome.calls):
            uses[call.call_id] += 1
            task = CallTask(
                turn_id=before.turn_id,
                batch=batch,
                index=index,
                call=call,
                idempotency_key=_key(context.flow_id, before.turn_id, call, uses[call.call_id]),
                has_context=has_context,
                deadline_s=self._flow.interrupt_deadline_s,
            )
            if call.requires_approval:
                asked += 1
                self._ask(context, events, task)
                movements.append(step_options.await_tool_approval(task))
            else:
                movements.append(step_options.call_tool(self._flow.options, task))
        state.call_ids = dict(uses)
        resources.turn_states.set(context, before.turn_id, encode(state.to_json()))
        if asked:
            resources.revision.set(context, (resources.revision.get(context) or 0) + 1)
        after = Round(before.turn_id, batch, len(outcome.calls), has_context)
        return go_to_many(*movements, step_options.resume_turn(after))

    def _ask(self, context: AsyncContext, events: StepEvents, task: CallTask) -> None:
        now = now_ms()
        interrupt = StoredInterrupt(
            interrupt_id=resources.call_key(task.batch, task.index),
            turn_id=task.turn_id,
            kind="approval",
            tool_name=task.call.tool_name,
            call_id=task.call.call_id,
            arguments=dict(task.call.arguments),
            agent_name=task.call.agent_name,
            hint=task.call.hint,
            requested_ms=now,
            deadline_ms=None if task.deadline_s is None else now + task.deadline_s * 1_000,
        )
        resources.interrupts.set(context, interrupt.interrupt_id, encode(interrupt.to_json()))
        events.emit(
            "interrupt_requested",
            interrupt_id=interrupt.interrupt_id,
            kind=interrupt.kind,
            tool_call_id=task.call.call_id,
            tool_name=interrupt.tool_name,
            arguments=interrupt.arguments,
        )


def _key(flow_id: str, turn_id: str, call: RequestedToolCall, use: int) -> str:
    key = f"{flow_id}/{turn_id}/{call.call_id}"
    return key if use == 1 else f"{key}#{use}"


class ResumeTurn(Step[bytes]):
    """Waits until every call of a response has its record."""

    def __init__(self, flow: AgentSessionFlow) -> None:
        self._flow = flow

    def get_step_options(self) -> StepOptions:
        return step_options.pure_step()

    async def wait_for(self, context: AsyncContext, input: bytes) -> Wait:
        before = Round.from_json(decode(input))
        return Wait.until(resources.finished_calls.for_n(before.batch, before.calls))

    async def execute(self, context: AsyncContext, input: bytes) -> StepDecision:
        before = Round.from_json(decode(input))
        return go_to_many(step_options.run_model(self._flow.options, before))


class FailTurn(Step[bytes]):
    """Ends a turn whose ``RunModel`` has no attempt left."""

    def __init__(self, flow: AgentSessionFlow) -> None:
        self._flow = flow

    async def execute(self, context: AsyncContext, input: bytes) -> StepDecision:
        before = Round.from_json(decode(input))
        header = read_header(context)
        stored = resources.turn_states.get(context, before.turn_id)
        assert stored, f"turn {before.turn_id} has no state"
        state = TurnState.from_json(decode(stored))
        state.finished += [finished_call(record) for record in _read_records(context, before)]
        error = context.recovery_error
        reason = "the model call failed"
        if error is not None:
            reason = error.detail or error.error_type
            if error.error_type == "TASK_TOO_LARGE":
                reason = (
                    f"the session's history no longer fits one task ({reason}); "
                    "compact the session, or start a new one"
                )
        reason = clean_text(reason)
        events = StepEvents(self._flow.event_stream, context, before.turn_id)
        events.emit("turn_failed", error=reason)
        events.close()
        return fail_turn(context, self._flow, header, state, before, reason)


def fail_turn(
    context: AsyncContext,
    flow: AgentSessionFlow,
    header: Header,
    state: TurnState,
    before: Round,
    reason: str,
) -> StepDecision:
    """End a turn without an answer: its message stays, and a note says what its calls did."""
    note = flow.runner.build_user_message(turn_failure_note(reason, state.finished))
    header.last_turn = LastTurn(before.turn_id, "", reason)
    header.usage += state.usage
    return end_turn(context, flow, header, before, [message_from_json(state.user_message), note])


def end_turn(
    context: AsyncContext,
    flow: AgentSessionFlow,
    header: Header,
    before: Round,
    messages: Sequence[AgentMessage],
) -> StepDecision:
    """Store a turn's messages and wait for the next one: one commit."""
    numbered = [
        replace(message, turn_id=before.turn_id, sequence=header.next_sequence + index)
        for index, message in enumerate(messages)
    ]
    header.next_sequence += len(numbered)
    header.turn_id = ""
    number = int(before.turn_id.removeprefix("t"))
    page = encode([message_to_json(message) for message in numbered])
    resources.messages.set(context, resources.page_key(number), page)
    resources.turn_states.delete(context, before.turn_id)
    _forget_round(context, before)
    _write_header(context, header)
    resources.turns_done.set(context, (resources.turns_done.get(context) or 0) + 1)
    resources.revision.set(context, (resources.revision.get(context) or 0) + 1)
    return go_to_many(step_options.await_user_message(flow))
