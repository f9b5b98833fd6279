"""Steps of a turn that run alone in it; only they write the session header.

The SDK takes async handlers; its type hints know only the others, hence ``type: ignore``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from dex import (
    AsyncContext,
    ChannelMessagesNotLoadedError,
    StepDecision,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    force_complete_if_channels_empty,
    go_to_many,
)

from dex_agents import _failpoints
from dex_agents._contract import (
    ContinueTurn,
    RunModelOutcome,
    RunModelRequest,
    ToolCallRecord,
    ToolCallsRequested,
    TurnCompleted,
)
from dex_agents._errors import AgentTurnError
from dex_agents._media.reference import references_from_json
from dex_agents._session import interrupts, resources, steering, step_options
from dex_agents._session.encoding import decode, encode
from dex_agents._session.events import StepEvents
from dex_agents._session.failure_log import tell_failed_attempt
from dex_agents._session.failures import (
    RUNNER_FAILURES,
    clean_text,
    model_failure,
    turn_error_text,
)
from dex_agents._session.heartbeat import (
    MAX_MODEL_CHECKPOINT_BYTES,
    StepHeartbeat,
    keep_alive,
)
from dex_agents._session.lanes import lanes, waits_first
from dex_agents._session.notes import finished_call, open_call
from dex_agents._session.outcomes import check_outcome, check_size, encoded
from dex_agents._session.pages import read_history, read_removal_note, read_summary
from dex_agents._session.records import (
    CallTask,
    FinishedCall,
    Header,
    LastTurn,
    Round,
    TurnState,
    message_digest,
    message_to_json,
)
from dex_agents._session.results import shown_output
from dex_agents._session.session_step import SessionStep, attempt_place
from dex_agents._session.steps_compact import needs_compaction
from dex_agents._session.steps_tools import (
    call_fields,
    now_ms,
    stored_interrupt,
    wait_movement,
)
from dex_agents._session.turn_end import (
    build_user_message,
    end_turn,
    fail_turn,
    forget_round,
    grow_revision,
    read_header,
    read_turn_state,
    store_state,
    write_header,
)
from dex_agents._stored_record import record_from_json
from dex_agents._tracing import describe_model_call, end_without_answer

if TYPE_CHECKING:
    pass


class AwaitUserMessage(SessionStep):
    """Waits for a message of the user and opens a turn with it."""

    def get_step_options(self) -> StepOptions:
        return step_options.wait_for_message()

    async def wait_for(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> Wait:
        if "message" in decode(input):
            return Wait.skip_immediately()
        arrived = resources.user_messages.for_one()
        lifetime = self._flow.options.idle_lifetime
        if lifetime is None:
            return Wait.until(arrived)
        return Wait.any_of(arrived, Timer.by_duration(lifetime))

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        if resources.closing.get(context):
            return dead_end()
        given = decode(input)
        message = given.get("message")
        if message is None:
            arrived = resources.user_messages.results(context)
            if not arrived:
                # Its lifetime is over. A message that is stored first, up to this commit, counts.
                again = step_options.await_user_message(self._flow)
                return force_complete_if_channels_empty(None, again, resources.user_messages)
            message = decode(arrived[0])
            resources.accepted.delete(context, message_digest(message["id"]))
            if steering.was_taken(context, message):
                return go_to_many(step_options.await_user_message(self._flow))
        _failpoints.reach("message.before", context.flow_id)
        header = read_header(context)
        if not header.remember_message(message, header.turns_started + 1):
            # The client sent it again because it did not hear that the first one had arrived.
            return go_to_many(step_options.await_user_message(self._flow))
        if "state" in given:
            store_state(context, self._flow, header, given["state"])
        header.turns_started += 1
        interrupts.forget_before(context, header.turns_started)
        _forget_messages(context)
        header.turn_id = f"t{header.turns_started}"
        images = references_from_json(message.get("images"))
        built = build_user_message(self._flow, message["text"], images)
        state = TurnState(message_to_json(built), started_ms=now_ms())
        resources.turn_states.set(context, header.turn_id, encode(state.to_json()))
        write_header(context, header)
        _failpoints.reach("message.before_commit", context.flow_id)
        begin = Round(
            header.turn_id, summarized_turns=header.summarized_turns, removed=header.removed
        )
        if needs_compaction(self._flow, header):
            return go_to_many(step_options.compact_history(self._flow, begin))
        return go_to_many(step_options.run_model(self._flow.options, begin))


def _forget_messages(context: AsyncContext) -> None:
    """Drop the messages of Steps that were cancelled: every task of a session counts its Channels."""
    # A Step of an earlier release comes without them; the next one has them.
    with contextlib.suppress(ChannelMessagesNotLoadedError):
        for channels in resources.OF_A_TURN:
            for name in channels.get_all_instance_keys(context):
                for message in channels.pending_messages(context, name):
                    channels.delete(context, name, message.message_id)


class RunModel(SessionStep):
    """Makes the model call and decides how the turn goes on."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        before = Round.from_json(decode(input))
        header = read_header(context)
        state = read_turn_state(context, before.turn_id)
        records = _read_records(context, before)
        state.finished += [finished_call(record) for record in records]
        steered = list(state.steered)
        offered = self._offered(context, header, state)
        events = StepEvents(self._flow.event_stream, context, before.turn_id)
        try:
            if not before.batch and not state.has_run_state:
                events.emit("turn_started", text=state.user_message.get("text", ""))
            events.emit("model_call_started")
            try:
                outcome = await self._run(context, before, state, records, events, offered)
                state.usage += outcome.usage
                state.model_calls += outcome.usage.model_calls
                state.agents = list(dict.fromkeys(outcome.metadata.agent_names))
                if not outcome.took_steering:
                    offered = []
                steering.note_taken(header, state, offered)
                calls = outcome.calls if isinstance(outcome, ToolCallsRequested) else ()
                events.emit("model_call_finished", **asdict(outcome.usage), calls=len(calls))
                decision = self._go_on(context, events, header, state, before, outcome)
                for call in calls:
                    events.emit(
                        "tool_call_requested", **call_fields(call), arguments=dict(call.arguments)
                    )
                if offered:
                    write_header(context, header)
                    steering.store_taken(context, offered)
                return decision
            except AgentTurnError as error:
                # Nothing is written before the last thing that can raise this. What the model was
                # told in vain opens the next turn.
                header, state.steered = read_header(context), steered
                reason = turn_error_text(error)
                events.emit("turn_failed", error=reason)
                return fail_turn(context, self._flow, header, state, before, reason)
        finally:
            events.close()

    async def _run(
        self,
        context: AsyncContext,
        before: Round,
        state: TurnState,
        records: Sequence[ToolCallRecord],
        events: StepEvents,
        offered: Sequence[steering.Offered],
    ) -> RunModelOutcome:
        stored = resources.run_states.get(context, before.turn_id) if state.has_run_state else None
        heartbeat = StepHeartbeat(context, MAX_MODEL_CHECKPOINT_BYTES)
        request = RunModelRequest(
            session_id=context.flow_id,
            turn_id=before.turn_id,
            step_execution_id=context.step_execution_id,
            attempt=context.attempt,
            history=read_history(context, before),
            user_message=state.user_message["framework_item"],
            run_state=decode(stored) if stored else None,
            records=records,
            model_calls_so_far=state.model_calls,
            events=events,
            summary=read_summary(context, before),
            steering=[item.message.framework_item for item in offered],
            removed=read_removal_note(context, before),
            checkpoint=heartbeat,
        )
        _failpoints.reach("model.before_call", context.flow_id)
        span = self._flow.tracer.chat(
            attempt_place(context, before.turn_id), is_compacted=request.summary is not None
        )
        try:
            outcome = await keep_alive(
                heartbeat.beat,
                self._flow.options.heartbeat_timeout.total_seconds(),
                self._flow.runner.run_model(request),
            )
            check_outcome(outcome)
            describe_model_call(span, outcome.metadata, outcome.usage)
            if outcome.usage.model_calls:
                span.end()
            else:
                span.drop()
        except AgentTurnError as error:
            span.end(type(error).__name__, turn_error_text(error))
            raise
        except RUNNER_FAILURES as error:
            failure = model_failure(error, is_told=True)
            events.emit("model_call_failed", error=str(failure))
            attempts = self._flow.options.model_attempts
            tell_failed_attempt(context, before.turn_id, "a model call", attempts, failure, error)
            end_without_answer(span, type(error).__name__, str(failure))
            raise failure from None
        finally:
            end_without_answer(span, "cancelled")
        _failpoints.reach("model.after_call", context.flow_id)
        return outcome

    def _offered(
        self, context: AsyncContext, header: Header, state: TurnState
    ) -> list[steering.Offered]:
        offered: list[steering.Offered] = []
        ids: set[str] = set()
        for key, message in steering.waiting(context):
            if message["id"] in ids or header.content_of(message["id"]) is not None:
                continue  # sent twice, in an earlier release; its place in the queue is dropped
            ids.add(message["id"])
            built = build_user_message(self._flow, message["text"])
            more = [*offered, steering.Offered(key, message, built)]
            if not steering.has_room(state, more):
                break
            offered = more
        return offered

    def _go_on(
        self,
        context: AsyncContext,
        events: StepEvents,
        header: Header,
        state: TurnState,
        before: Round,
        outcome: RunModelOutcome,
    ) -> StepDecision:
        if isinstance(outcome, TurnCompleted):
            encoded("output", outcome.output)
            last = LastTurn(
                before.turn_id,
                outcome.final_text,
                output=outcome.output,
                agents=state.agents,
            )
            decision = end_turn(context, self._flow, header, state, before, outcome.messages, last)
            output = {} if outcome.output is None else {"output": shown_output(outcome.output)}
            events.emit("turn_completed", text=outcome.final_text, **output)
            return decision
        if isinstance(outcome, ContinueTurn):
            return self._continue(context, before, state, outcome)
        return self._pause(context, before, state, outcome)

    def _continue(
        self, context: AsyncContext, before: Round, state: TurnState, outcome: ContinueTurn
    ) -> StepDecision:
        run_state = encoded("run_state", outcome.run_state)
        state.open_calls = []
        stored = _paused_state(state)
        check_size("the run state of this turn and what its calls did", (run_state, stored))
        self._store(context, before, state, run_state, stored)
        after = replace(before, batch="", calls=0, has_context=False)
        return go_to_many(step_options.run_model(self._flow.options, after))

    def _pause(
        self, context: AsyncContext, before: Round, state: TurnState, outcome: ToolCallsRequested
    ) -> StepDecision:
        state.rounds += 1
        batch = f"{before.turn_id}.{state.rounds}"
        has_context = outcome.tool_context is not None
        tool_context = encoded("tool_context", outcome.tool_context) if has_context else b""
        run_state = encoded("run_state", outcome.run_state)
        tasks = self._tasks(context.flow_id, state, batch, before.turn_id, has_context, outcome)
        starting = lanes(tasks, self._flow.options.max_parallel_calls)
        questions = {
            task.interrupt_id: encoded("a call", stored_interrupt(task).to_json())
            for task in starting
            if waits_first(task)
        }
        started = {task.index for task in starting}
        unstarted = {
            task.interrupt_id
            for task in tasks
            if task.call.is_ordered_write and task.index not in started
        }
        calls = [encoded(f"a call of {task.call.tool_name}", task.to_json()) for task in tasks]
        state.open_calls = [
            open_call(call.call_id, call.tool_name, call.effect) for call in outcome.calls
        ]
        state.has_context = has_context
        stored = _paused_state(state)
        check_size(
            "the calls of this response and what they need",
            (tool_context, run_state, stored, *questions.values(), *calls),
        )
        self._store(context, before, state, run_state, stored)
        if has_context:
            resources.tool_contexts.set(context, batch, tool_context)
        for interrupt_id, question in questions.items():
            interrupts.store(context, interrupt_id, question)
        for interrupt_id in (*questions, *sorted(unstarted)):
            resources.unapproved.set(context, interrupt_id, encode(None))
        if questions:
            grow_revision(context)
        after = replace(before, batch=batch, calls=len(tasks), has_context=has_context)
        return go_to_many(*map(self._movement, starting), step_options.resume_turn(after))

    def _tasks(
        self,
        flow_id: str,
        state: TurnState,
        batch: str,
        turn_id: str,
        has_context: bool,
        outcome: ToolCallsRequested,
    ) -> list[CallTask]:
        allowed_s = self._flow.interrupt_deadline_s
        deadline_ms = None if allowed_s is None else now_ms() + allowed_s * 1_000
        return [
            CallTask(
                turn_id=turn_id,
                batch=batch,
                index=index,
                call=call,
                idempotency_key=f"{flow_id}/{turn_id}/{state.name_call(call.call_id)}",
                has_context=has_context,
                calls=len(outcome.calls),
                deadline_ms=deadline_ms,
                interrupt=call.interrupt,
            )
            for index, call in enumerate(outcome.calls)
        ]

    def _movement(self, task: CallTask) -> StepMovement[bytes]:
        if waits_first(task):
            return wait_movement(task)
        return step_options.call_tool(self._flow.options, task)

    def _store(
        self,
        context: AsyncContext,
        before: Round,
        state: TurnState,
        run_state: bytes,
        turn_state: bytes,
    ) -> None:
        resources.run_states.set(context, before.turn_id, run_state)
        resources.turn_states.set(context, before.turn_id, turn_state)
        forget_round(context, before)


