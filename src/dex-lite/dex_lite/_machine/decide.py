"""What each command does to a run. Every function is one command; all but :func:`start` take a :class:`Turn`.

A command that no longer fits the state, such as the result of a superseded attempt, returns ``False`` and changes
nothing.
"""

from __future__ import annotations

from typing import Literal

from dex_lite._machine.commands import ExecuteResult, RpcResult, WaitForResult
from dex_lite._machine.facts import (
    AttemptBegun,
    AttemptFailed,
    AttemptGivenBack,
    CompletionAsked,
    ConfigChanged,
    ExecuteEntered,
    ExternallyDeleted,
    ExternallyPublished,
    HeartbeatKept,
    MethodCompleted,
    MethodFailed,
    RetryFell,
    RpcAnswered,
    RpcApplied,
    RunStarted,
    ServedBy,
    SkipKept,
    StepScheduled,
    TimerFired,
    WaitBegun,
)
from dex_lite._machine.fold import fold
from dex_lite._machine.model import (
    CANCELED,
    CLIENT_API_FAILING_FLOW,
    COMPLETED,
    FAILED,
    START_SOURCE,
    STEP_DECISION_FAILING_FLOW,
    TERMINATED,
    TIMEOUT_HANDLER_STEP,
    WORKER_API_FAIL,
    Condition,
    Failure,
    FlowTimeout,
    KeptSkip,
    Movement,
    Parent,
    Recovery,
    RpcAnswer,
    StepExecution,
    StepOptions,
    TimerCondition,
    Value,
)
from dex_lite._machine.turn import SetTimer, StartSubFlow, Turn

HALF_CLOSES_GIVEN_BACK = 2
HALF_CLOSES_BETWEEN_RETRIES = 50
"""Running twice is no harm where more attempts are allowed; a limit only ends an endless loop."""
SKIPS_KEPT = 100
RPC_SOURCE = "__rpc/"
WORKER_DISCONNECTED = "WORKER_DISCONNECTED"


def start(fact: RunStarted) -> Turn:
    """A new run: its first Step, now or later, and the wait for its timeout."""
    turn = Turn(fold(None, fact), fact.at)
    turn.facts.append(fact)
    begin_run(turn, fact)
    return turn


def begin_run(turn: Turn, fact: RunStarted) -> None:
    """What a run begins with, counted from now."""
    starts_at = turn.now_ms + fact.backoff_ms
    if fact.timeout is not None:
        _await_timeout(turn, fact.timeout, starts_at + fact.timeout.after_ms)
    if fact.start is not None:
        wait_ms = fact.backoff_ms + fact.delay_ms
        turn.schedule(START_SOURCE, fact.start, not_before=turn.now_ms + wait_ms if wait_ms else 0)
        turn.settle()


def _await_timeout(turn: Turn, timeout: FlowTimeout, due_ms: int) -> None:
    execution_id = f"{TIMEOUT_HANDLER_STEP}-1"
    movement = Movement(TIMEOUT_HANDLER_STEP, b"", timeout.handler)
    condition = Condition("all", (TimerCondition("", timeout.after_ms),))
    turn.emit(StepScheduled(execution_id, START_SOURCE, movement, turn.now_ms))
    turn.emit(WaitBegun(execution_id, condition, (due_ms,)))
    turn.effects.append(SetTimer(execution_id, 0, due_ms))


def stop(turn: Turn, how: Literal["cancel", "terminate", "fail"], reason: str) -> bool:
    """A client ends the Flow."""
    if not turn.state.is_open:
        return False
    if how == "fail":
        # A stop that starts the Flow again would be none, so a retry policy does not count here.
        turn.close(FAILED, CLIENT_API_FAILING_FLOW, reason or "fail by client", may_retry=False)
    else:
        turn.close(CANCELED if how == "cancel" else TERMINATED)
    return True


def leave(turn: Turn, new_run: Turn) -> None:
    """The Flow goes on in a new run, made by time travel; this one ends if it is still open."""
    turn.close(TERMINATED, followed_by=new_run)


# Attempts


def live(turn: Turn, execution_id: str, token: str) -> StepExecution | None:
    """The execution, if this token is its live attempt's."""
    step = turn.state.steps.get(execution_id)
    if step is None or step.attempt is None or step.attempt.token != token:
        return None
    return step


