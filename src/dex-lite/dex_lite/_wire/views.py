"""What introspection calls show of a run."""

from __future__ import annotations

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import RunState, StepExecution, TimerState
from dex_lite._wire.history import movement_message
from dex_lite._wire.tasks import flow_result


def flow_state(state: RunState) -> pb.GetFlowStateResponse:
    """Everything live in a run."""
    response = pb.GetFlowStateResponse(sticky_app_worker_id=state.worker_id)
    response.flow_config.ParseFromString(state.config)
    for key, value in state.attributes.items():
        response.attributes.add(key=key).value.ParseFromString(value)
    for step in state.steps.values():
        if step.is_timeout and (state.timeout is None or state.timeout.policy != "handler"):
            continue
        if step.phase != "waiting" and step.attempt is None and not step.attempts_used:
            response.queued_steps.append(movement_message(step.movement, step.source_id))
        else:
            _fill_step(response.active_step_executions.add(), step)
    for name, messages in state.channels.items():
        values = response.pending_channel_messages[name]
        for message in messages:
            added = values.messages.add(channel_name=name, message_id=message.message_id)
            added.value.ParseFromString(message.value)
    for output in state.outputs:
        response.completed_steps.add(
            completed_step_type=output.step_type,
            completed_step_execution_id=output.execution_id,
            completed_step_output=pb.Value.FromString(output.value),
        )
    return response


def _timer_status(timer: TimerState) -> pb.InternalTimerStatus:
    if timer.is_skipped:
        return pb.INTERNAL_TIMER_STATUS_SKIPPED
    return pb.INTERNAL_TIMER_STATUS_FIRED if timer.is_fired else pb.INTERNAL_TIMER_STATUS_PENDING


def _fill_step(view: pb.ActiveStepExecutionState, step: StepExecution) -> None:
    view.step_execution_id = step.execution_id
    view.from_step_execution_id = step.source_id
    view.step_type = step.step_type
    view.phase = (
        pb.ACTIVE_STEP_PHASE_WAITING if step.phase == "waiting" else pb.ACTIVE_STEP_PHASE_ACTIVE
    )
    view.movement.CopyFrom(movement_message(step.movement, step.source_id))
    if step.condition is not None:
        view.waiting_condition.MergeFromString(step.condition.raw)
        for index, (timer, timer_state) in enumerate(
            zip(step.condition.timers, step.timers, strict=True)
        ):
            status = _timer_status(timer_state)
            view.timers.add(
                condition_id=timer.condition_id,
                firing_unix_timestamp_seconds=-(-timer_state.due_ms // 1_000),
                status=status,
            )
            view.completed_conditions.completed_timer_conditions[index] = status
        for index, end in enumerate(step.sub_flow_ends):
            if end is not None:
                view.completed_conditions.completed_sub_flow_results[index].CopyFrom(
                    flow_result(end)
                )
    for key, value in step.step_locals.items():
        view.step_execution_locals.add(key=key).value.ParseFromString(value)
    if step.failure is not None:
        info = view.last_failure_info
        info.attempt = step.failure.attempt
        info.backend_error = step.failure.error_type
        info.details.original_worker_error_detail = step.failure.detail
        info.details.original_worker_error_type = step.failure.error_type
        info.details.original_worker_error_stack_trace = step.failure.stack