def _paused_state(state: TurnState) -> bytes:
    """A turn as it is stored together with its run state."""
    return encode({**state.to_json(), "has_run_state": True})


def _read_records(context: AsyncContext, before: Round) -> list[ToolCallRecord]:
    found = []
    for index in range(before.calls):
        stored = resources.records.get(context, resources.call_key(before.batch, index))
        assert stored, f"call {index} of {before.batch} has no record"
        found.append(record_from_json(decode(stored)))
    return found


class ResumeTurn(SessionStep):
    """Waits until every call of a response has its record."""

    def get_step_options(self) -> StepOptions:
        return step_options.pure_step()

    async def wait_for(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> Wait:
        before = Round.from_json(decode(input))
        return Wait.until(resources.finished_calls.for_n(before.batch, before.calls))

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        _failpoints.reach("resume.before", context.flow_id)
        before = Round.from_json(decode(input))
        return go_to_many(step_options.run_model(self._flow.options, before))


class FailTurn(SessionStep):
    """Ends a turn whose ``RunModel`` has no attempt left."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        before = Round.from_json(decode(input))
        header = read_header(context)
        state = read_turn_state(context, before.turn_id)
        for index in range(before.calls):
            stored = resources.call_notes.get(context, resources.call_key(before.batch, index))
            if stored:
                state.finished.append(FinishedCall.from_json(decode(stored)))
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