def is_last_attempt(step: StepExecution) -> bool:
    """Whether the next attempt, or the live one, is the last that the policy permits."""
    maximum = step.method_options.retry.maximum_attempts
    return bool(maximum) and step.attempts_used + (step.attempt is None) >= maximum


def begin(turn: Turn, execution_id: str, token: str, worker_id: str) -> StepExecution | None:
    """An attempt is about to go to a Worker; ``None`` if the method does not want one now."""
    step = turn.state.steps.get(execution_id)
    if step is None or not step.may_begin:
        return None
    turn.emit(AttemptBegun(execution_id, token, worker_id, turn.now_ms))
    return step


def give_back(turn: Turn, execution_id: str, token: str, *, is_half_close: bool) -> bool:
    """The attempt provably never started, unless its stream closed on it too often."""
    step = live(turn, execution_id, token)
    if step is None:
        return False
    limit = HALF_CLOSES_GIVEN_BACK if is_last_attempt(step) else HALF_CLOSES_BETWEEN_RETRIES
    if is_half_close and step.half_closes >= limit:
        failure = Failure(
            "the Worker closed the task's stream without a frame", WORKER_DISCONNECTED
        )
        return fail(turn, execution_id, token, failure)
    turn.emit(AttemptGivenBack(execution_id, is_half_close))
    turn.make_ready(step)
    return True


def keep_heartbeat(turn: Turn, execution_id: str, token: str, value: Value | None) -> bool:
    """Keep the newest checkpoint of the live attempt."""
    step = live(turn, execution_id, token)
    if step is None or step.heartbeat == value:
        return False
    turn.emit(HeartbeatKept(execution_id, value))
    return True


def fail(
    turn: Turn,
    execution_id: str,
    token: str,
    failure: Failure,
    *,
    is_retryable: bool = True,
    retry_after_ms: int | None = None,
) -> bool:
    """The live attempt failed: another one by policy, or the method's failure route."""
    step = live(turn, execution_id, token)
    if step is None:
        return False
    started = step.attempt.started_ms if step.attempt else turn.now_ms
    _fail(turn, step, failure, started, is_retryable, retry_after_ms, has_begun=True)
    return True


def fail_dispatch(turn: Turn, execution_id: str, failure: Failure) -> bool:
    """Nobody took the task in time and the engine is told to count that as an attempt."""
    step = turn.state.steps.get(execution_id)
    if step is None or not step.may_begin:
        return False
    _fail(turn, step, failure, turn.now_ms, True, None, has_begun=False)
    return True


def _fail(
    turn: Turn,
    step: StepExecution,
    failure: Failure,
    started_ms: int,
    is_retryable: bool,
    retry_after_ms: int | None,
    *,
    has_begun: bool,
) -> None:
    policy = step.method_options.retry
    used = step.attempts_used + (not has_begun)
    failure = Failure(failure.detail, failure.error_type, failure.stack, used, failure.is_delivered)
    delay = policy.delay_ms(used) if retry_after_ms is None else retry_after_ms
    first = step.first_attempt_ms or turn.now_ms
    is_spent = (bool(policy.maximum_attempts) and used >= policy.maximum_attempts) or (
        turn.now_ms + delay > first + policy.total_ms
    )
    is_over = is_spent or not is_retryable
    retry_at = 0 if is_over else turn.now_ms + max(delay, 1)
    turn.emit(AttemptFailed(step.execution_id, failure, retry_at, not has_begun, turn.now_ms))
    if not is_over:
        if delay <= 0:
            retry_fell(turn, step.execution_id)
        else:
            turn.effects.append(SetTimer(step.execution_id, -1, retry_at))
        return
    _method_failed(turn, step, failure, started_ms)
    turn.settle()


def _method_failed(turn: Turn, step: StepExecution, failure: Failure, started_ms: int) -> None:
    # A word for "never delivered" must not hide an earlier attempt that may have run.
    told = step.delivered_failure or failure
    options = step.movement.options
    turn.emit(
        MethodFailed(
            step.execution_id,
            step.source_id,
            step.step_type,
            step.method,
            step.attempts_used,
            started_ms,
            turn.now_ms,
            failure,
            step.movement.step_input,
        )
    )
    if step.method == "wait_for" and options.proceed_when_wait_for_fails:
        turn.emit(ExecuteEntered(step.execution_id, True))
        turn.make_ready(step)
        return
    if step.method == "execute" and options.failure_step_type:
        turn.end_step(step, "failed")
        turn.schedule(
            step.execution_id,
            Movement(
                options.failure_step_type,
                step.movement.step_input,
                options.failure_options or StepOptions(),
            ),
            Recovery(told.detail, told.error_type),
        )
        return
    turn.end_step(step, "failed")
    turn.close(FAILED, WORKER_API_FAIL, told.detail)


