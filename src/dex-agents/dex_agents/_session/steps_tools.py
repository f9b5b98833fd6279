"""Steps of one call: approval, the tool itself, and the record when no attempt is left."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dex import (
    AsyncContext,
    StepDecision,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to_many,
)

from dex_agents import _failpoints
from dex_agents._contract import (
    DeferredToolExecution,
    InterruptKind,
    InterruptRequest,
    Json,
    RequestedToolCall,
    ToolCallRecord,
    ToolCallStatus,
    ToolExecutionResult,
)
from dex_agents._errors import (
    ToolExecutionError,
    ToolNotStartedError,
    ToolOutcomeUnknownError,
)
from dex_agents._session import interrupts, resources, step_options
from dex_agents._session.encoding import decode, encode
from dex_agents._session.events import StepEvents
from dex_agents._session.failure_log import tell_failed_attempt
from dex_agents._session.failures import (
    MAX_MODEL_TEXT_BYTES,
    RUNNER_FAILURES,
    clean_text,
    message_of,
    not_run_record,
    record_after_failure,
    tool_failure,
    unknown_record,
)
from dex_agents._session.heartbeat import StepHeartbeat, keep_alive
from dex_agents._session.lanes import skipped_record, split_skipped, waits_first
from dex_agents._session.notes import finished_call
from dex_agents._session.records import CallTask, StoredInterrupt, arguments_digest
from dex_agents._session.results import (
    fit_interrupt,
    result_limit,
    shown_output,
    succeeded_record,
)
from dex_agents._session.session_step import SessionStep, attempt_place
from dex_agents._stored_record import record_to_json

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow

EXPIRED_TEXT = "Nobody approved this tool call before its deadline, so it was not run."
AFTER_THE_WAIT = 1  # WaitFor and Execute of one Step execution share their events' numbers
REJECTED_TEXT = "The user rejected this tool call, so it was not run."


def finish(
    context: AsyncContext,
    flow: AgentSessionFlow,
    task: CallTask,
    record: ToolCallRecord,
    events: StepEvents,
) -> StepDecision:
    """Store a call's record and tell the Step that waits for it: one commit."""
    if task.edited_arguments is not None:
        record = replace(record, edited_arguments=task.edited_arguments)
    _store(context, task, record, events)
    skipped, following = split_skipped(task, record)
    for other in skipped:
        _store(context, other, skipped_record(other), events)
        resources.unapproved.delete(context, other.interrupt_id)
    movements = start_following(context, flow, following)
    return go_to_many(*movements) if movements else dead_end()


def _store(
    context: AsyncContext, task: CallTask, record: ToolCallRecord, events: StepEvents
) -> None:
    finished_event(events, task, record)
    key = resources.call_key(task.batch, task.index)
    resources.records.set(context, key, encode(record_to_json(record)))
    resources.call_notes.set(context, key, encode(finished_call(record).to_json()))
    resources.finished_calls.publish(context, task.batch, task.index)


def start_following(
    context: AsyncContext, flow: AgentSessionFlow, following: Sequence[CallTask]
) -> list[StepMovement[bytes]]:
    """To the call that has waited for another one, if any."""
    if not following:
        return []
    first, *rest = following
    task = replace(first, following=tuple(rest))
    if waits_first(task):
        return [_ask(context, flow, task)]
    if task.call.is_ordered_write:
        resources.unapproved.delete(context, task.interrupt_id)  # from now on it may have run
    return [step_options.call_tool(flow.options, task)]


def _ask(context: AsyncContext, flow: AgentSessionFlow, task: CallTask) -> StepMovement[bytes]:
    """To the wait for an answer, which somebody can give from this commit on."""
    allowed_s = flow.interrupt_deadline_s
    asking = replace(task, deadline_ms=None if allowed_s is None else now_ms() + allowed_s * 1_000)
    interrupts.store(context, asking.interrupt_id, encode(stored_interrupt(asking).to_json()))
    # Steps side by side may write this, so it does not count on what they have read.
    revision = resources.revision.get(context) or 0
    resources.revision.set(context, max(revision + 1, now_ms()))
    return wait_movement(asking)


def wait_movement(task: CallTask) -> StepMovement[bytes]:
    """To the wait for what a call needs before its tool runs."""
    if task.interrupt is not None:
        return step_options.await_answer(task)
    return step_options.await_tool_approval(task)


