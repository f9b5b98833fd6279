"""A run's history, read from its facts. An event's id is the number of its fact.

What a fact does not say of its Step is read from the state before it. The Attributes that a method saw are left out:
every event would hold all of them, and what wrote them is in the events before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.facts import (
    AnyFact,
    AttributesWritten,
    ExternallyDeleted,
    ExternallyPublished,
    LocalsKept,
    MessagesDeleted,
    MessagesPublished,
    MethodCompleted,
    MethodFailed,
    OutputAdded,
    RpcApplied,
    RunClosed,
    RunForked,
    RunStarted,
    StepLeft,
    StepScheduled,
    WaitBegun,
)
from dex_lite._machine.fold import fold
from dex_lite._machine.model import (
    Failure,
    Method,
    Movement,
    Output,
    RunState,
    StepExecution,
    Value,
)
from dex_lite._wire.options import NULL
from dex_lite._wire.tasks import add_kvs, fill_condition_results

_TIMEOUT_POLICIES: dict[str, pb.FlowTimeoutPolicy] = {
    "fail": pb.FLOW_TIMEOUT_POLICY_FAIL,
    "cancel": pb.FLOW_TIMEOUT_POLICY_CANCEL,
    "handler": pb.FLOW_TIMEOUT_POLICY_HANDLER,
}


class HistoryReader:
    """Turns facts into events; facts must come from the first one on, in order."""

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._seen_locals: dict[str, Value] | None = None  # before those that the method kept
        self._attributes: list[pb.AttributeWrite] = []
        self._published: list[pb.ChannelMessage] = []
        self._deleted: list[pb.ChannelMessageDeletion] = []
        self._locals: list[pb.KV] = []
        self._outputs: list[Output] = []
        self._run_attempt = 1
        self._open: pb.FlowHistoryEvent | None = None  # a completed method: its next Steps follow

    def read(self, facts: Iterable[tuple[int, AnyFact]]) -> Iterator[pb.FlowHistoryEvent]:
        """Events in order. The last one may still be waiting for facts that follow; see :meth:`rest`."""
        for number, fact in facts:
            yield from self._one(number, fact)
            self._state = fold(self._state, fact)

    def rest(self) -> Iterator[pb.FlowHistoryEvent]:
        """The event that was held back for facts behind it."""
        if self._open is not None:
            yield self._open
            self._open = None

    def _one(self, number: int, fact: AnyFact) -> Iterator[pb.FlowHistoryEvent]:
        if isinstance(fact, AttributesWritten):
            yield from self.rest()
            self._attributes = [_attribute(key, value) for key, value in fact.writes]
        elif isinstance(fact, MessagesPublished):
            yield from self.rest()
            self._published = [
                pb.ChannelMessage(
                    channel_name=channel, message_id=message_id, value=pb.Value.FromString(value)
                )
                for channel, message_id, value in fact.messages
            ]
        elif isinstance(fact, MessagesDeleted):
            yield from self.rest()
            self._deleted = [
                pb.ChannelMessageDeletion(channel_name=channel, message_id=message_id)
                for channel, message_id in fact.messages
            ]
        elif isinstance(fact, LocalsKept):
            self._seen_locals = dict(self._step(fact.execution_id).step_locals)
            self._locals = [
                pb.KV(key=key, value=pb.Value.FromString(value)) for key, value in fact.values
            ]
        elif isinstance(fact, StepScheduled):
            self._add_next_step(fact)
        elif isinstance(fact, WaitBegun):
            if self._open is not None:
                output = self._open.step_wait_for_completed.output
                output.wait_for_condition.ParseFromString(fact.condition.raw)
        elif isinstance(fact, OutputAdded):
            self._outputs.append(fact.output)
            self._add_close_input(fact.output)
        else:
            event = self._event(number, fact)
            if event is not None:
                yield from self.rest()
                if isinstance(fact, MethodCompleted | RpcApplied):
                    self._open = event
                else:
                    yield event

    def _event(self, number: int, fact: AnyFact) -> pb.FlowHistoryEvent | None:
        if isinstance(fact, RunStarted):
            self._run_attempt = fact.run_attempt
        event = pb.FlowHistoryEvent(event_id=number, run_attempt=self._run_attempt)
        if isinstance(fact, RunStarted):
            _fill_start(event.flow_started_or_continued, fact)
            event.event_time.FromMilliseconds(fact.at)
        elif isinstance(fact, MethodCompleted):
            self._fill_completed(event, fact)
        elif isinstance(fact, MethodFailed):
            self._fill_failed(event, fact)
        elif isinstance(fact, StepLeft):
            self._fill_left(event, fact)
        elif isinstance(fact, RpcApplied):
            self._fill_rpc(event.rpc_execution_completed, fact)
            event.event_time.FromMilliseconds(fact.at)
        elif isinstance(fact, ExternallyPublished):
            event.channel_external_publish.messages.extend(self._published)
            event.event_time.FromMilliseconds(fact.at)
            self._published = []
        elif isinstance(fact, ExternallyDeleted):
            event.channel_external_delete.messages.extend(self._deleted)
            event.event_time.FromMilliseconds(fact.at)
            self._deleted = []
        elif isinstance(fact, RunForked):
            travel = event.time_travel_fork
            travel.previous_run_id = fact.previous_run_id
            travel.previous_run_attempt = fact.previous_run_attempt
            travel.target_run_attempt = fact.previous_run_attempt
            travel.target_event_id = fact.target
            event.event_time.FromMilliseconds(fact.at)
        elif isinstance(fact, RunClosed):
            closed = event.flow_closed
            closed.flow_status = fact.status  # type: ignore[assignment]
            closed.error_type = fact.error_type  # type: ignore[assignment]
            closed.error_message = fact.error_message
            closed.results.extend(_output(output) for output in self._outputs)
            event.event_time.FromMilliseconds(fact.at)
        else:
            return None
        return event

    def _fill_completed(self, event: pb.FlowHistoryEvent, fact: MethodCompleted) -> None:
        event.event_time.FromMilliseconds(fact.at)
        completed: pb.StepWaitForCompletedEvent | pb.StepExecuteCompletedEvent
        if fact.method == "wait_for":
            completed = event.step_wait_for_completed
        else:
            completed = event.step_execute_completed
        completed.output.MergeFromString(fact.output)
        completed.output.upsert_attributes.extend(self._attributes)
        completed.output.publish_to_channel.extend(self._published)
        completed.output.delete_from_channel.extend(self._deleted)
        completed.output.upsert_step_execution_locals.extend(self._locals)
        self._attributes, self._published, self._deleted, self._locals = [], [], [], []
        step = self._step(fact.execution_id)
        self._fill_input(completed.input, step, fact.method)
        _fill_context(completed.context, fact, step)
        completed.context.pull_routing.served_by_app_worker_id = fact.worker_id
        if step.failure is not None:
            _fill_failure(completed.context.last_failure_info, step.failure)

    def _fill_failed(self, event: pb.FlowHistoryEvent, fact: MethodFailed) -> None:
        event.event_time.FromMilliseconds(fact.at)
        failed: pb.StepWaitForFailedEvent | pb.StepExecuteFailedEvent
        if fact.method == "wait_for":
            failed = event.step_wait_for_failed
        else:
            failed = event.step_execute_failed
        step = self._step(fact.execution_id)
        self._fill_input(failed.input, step, fact.method)
        _fill_context(failed.context, fact, step)
        _fill_failure(failed.output.failure, fact.failure)
        failed.context.last_failure_info.CopyFrom(failed.output.failure)

    def _fill_left(self, event: pb.FlowHistoryEvent, fact: StepLeft) -> None:
        step = self._step(fact.execution_id)
        is_wait_for = step.method == "wait_for"
        left = event.step_wait_for_pending if is_wait_for else event.step_execute_pending
        started = step.first_attempt_ms or step.scheduled_ms
        event.event_time.FromMilliseconds(fact.at)
        left.phase = (
            pb.PENDING_STEP_METHOD_PHASE_STARTED
            if step.first_attempt_ms
            else pb.PENDING_STEP_METHOD_PHASE_SCHEDULED
        )
        self._fill_input(left.input, step, step.method)
        _fill_times(left.context, step, step.method, max(1, step.attempts_used), started, fact.at)
        if step.failure is not None:
            _fill_failure(left.context.last_failure_info, step.failure)

    def _step(self, execution_id: str) -> StepExecution:
        assert self._state is not None
        return self._state.steps[execution_id]

    def _fill_input(
        self, target: pb.StepMethodEventInput, step: StepExecution, method: Method
    ) -> None:
        if step.movement.step_input:  # the handler of a timeout has none
            target.step_input.ParseFromString(step.movement.step_input)
        if method == "execute":
            seen = step.step_locals if self._seen_locals is None else self._seen_locals
            add_kvs(target.step_execution_locals, seen)
            fill_condition_results(target, step)
        self._seen_locals = None

    def _fill_rpc(self, event: pb.RpcExecutionCompletedEvent, fact: RpcApplied) -> None:
        event.MergeFromString(fact.output)
        event.rpc_name = fact.name
        if fact.rpc_input:
            event.input.ParseFromString(fact.rpc_input)
        event.upsert_attributes.extend(self._attributes)
        event.publish_to_channel.extend(self._published)
        event.delete_from_channel.extend(self._deleted)
        event.is_set_attribute_api = fact.is_set_attributes
        event.served_by_app_worker_id = fact.worker_id
        self._attributes, self._published, self._deleted = [], [], []

    def _add_next_step(self, fact: StepScheduled) -> None:
        if self._open is None or fact.recovery is not None:
            return
        if self._open.HasField("step_execute_completed"):
            decision = self._open.step_execute_completed.output.step_decision
        elif self._open.HasField("rpc_execution_completed"):
            decision = self._open.rpc_execution_completed.step_decision
        else:
            return
        decision.next_steps.append(movement_message(fact.movement, fact.source_id))

    def _add_close_input(self, output: Output) -> None:
        if self._open is not None and self._open.HasField("step_execute_completed"):
            decision = self._open.step_execute_completed.output.step_decision
            decision.close_decision.close_input.ParseFromString(output.value)


def movement_message(movement: Movement, source_id: str = "") -> pb.StepMovement:
    """A movement as the wire shows it."""
    return pb.StepMovement(
        step_type=movement.step_type,
        step_input=pb.Value.FromString(movement.step_input or NULL),
        step_options=pb.StepOptions.FromString(movement.options.raw),
        from_step_execution_id_internal_only=source_id,
    )


def _attribute(key: str, value: Value | None) -> pb.AttributeWrite:
    if value is None:
        return pb.AttributeWrite(key=key, value=pb.Value.FromString(NULL))
    return pb.AttributeWrite(key=key, value=pb.Value.FromString(value))


def _output(output: Output) -> pb.StepCompletionOutput:
    return pb.StepCompletionOutput(
        completed_step_type=output.step_type,
        completed_step_execution_id=output.execution_id,
        completed_step_output=pb.Value.FromString(output.value),
    )


def _fill_start(event: pb.FlowStartedOrContinuedHistoryEvent, fact: RunStarted) -> None:
    event.flow_execution_id.flow_id = fact.flow_id
    event.flow_execution_id.run_id = fact.run_id
    event.flow_type = fact.flow_type
    event.flow_config.ParseFromString(fact.config)
    if fact.timeout is not None:
        event.flow_timeout.FromMilliseconds(fact.timeout.after_ms)
        event.flow_timeout_policy = _TIMEOUT_POLICIES[fact.timeout.policy]
        if fact.timeout.raw:
            event.timeout_handler_options.ParseFromString(fact.timeout.raw)
    if fact.start is not None:
        event.initial_start.start_step_type = fact.start.step_type
        event.initial_start.step_input.ParseFromString(fact.start.step_input)
        event.initial_start.step_options.ParseFromString(fact.start.options.raw)
    for key, value in fact.attributes:
        event.initial_start.initial_attributes.add(key=key).value.ParseFromString(value)


def _fill_context(
    context: pb.StepMethodEventContext, fact: MethodCompleted | MethodFailed, step: StepExecution
) -> None:
    _fill_times(context, step, fact.method, fact.attempt, fact.started, fact.at)


def _fill_times(
    context: pb.StepMethodEventContext,
    step: StepExecution,
    method: Method,
    attempt: int,
    started: int,
    ended: int,
) -> None:
    context.step_execution_id = step.execution_id
    context.from_step_execution_id = step.source_id
    context.step_type = step.step_type
    context.final_attempt = attempt
    context.started_time.FromMilliseconds(started)
    context.duration.FromMilliseconds(max(0, ended - started))
    given = step.movement.options.of(method)
    context.durability = pb.STEP_DURABILITY_ASYNC if given.is_async else pb.STEP_DURABILITY_SYNC
    options = context.method_options
    options.timeout_seconds = _seconds(given.timeout_ms)
    options.heartbeat_timeout_seconds = _seconds(step.movement.options.heartbeat_ms)
    options.retry_policy.initial_interval_seconds = _seconds(given.retry.initial_ms)
    options.retry_policy.backoff_coefficient = given.retry.coefficient
    options.retry_policy.maximum_interval_seconds = _seconds(given.retry.maximum_ms)
    options.retry_policy.maximum_attempts = given.retry.maximum_attempts
    options.retry_policy.total_duration_seconds = _seconds(given.retry.total_ms)


def _seconds(milliseconds: int) -> int:
    return -(-milliseconds // 1_000)


def _fill_failure(target: pb.StepMethodFailure, failure: Failure) -> None:
    target.attempt = failure.attempt
    target.backend_error = failure.error_type
    target.details.original_worker_error_detail = failure.detail
    target.details.original_worker_error_type = failure.error_type
    target.details.original_worker_error_stack_trace = failure.stack
