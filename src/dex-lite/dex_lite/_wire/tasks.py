"""What a Worker gets: a snapshot of the Flow for one method or RPC."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import (
    Condition,
    FlowEnd,
    Message,
    RunState,
    StepExecution,
    Value,
)
from dex_lite._wire.options import NULL


class Snapshot(msgspec.Struct, frozen=True):
    """What a handler sees of a Flow; taken once for a method and kept for its retries."""

    attributes: Mapping[str, Value]
    sizes: Mapping[str, int]
    loaded: Mapping[str, Sequence[Message]]
    map_selectors: Sequence[str]
    channel_selectors: Sequence[str]
    channel_map_selectors: Sequence[str]
    secrets: Collection[str]  # the hard-delete ones of the Attributes


def take_snapshot(
    state: RunState,
    map_selectors: Sequence[str],
    channel_selectors: Sequence[str],
    channel_map_selectors: Sequence[str],
) -> Snapshot:
    """The Flow as it is now: plain Attributes, and of maps and messages what is selected."""
    exact = {name for name in map_selectors if not name.endswith("/")}
    prefixes = tuple(name for name in map_selectors if name.endswith("/"))
    attributes = {
        key: value
        for key, value in state.attributes.items()
        if "/" not in key or key in exact or (prefixes and key.startswith(prefixes))
    }
    return Snapshot(
        attributes,
        {name: len(messages) for name, messages in state.channels.items()},
        _loaded(state.channels, (*channel_selectors, *channel_map_selectors)),
        map_selectors,
        channel_selectors,
        channel_map_selectors,
        tuple(state.secrets),
    )


def _loaded(
    channels: Mapping[str, Sequence[Message]], selectors: Iterable[str]
) -> dict[str, Sequence[Message]]:
    loaded: dict[str, Sequence[Message]] = {}
    for selector in selectors:
        if selector.endswith("/"):
            loaded |= {n: tuple(m) for n, m in channels.items() if n.startswith(selector)}
        else:
            loaded[selector] = tuple(channels.get(selector, ()))
    return loaded


def step_snapshot(state: RunState, step: StepExecution) -> Snapshot:
    """The snapshot of the step's current method."""
    options = step.method_options
    return take_snapshot(state, options.load_maps, options.load_channels, options.load_channel_maps)


def step_task(
    state: RunState, step: StepExecution, snapshot: Snapshot, deadline_ms: int, token: str
) -> pb.PollWorkerTask:
    """The task of the step's live attempt."""
    task = pb.PollWorkerTask(task_id=token)
    task.deadline.FromMilliseconds(deadline_ms)
    if step.method == "wait_for":
        wait_for = task.wait_for
        wait_for.step_type = step.step_type
        wait_for.step_input.ParseFromString(step.movement.step_input or NULL)
        _fill_step(wait_for, state, step, snapshot)
        return task
    execute = task.execute
    execute.step_type = step.step_type
    if not step.is_timeout:  # a handler of a timeout has no input, and the SDK insists on it
        execute.step_input.ParseFromString(step.movement.step_input or NULL)
    _fill_step(execute, state, step, snapshot)
    add_kvs(execute.step_exe_locals, step.step_locals)
    fill_condition_results(execute, step)
    return task


def rpc_task(
    state: RunState,
    name: str,
    rpc_input: Value,
    snapshot: Snapshot,
    deadline_ms: int,
    token: str,
) -> pb.PollWorkerTask:
    """The task of an RPC."""
    task = pb.PollWorkerTask(task_id=token)
    task.deadline.FromMilliseconds(deadline_ms)
    rpc = task.rpc
    rpc.rpc_name = name
    rpc.input.ParseFromString(rpc_input)
    rpc.flow_type = state.flow_type
    _fill_flow(rpc.context, state)
    _fill_snapshot(rpc, snapshot)
    return task


def _fill_flow(context: pb.Context, state: RunState) -> None:
    context.flow_id = state.flow_id
    context.run_id = state.run_id
    context.flow_started_timestamp = state.start_ms // 1_000
    context.run_attempt = state.run_attempt


