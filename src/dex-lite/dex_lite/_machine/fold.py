"""How each fact changes the state: :func:`fold` only sets and deletes, it never decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dex_lite._machine.facts import (
    AnyFact,
    AttemptBegun,
    AttemptFailed,
    AttemptGivenBack,
    AttributesWritten,
    CompletionAsked,
    ConfigChanged,
    ExecuteEntered,
    ExternallyDeleted,
    ExternallyPublished,
    Fact,
    HeartbeatKept,
    LocalsKept,
    LocksTaken,
    MessagesDeleted,
    MessagesPublished,
    MethodCompleted,
    MethodFailed,
    OutputAdded,
    ParentAttached,
    RetryFell,
    RpcAnswered,
    RpcApplied,
    RunClosed,
    RunForked,
    RunStarted,
    SecretsWritten,
    ServedBy,
    SkipKept,
    StepEnded,
    StepLeft,
    StepScheduled,
    SubFlowEnded,
    TimerFired,
    WaitBegun,
    WaitWon,
)
from dex_lite._machine.model import (
    Attempt,
    FlowStart,
    Message,
    Recovery,
    RunState,
    StepExecution,
    TimerState,
)

RPC_ANSWERS_KEPT = 1_000
_EVENTS = frozenset(
    (
        MethodCompleted,
        MethodFailed,
        RpcApplied,
        ExternallyPublished,
        ExternallyDeleted,
        RunForked,
        StepLeft,
        RunClosed,
    )
)


def fold(state: RunState | None, fact: AnyFact) -> RunState:
    """The state after the fact. Changes the given state; only :class:`RunStarted` makes a new one."""
    if isinstance(fact, RunStarted):
        return RunState(
            flow_id=fact.flow_id,
            run_id=fact.run_id,
            flow_type=fact.flow_type,
            request_id=fact.request_id,
            start_ms=fact.at,
            config=fact.config,
            is_async_default=fact.is_async_default,
            attributes={**dict(fact.attributes), **dict(fact.secrets)},
            secrets={key: True for key, _ in fact.secrets},
            indexed={use.attribute: use.name for use in fact.indexes},
            fact_count=1,
            last_event=1,
            run_attempt=fact.run_attempt,
            first_run_id=fact.first_run_id,
            parents=list(fact.parents),
            timeout=fact.timeout,
            again=None if fact.retry is None else _flow_start(fact),
        )
    assert state is not None
    state.fact_count += 1
    if type(fact) in _EVENTS:
        state.last_event = state.fact_count
    _FOLDS[type(fact)](state, fact)
    return state


def _flow_start(fact: RunStarted) -> FlowStart:
    return FlowStart(
        flow_type=fact.flow_type,
        step=fact.start,
        attributes=fact.attributes,
        indexes=fact.indexes,
        config=fact.config,
        is_async_default=fact.is_async_default,
        delay_ms=fact.delay_ms,
        timeout=fact.timeout,
        retry=fact.retry,
    )


def _scheduled(state: RunState, fact: StepScheduled) -> None:
    step_type, _, number = fact.execution_id.rpartition("-")
    state.counters[step_type] = int(number)
    state.steps[fact.execution_id] = StepExecution(
        execution_id=fact.execution_id,
        source_id=fact.source_id,
        movement=fact.movement,
        phase="execute" if fact.movement.options.skip_wait_for else "wait_for",
        scheduled_ms=fact.at,
        recovery=fact.recovery,
        retry_at_ms=fact.not_before,
    )
    if fact.movement.options.skip_wait_for:
        _drop_skips(state, fact.execution_id)


def _locks_taken(state: RunState, fact: LocksTaken) -> None:
    state.steps[fact.execution_id].has_locks = True


def _begun(state: RunState, fact: AttemptBegun) -> None:
    step = state.steps[fact.execution_id]
    step.attempt = Attempt(fact.token, fact.worker_id, fact.at)
    step.attempts_used += 1
    step.first_attempt_ms = step.first_attempt_ms or fact.at


def _given_back(state: RunState, fact: AttemptGivenBack) -> None:
    step = state.steps[fact.execution_id]
    step.attempt = None
    step.attempts_used -= 1
    if not step.attempts_used:
        step.first_attempt_ms = 0
    step.half_closes += fact.is_half_close


def _failed(state: RunState, fact: AttemptFailed) -> None:
    step = state.steps[fact.execution_id]
    step.attempt = None
    step.attempts_used += fact.is_counted_twice
    step.first_attempt_ms = step.first_attempt_ms or fact.at
    step.half_closes = 0
    step.failure = fact.failure
    if fact.failure.is_delivered:
        step.delivered_failure = fact.failure
    step.retry_at_ms = fact.retry_at


def _retry_fell(state: RunState, fact: RetryFell) -> None:
    state.steps[fact.execution_id].retry_at_ms = 0


def _heartbeat(state: RunState, fact: HeartbeatKept) -> None:
    state.steps[fact.execution_id].heartbeat = fact.value


def _wait_begun(state: RunState, fact: WaitBegun) -> None:
    step = state.steps[fact.execution_id]
    step.phase = "waiting"
    step.condition = fact.condition
    step.timers = [TimerState(due) for due in fact.timers_due]
    step.sub_flow_ends = [None] * len(fact.condition.sub_flows)
    _leave_method(step)
    _drop_skips(state, fact.execution_id)


def _timer_fired(state: RunState, fact: TimerFired) -> None:
    timer = state.steps[fact.execution_id].timers[fact.index]
    timer.is_fired = True
    timer.is_skipped = fact.is_skipped


def _parent_attached(state: RunState, fact: ParentAttached) -> None:
    state.parents.append(fact.parent)


def _sub_flow_ended(state: RunState, fact: SubFlowEnded) -> None:
    state.steps[fact.execution_id].sub_flow_ends[fact.index] = fact.end


def _skip_kept(state: RunState, fact: SkipKept) -> None:
    state.kept_skips.append(fact.skip)


def _drop_skips(state: RunState, execution_id: str) -> None:
    if state.kept_skips:
        state.kept_skips = [s for s in state.kept_skips if s.execution_id != execution_id]


def _config_changed(state: RunState, fact: ConfigChanged) -> None:
    state.config = fact.config
    state.is_async_default = fact.is_async_default


def _won(state: RunState, fact: WaitWon) -> None:
    step = state.steps[fact.execution_id]
    step.phase = "execute"
    step.has_won = True
    step.consumed = list(fact.consumed)
    for taken in fact.consumed:
        _drop_front(state, taken.channel, len(taken.values))


def _drop_front(state: RunState, channel: str, count: int) -> None:
    left = state.channels[channel][count:] if count else state.channels.get(channel, [])
    if left:
        state.channels[channel] = left
    else:
        state.channels.pop(channel, None)


def _execute_entered(state: RunState, fact: ExecuteEntered) -> None:
    step = state.steps[fact.execution_id]
    if fact.wait_for_failed and step.failure is not None:
        told = step.delivered_failure or step.failure
        step.recovery = Recovery(told.detail, told.error_type)
    step.phase = "execute"
    step.wait_for_failed = fact.wait_for_failed
    _leave_method(step)
    _drop_skips(state, fact.execution_id)


def _forked(state: RunState, fact: RunForked) -> None:
    state.start_ms = fact.at
    state.message_count = fact.message_count
    for step in state.steps.values():
        was_tried = bool(step.attempts_used) or step.failure is not None
        not_before, has_locks = step.retry_at_ms, step.has_locks
        _leave_method(step)
        step.has_locks = has_locks
        step.retry_at_ms = 0 if was_tried else not_before  # of a delayed start
        if step.is_timeout and step.phase == "waiting" and state.timeout is not None:
            step.timers[0].due_ms = fact.at + state.timeout.after_ms


def _leave_method(step: StepExecution) -> None:
    """What belonged to the method that ended."""
    step.attempt = None
    step.has_locks = False
    step.attempts_used = 0
    step.first_attempt_ms = 0
    step.retry_at_ms = 0
    step.half_closes = 0
    step.heartbeat = None
    step.failure = None
    step.delivered_failure = None


def _ended(state: RunState, fact: StepEnded) -> None:
    del state.steps[fact.execution_id]
    _drop_skips(state, fact.execution_id)


def _locals(state: RunState, fact: LocalsKept) -> None:
    state.steps[fact.execution_id].step_locals.update(fact.values)


def _written(state: RunState, fact: AttributesWritten) -> None:
    for use in fact.indexes:
        state.indexed[use.attribute] = use.name
    for key, value in fact.writes:
        if value is None:
            state.attributes.pop(key, None)
        else:
            state.attributes[key] = value


def _secrets_written(state: RunState, fact: SecretsWritten) -> None:
    for key, value in fact.writes:
        if value is None:
            state.attributes.pop(key, None)
            state.secrets.pop(key, None)
        else:
            state.attributes[key] = value
            state.secrets[key] = True


def _published(state: RunState, fact: MessagesPublished) -> None:
    for channel, message_id, value in fact.messages:
        state.channels.setdefault(channel, []).append(Message(message_id, value))
    state.message_count += len(fact.messages)


def _deleted(state: RunState, fact: MessagesDeleted) -> None:
    for channel, message_id in fact.messages:
        pending = state.channels.get(channel, [])
        left = [message for message in pending if message.message_id != message_id]
        if left:
            state.channels[channel] = left
        else:
            state.channels.pop(channel, None)


def _output(state: RunState, fact: OutputAdded) -> None:
    state.outputs.append(fact.output)


def _completing(state: RunState, fact: CompletionAsked) -> None:
    state.is_completing = True


def _answered(state: RunState, fact: RpcAnswered) -> None:
    state.rpc_answers[fact.request_id] = fact.answer
    if len(state.rpc_answers) > RPC_ANSWERS_KEPT:
        del state.rpc_answers[next(iter(state.rpc_answers))]


def _externally_deleted(state: RunState, fact: ExternallyDeleted) -> None:
    if fact.request_id:
        state.deletions_done[fact.request_id] = fact.message_id or True
        if len(state.deletions_done) > RPC_ANSWERS_KEPT:
            del state.deletions_done[next(iter(state.deletions_done))]


def _served(state: RunState, fact: ServedBy) -> None:
    state.worker_id = fact.worker_id


def _closed(state: RunState, fact: RunClosed) -> None:
    state.status = fact.status
    state.close_ms = fact.at
    state.error_type = fact.error_type
    state.error_message = fact.error_message
    state.next_run_id = fact.next_run_id
    state.steps.clear()
    state.kept_skips.clear()
    state.channels.clear()


def _history_only(state: RunState, fact: Fact) -> None:
    """Nothing in the state."""


_FOLDS: dict[type, Callable[[RunState, Any], None]] = {}


def _register() -> None:
    for kind, function in (
        (StepScheduled, _scheduled),
        (LocksTaken, _locks_taken),
        (AttemptBegun, _begun),
        (AttemptGivenBack, _given_back),
        (AttemptFailed, _failed),
        (RetryFell, _retry_fell),
        (HeartbeatKept, _heartbeat),
        (WaitBegun, _wait_begun),
        (TimerFired, _timer_fired),
        (SkipKept, _skip_kept),
        (ParentAttached, _parent_attached),
        (SubFlowEnded, _sub_flow_ended),
        (ConfigChanged, _config_changed),
        (WaitWon, _won),
        (ExecuteEntered, _execute_entered),
        (StepEnded, _ended),
        (LocalsKept, _locals),
        (AttributesWritten, _written),
        (SecretsWritten, _secrets_written),
        (MessagesPublished, _published),
        (MessagesDeleted, _deleted),
        (OutputAdded, _output),
        (CompletionAsked, _completing),
        (RpcAnswered, _answered),
        (ExternallyDeleted, _externally_deleted),
        (ServedBy, _served),
        (RunClosed, _closed),
        (RunForked, _forked),
        (MethodCompleted, _history_only),
        (MethodFailed, _history_only),
        (StepLeft, _history_only),
        (RpcApplied, _history_only),
        (ExternallyPublished, _history_only),
    ):
        _FOLDS[kind] = function


_register()