def call_fields(call: RequestedToolCall) -> dict[str, Json]:
    """What live events say about a call."""
    return {
        "tool_call_id": call.call_id,
        "tool_name": call.tool_name,
        "agent_name": call.agent_name,
    }


def finished_event(events: StepEvents, task: CallTask, record: ToolCallRecord) -> None:
    """Tell how a call ended, with its result as far as that is short."""
    if record.status is ToolCallStatus.SUCCEEDED:
        result = {"output": shown_output(record.output)}
    else:
        result = {"error": clean_text(record.error or record.rejection_message)}
    events.emit("tool_call_finished", **call_fields(task.call), status=str(record.status), **result)


class AwaitInterrupt(SessionStep):
    """Waits until somebody answers, or the deadline passes."""

    def get_step_options(self) -> StepOptions:
        return step_options.pure_step()

    async def wait_for(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> Wait:
        task = CallTask.from_json(decode(input))
        _failpoints.reach("approval.open", context.flow_id)
        # Told here and not by the Step before, whose commit made the interrupt answerable.
        events = StepEvents(self._flow.event_stream, context, task.turn_id)
        asked = stored_interrupt(task)
        events.emit(
            "interrupt_requested",
            **call_fields(task.call),
            interrupt_id=asked.interrupt_id,
            kind=asked.kind,
            arguments=asked.arguments,
            arguments_digest=arguments_digest(asked.tool_name, asked.arguments),
            hint=asked.hint,
            payload=asked.payload,
            response_schema=asked.response_schema,
            deadline_ms=asked.deadline_ms,
        )
        events.close()
        answered = resources.answers.for_one(task.interrupt_id)
        if task.deadline_ms is None:
            return Wait.until(answered)
        left = max(1, math.ceil((task.deadline_ms - now_ms()) / 1_000))
        return Wait.any_of(answered, Timer.by_duration(timedelta(seconds=left)))


class AwaitToolApproval(AwaitInterrupt):
    """Waits until a person approves or rejects a call before its tool runs."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        task = CallTask.from_json(decode(input))
        _failpoints.reach("interrupt.answered", context.flow_id)
        # An answer that was accepted counts, also when the timer fired meanwhile.
        answer = interrupts.take_in(context, task.interrupt_id)
        _failpoints.reach("approval.before_commit", context.flow_id)
        if answer is not None and answer.get("approved"):
            # The call itself stays as the model made it, beside what it was changed to.
            task = replace(task, edited_arguments=answer.get("arguments"))
            return go_to_many(step_options.call_tool(self._flow.options, task))
        message = EXPIRED_TEXT if answer is None else answer.get("message") or REJECTED_TEXT
        record = ToolCallRecord(
            task.call.call_id,
            task.call.tool_name,
            ToolCallStatus.REJECTED,
            rejection_message=str(message),
        )
        events = StepEvents(
            self._flow.event_stream, context, task.turn_id, first_seq=AFTER_THE_WAIT
        )
        decision = finish(context, self._flow, task, record, events)
        events.close()
        return decision


class _ToolStep(SessionStep):
    """Runs a tool once in each attempt."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        task = CallTask.from_json(decode(input))
        tool_context = None
        if task.has_context:
            stored = resources.tool_contexts.get(context, task.batch)
            tool_context = decode(stored) if stored else None
        events = StepEvents(self._flow.event_stream, context, task.turn_id)
        heartbeat = StepHeartbeat(context)
        try:
            events.emit(
                "tool_call_started", **call_fields(task.call), arguments=dict(_arguments(task))
            )
            await heartbeat.send()
            record = await self._run(context, task, tool_context, heartbeat, events)
            _failpoints.reach("tool.after_call", context.flow_id)
            if isinstance(record, InterruptRequest):
                return wait_for_answer(context, self._flow, task, record)
            return finish(context, self._flow, task, record, events)
        finally:
            events.close()

    async def _run(
        self,
        context: AsyncContext,
        task: CallTask,
        tool_context: object,
        heartbeat: StepHeartbeat,
        events: StepEvents,
    ) -> ToolCallRecord | InterruptRequest:
        call = task.call
        options = self._flow.options
        limit = result_limit(options.max_result_bytes, task.calls)
        execution = DeferredToolExecution(
            session_id=context.flow_id,
            turn_id=task.turn_id,
            call_id=call.call_id,
            tool_name=call.tool_name,
            arguments=_arguments(task),
            effect=call.effect,
            agent_name=call.agent_name,
            step_execution_id=context.step_execution_id,
            attempt=context.attempt,
            idempotency_key=task.idempotency_key,
            tool_context=tool_context,
            framework_data=call.framework_data,
            answer=task.answer,
            checkpoint=heartbeat,
            events=events,
        )
        _failpoints.reach("tool.before_call", context.flow_id)
        place = attempt_place(context, task.turn_id)
        span = self._flow.tracer.tool(
            place, call.tool_name, call.call_id, dict(execution.arguments), call.agent_name
        )
        try:
            result = await keep_alive(
                heartbeat.beat,
                options.heartbeat_timeout.total_seconds(),
                self._flow.runner.execute_deferred_tool_call(execution),
            )
            if isinstance(result, ToolExecutionResult):
                span.describe({}, {"gen_ai.tool.call.result": result.output})
            span.end()
        except ToolNotStartedError as error:
            span.end(type(error).__name__)
            if context.attempt > 1:
                # It says nothing about the attempts before, one of which may have run.
                raise tool_failure(error) from None
            return not_run_record(task, message_of(error, limit // 2), context.attempt)
        except ToolExecutionError as error:
            span.end(type(error).__name__, message_of(error))
            return ToolCallRecord(
                call.call_id,
                call.tool_name,
                ToolCallStatus.FAILED,
                error=message_of(error, min(MAX_MODEL_TEXT_BYTES, limit // 2)),
                attempt=context.attempt,
            )
        except ToolOutcomeUnknownError as error:
            span.end(type(error).__name__, message_of(error))
            return unknown_record(
                task, message_of(error, min(MAX_MODEL_TEXT_BYTES, limit // 2)), context.attempt
            )
        except RUNNER_FAILURES as error:
            failure = tool_failure(error, is_told=True)
            # What leaves the Step has no traceback of the tool any more; one is enough.
            tell_failed_attempt(
                context,
                task.turn_id,
                f"tool {call.tool_name}",
                step_options.tool_attempts(task),
                failure,
                error,
                is_traced=context.attempt == 1,
            )
            span.end(type(error).__name__, str(failure))
            raise failure from None
        finally:
            span.end("cancelled")
        interrupt = getattr(result, "interrupt", None)
        if isinstance(interrupt, InterruptRequest):
            return fit_interrupt(call.tool_name, interrupt, limit)
        return succeeded_record(task, result, context.attempt, limit)


class CallTool(_ToolStep):
    """A read or an idempotent write: up to three attempts."""


class CallSingleAttemptTool(_ToolStep):
    """A call that must not run twice: one attempt."""


class RecordToolOutcome(SessionStep):
    """Turns a tool Step without attempts left into the call's record."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        task = CallTask.from_json(decode(input))
        _failpoints.reach("outcome.before", context.flow_id)
        error = context.recovery_error
        record = record_after_failure(
            task,
            error.error_type if error is not None else "",
            error.detail if error is not None else "the cause is not known",
        )
        events = StepEvents(self._flow.event_stream, context, task.turn_id)
        decision = finish(context, self._flow, task, record, events)
        events.close()
        _failpoints.reach("outcome.before_commit", context.flow_id)
        return decision


def wait_for_answer(
    context: AsyncContext, flow: AgentSessionFlow, task: CallTask, interrupt: InterruptRequest
) -> StepDecision:
    """Ask for what a call waits for, in the commit that ends its Step."""
    waiting = replace(task, interrupt=interrupt, waits=task.waits + 1)
    following: Sequence[CallTask] = ()
    if not task.call.is_ordered_write:
        waiting, following = replace(waiting, following=()), task.following
    return go_to_many(_ask(context, flow, waiting), *start_following(context, flow, following))


def stored_interrupt(task: CallTask) -> StoredInterrupt:
    """What a person is asked about a call."""
    asked = task.interrupt
    return StoredInterrupt(
        interrupt_id=task.interrupt_id,
        turn_id=task.turn_id,
        kind=str(asked.kind if asked else InterruptKind.APPROVAL),
        tool_name=task.call.tool_name,
        call_id=task.call.call_id,
        arguments=dict(_arguments(task)),  # what will run
        agent_name=task.call.agent_name,
        hint=(asked.hint if asked else "") or task.call.hint,
        requested_ms=now_ms(),
        deadline_ms=task.deadline_ms,
        payload=asked.payload if asked else None,
        response_schema=asked.response_schema if asked else None,
        node_path=task.call.node_path,
    )


def _arguments(task: CallTask) -> Mapping[str, Json]:
    return task.call.arguments if task.edited_arguments is None else task.edited_arguments


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