def _fill_step(
    request: pb.InvokeWaitForMethodRequest | pb.InvokeExecuteMethodRequest,
    state: RunState,
    step: StepExecution,
    snapshot: Snapshot,
) -> None:
    request.flow_type = state.flow_type
    context = request.context
    _fill_flow(context, state)
    context.step_execution_id = step.execution_id
    context.from_step_execution_id = step.source_id
    context.attempt = step.attempts_used
    context.first_attempt_timestamp = step.first_attempt_ms // 1_000
    if step.heartbeat is not None:
        context.last_heartbeat_value.ParseFromString(step.heartbeat)
    if step.recovery is not None:
        context.recovery_error.detail = step.recovery.detail
        context.recovery_error.error_type = step.recovery.error_type
    _fill_snapshot(request, snapshot)


def _fill_snapshot(
    request: pb.InvokeWaitForMethodRequest
    | pb.InvokeExecuteMethodRequest
    | pb.InvokeWorkerRPCRequest,
    snapshot: Snapshot,
) -> None:
    add_kvs(request.attributes, snapshot.attributes)
    for name, size in snapshot.sizes.items():
        request.channel_infos[name].size = size
    for name, messages in snapshot.loaded.items():
        values = request.loaded_channel_messages[name]
        for message in messages:
            added = values.messages.add(channel_name=name, message_id=message.message_id)
            added.value.ParseFromString(message.value)
    request.loaded_attribute_map_instances.extend(snapshot.map_selectors)
    request.loaded_channel_names.extend(snapshot.channel_selectors)
    request.loaded_channel_map_instances.extend(snapshot.channel_map_selectors)


def add_kvs(target: object, values: Mapping[str, Value]) -> None:
    """Add keys with their values to a repeated field."""
    for key, value in values.items():
        target.add(key=key).value.ParseFromString(value)  # type: ignore[attr-defined]


def fill_condition_results(
    target: pb.InvokeExecuteMethodRequest | pb.StepMethodEventInput, step: StepExecution
) -> None:
    """What the step's wait gave; nothing if there was none."""
    if step.wait_for_failed:
        target.condition_results.wait_for_failed = True
    if step.condition is not None and not step.is_timeout:
        _fill_conditions(target.condition_results, step.condition, step)


def _fill_conditions(
    results: pb.ConditionResults, condition: Condition, step: StepExecution
) -> None:
    for timer, timer_state in zip(condition.timers, step.timers, strict=True):
        results.timer_results.add(
            condition_id=timer.condition_id,
            condition_status=(
                pb.CONDITION_STATUS_COMPLETED
                if timer_state.is_fired
                else pb.CONDITION_STATUS_WAITING
            ),
        )
    taken = {consumed.index: consumed for consumed in step.consumed}
    for index, channel in enumerate(condition.channels):
        consumed = taken.get(index)
        result = results.channel_results.add(
            condition_id=channel.condition_id,
            channel_name=channel.channel,
            condition_status=(
                pb.CONDITION_STATUS_WAITING if consumed is None else pb.CONDITION_STATUS_COMPLETED
            ),
        )
        if consumed is not None:
            for value in consumed.values:
                result.values.add().ParseFromString(value)
    for end in step.sub_flow_ends:
        results.sub_flow_results.append(
            pb.FlowResult(flow_status=pb.FLOW_STATUS_RUNNING) if end is None else flow_result(end)
        )


def flow_result(end: FlowEnd, *, with_results: bool = True) -> pb.FlowResult:
    """How a Flow ended."""
    result = pb.FlowResult(
        flow_status=end.status,  # type: ignore[arg-type]
        error_type=end.error_type,  # type: ignore[arg-type]
        error_message=end.error_message,
    )
    if with_results:
        for output in end.outputs:
            result.results.add(
                completed_step_type=output.step_type,
                completed_step_execution_id=output.execution_id,
                completed_step_output=pb.Value.FromString(output.value),
            )
    return result


def null_value() -> pb.Value:
    """A null."""
    return pb.Value.FromString(NULL)
