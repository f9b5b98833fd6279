"""A run's history, read from its facts. An event's id is the number of its fact."""

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
    StepScheduled,
    WaitBegun,
)
from dex_lite._machine.model import Movement, Output, Value
from dex_lite._wire.options import NULL

_TIMEOUT_POLICIES: dict[str, pb.FlowTimeoutPolicy] = {
    "fail": pb.FLOW_TIMEOUT_POLICY_FAIL,
    "cancel": pb.FLOW_TIMEOUT_POLICY_CANCEL,
    "handler": pb.FLOW_TIMEOUT_POLICY_HANDLER,
}
_INPUT_UNAVAILABLE = pb.StepMethodEventInput(unavailable=True)


class HistoryReader:
    """Turns facts into events; facts must come from the first one on, in order."""

    def __init__(self) -> None:
        self._inputs: dict[str, Value] = {}
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
            self._locals = [
                pb.KV(key=key, value=pb.Value.FromString(value)) for key, value in fact.values
            ]
        elif isinstance(fact, StepScheduled):
            self._inputs[fact.execution_id] = fact.movement.step_input
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
            _fill_failed(event, fact)
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
        step_input = self._inputs.get(fact.execution_id)
        if step_input is None:
            completed.input.CopyFrom(_INPUT_UNAVAILABLE)
        elif step_input:  # the handler of a timeout has none
            completed.input.step_input.ParseFromString(step_input)
        _fill_context(completed.context, fact)

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


def _fill_context(context: pb.StepMethodEventContext, fact: MethodCompleted | MethodFailed) -> None:
    context.step_execution_id = fact.execution_id
    context.from_step_execution_id = fact.source_id
    context.step_type = fact.step_type
    context.durability = pb.STEP_DURABILITY_SYNC
    context.final_attempt = fact.attempt
    context.started_time.FromMilliseconds(fact.started)
    context.duration.FromMilliseconds(max(0, fact.at - fact.started))
    if isinstance(fact, MethodCompleted):
        context.pull_routing.served_by_app_worker_id = fact.worker_id


def _fill_failed(event: pb.FlowHistoryEvent, fact: MethodFailed) -> None:
    event.event_time.FromMilliseconds(fact.at)
    failed: pb.StepWaitForFailedEvent | pb.StepExecuteFailedEvent
    if fact.method == "wait_for":
        failed = event.step_wait_for_failed
    else:
        failed = event.step_execute_failed
    if fact.step_input:
        failed.input.step_input.ParseFromString(fact.step_input)
    _fill_context(failed.context, fact)
    failure = failed.output.failure
    failure.attempt = fact.failure.attempt
    failure.backend_error = fact.failure.error_type
    failure.details.original_worker_error_detail = fact.failure.detail
    failure.details.original_worker_error_type = fact.failure.error_type
    failure.details.original_worker_error_stack_trace = fact.failure.stack
    failed.context.last_failure_info.CopyFrom(failure)