def retry_fell(turn: Turn, execution_id: str) -> bool:
    """The delay before the next attempt is over."""
    step = turn.state.steps.get(execution_id)
    if step is None or not step.retry_at_ms:
        return False
    turn.emit(RetryFell(execution_id))
    turn.make_ready(step)
    return True


# Results


def complete_wait_for(turn: Turn, execution_id: str, token: str, result: WaitForResult) -> bool:
    """A WaitFor ended well."""
    step = live(turn, execution_id, token)
    if step is None or step.phase != "wait_for":
        return False
    turn.write(result, execution_id)
    _completed(turn, step, result.output)
    if result.condition is None:
        turn.emit(ExecuteEntered(execution_id))
        turn.make_ready(step)
    else:
        timers = result.condition.timers
        skips = [s for s in turn.state.kept_skips if s.execution_id == execution_id]
        due = tuple(turn.now_ms + timer.duration_ms for timer in timers)
        turn.emit(WaitBegun(execution_id, result.condition, due))
        for index, due_ms in enumerate(due):
            is_skipped = any(skip.is_of(index, timers[index]) for skip in skips)
            if is_skipped or due_ms <= turn.now_ms:
                turn.emit(TimerFired(execution_id, index, is_skipped))
            else:
                turn.effects.append(SetTimer(execution_id, index, due_ms))
        for index, (condition, sub_flow) in enumerate(
            zip(result.condition.sub_flows, result.sub_flows, strict=True)
        ):
            parent = Parent(turn.state.run_id, execution_id, index)
            turn.calls.append(StartSubFlow(parent, condition.flow_id, sub_flow))
    turn.settle()
    return True


def complete_execute(turn: Turn, execution_id: str, token: str, result: ExecuteResult) -> bool:
    """An Execute ended well: its changes, cancellations, then what comes next."""
    step = live(turn, execution_id, token)
    if step is None or step.phase != "execute":
        return False
    turn.write(result, execution_id)
    turn.cancel(result.cancel_types, result.cancel_sibling_types, step)
    _completed(turn, step, result.output)
    turn.end_step(step, "completed")
    state = turn.state
    if result.close == "fail":
        turn.close(FAILED, STEP_DECISION_FAILING_FLOW, result.fail_message)
    elif result.close == "force" or (
        result.close == "conditional" and _are_empty(turn, result.conditional_channels)
    ):
        turn.add_output(step, result.close_value)
        turn.close(COMPLETED)
    else:
        if result.close == "graceful":
            turn.add_output(step, result.close_value)
            turn.emit(CompletionAsked())
        for movement in result.next_steps:
            turn.schedule(step.execution_id, movement)
    if state.is_open:
        turn.settle()
    return True


def _completed(turn: Turn, step: StepExecution, output: bytes) -> None:
    assert step.attempt is not None
    if step.attempt.worker_id != turn.state.worker_id:
        turn.emit(ServedBy(step.attempt.worker_id))
    turn.emit(
        MethodCompleted(
            step.execution_id,
            step.source_id,
            step.step_type,
            step.method,
            step.attempts_used,
            step.attempt.started_ms,
            turn.now_ms,
            step.attempt.worker_id,
            output,
        )
    )


def _are_empty(turn: Turn, channels: tuple[str, ...]) -> bool:
    return not any(turn.state.channels.get(name) for name in channels) and not any(
        taken.channel in channels and taken.values
        for step in turn.state.steps.values()
        for taken in step.consumed
    )


def fire_timer(turn: Turn, execution_id: str, index: int) -> bool:
    """A timer of a wait is due."""
    step = turn.state.steps.get(execution_id)
    if step is None or step.phase != "waiting" or step.timers[index].is_fired:
        return False
    turn.emit(TimerFired(execution_id, index))
    turn.settle()
    return True


def skip_timer(turn: Turn, skip: KeptSkip) -> str | None:
    """A client fires a timer; one of a wait that has not begun is kept until then.

    Returns what is wrong with the wish, or ``None``.
    """
    state = turn.state
    step = state.steps.get(skip.execution_id)
    if step is None:
        step_type, _, number = skip.execution_id.rpartition("-")
        if state.has_ended(step_type, int(number)):
            return f"Step {skip.execution_id} has ended"
    elif step.phase == "execute":
        return f"Step {skip.execution_id} does not wait any more"
    elif step.phase == "waiting":
        assert step.condition is not None
        for index, timer in enumerate(step.condition.timers):
            if skip.is_of(index, timer):
                if step.timers[index].is_fired:
                    return f"this timer of Step {skip.execution_id} has fired already"
                turn.emit(TimerFired(skip.execution_id, index, is_skipped=True))
                turn.settle()
                return None
        return f"Step {skip.execution_id} waits for no such timer"
    if skip in state.kept_skips:
        return None
    if len(state.kept_skips) >= SKIPS_KEPT:
        return f"at most {SKIPS_KEPT} skips are kept for timers that do not exist yet"
    turn.emit(SkipKept(skip))
    return None


# RPCs and client writes


def change_config(turn: Turn, config: bytes, *, is_async_default: bool) -> bool:
    """A client changes what later Steps and SubFlows run with."""
    if not turn.state.is_open:
        return False
    if (config, is_async_default) != (turn.state.config, turn.state.is_async_default):
        turn.emit(ConfigChanged(config, is_async_default))
    return True


def missing_deletion(turn: Turn, result: RpcResult) -> tuple[str, str] | None:
    """The first message that a strict RPC wants to delete and that is not there."""
    for channel, message_id in result.deleted:
        if not any(m.message_id == message_id for m in turn.state.channels.get(channel, ())):
            return channel, message_id
    return None


def apply_rpc(
    turn: Turn,
    name: str,
    result: RpcResult,
    *,
    rpc_input: Value,
    worker_id: str,
    request_id: str = "",
    fingerprint: str = "",
    is_set_attributes: bool = False,
) -> bool:
    """Commit an RPC's effects; with a request id its answer is kept for a repeated request."""
    if not turn.state.is_open:
        return False
    if result.has_effects:
        turn.write(result)
        turn.cancel(result.cancel_types, (), None)
        if worker_id and worker_id != turn.state.worker_id:
            turn.emit(ServedBy(worker_id))
        turn.emit(
            RpcApplied(name, turn.now_ms, rpc_input, result.output, worker_id, is_set_attributes)
        )
        for movement in result.next_steps:
            turn.schedule(f"{RPC_SOURCE}{name}", movement)
    if request_id:
        turn.emit(RpcAnswered(request_id, RpcAnswer(fingerprint, result.value)))
    turn.settle()
    return True


def publish(turn: Turn, messages: tuple[tuple[str, Value], ...]) -> bool:
    """A client publishes messages."""
    if not turn.state.is_open:
        return False
    turn.publish(messages)
    turn.emit(ExternallyPublished(turn.now_ms))
    turn.settle()
    return True


def delete_message(turn: Turn, channel: str, message_id: str, request_id: str) -> bool:
    """A client deletes a message; ``False`` if it is not there and the request is not a repeat."""
    if turn.state.deleted_by(request_id) in (True, message_id):
        return True
    if not any(m.message_id == message_id for m in turn.state.channels.get(channel, ())):
        return False
    turn.delete(((channel, message_id),))
    turn.emit(ExternallyDeleted(turn.now_ms, request_id, message_id))
    turn.settle()
    return True


def release_foreign_locks(turn: Turn) -> bool:
    """An RPC gave its locks back."""
    turn.grant_locks()
    return bool(turn.facts)


# Start of the engine


def recover(turn: Turn) -> None:
    """After a restart: nobody can hand in the open attempts any more, and whatever is due is due."""
    for step in list(turn.state.steps.values()):
        if step.execution_id not in turn.state.steps or not turn.state.is_open:
            continue
        if step.attempt is not None:
            failure = Failure(
                "the engine restarted while a Worker had the task", WORKER_DISCONNECTED
            )
            fail(turn, step.execution_id, step.attempt.token, failure, retry_after_ms=0)
        elif step.retry_at_ms:
            turn.effects.append(SetTimer(step.execution_id, -1, step.retry_at_ms))
        elif step.phase == "waiting":
            for index, timer in enumerate(step.timers):
                if not timer.is_fired:
                    turn.effects.append(SetTimer(step.execution_id, index, timer.due_ms))
        elif step.has_locks or not step.method_options.locks:
            turn.make_ready(step)
    turn.settle()
