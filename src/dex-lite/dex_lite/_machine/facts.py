"""Everything that can become durable about a run, and how it changes the state.

A fact says what happened, in the past tense; :func:`fold` only sets and deletes. New facts and new fields with defaults
may be added in any release; what is here stays readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from dex_lite._machine.model import (
    Attempt,
    Condition,
    Consumed,
    Failure,
    FlowEnd,
    FlowStart,
    FlowTimeout,
    IndexUse,
    KeptSkip,
    Message,
    Movement,
    Output,
    Parent,
    Recovery,
    RetryPolicy,
    RpcAnswer,
    RunState,
    StepExecution,
    TimerState,
    Value,
)


class Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="f"):
    """Base of all facts."""


class RunStarted(Fact, frozen=True, tag="start"):
    flow_id: str
    run_id: str
    flow_type: str
    request_id: str
    at: int
    config: bytes = b""
    is_async_default: bool = False
    start: Movement | None = None
    attributes: tuple[tuple[str, Value], ...] = ()
    delay_ms: int = 0
    timeout: FlowTimeout | None = None
    retry: RetryPolicy | None = None
    backoff_ms: int = (
        0  # of a Flow retry: comes before the delay, and the timeout runs from its end
    )
    run_attempt: int = 1
    first_run_id: str = ""
    indexes: tuple[IndexUse, ...] = ()
    parents: tuple[Parent, ...] = ()


class StepScheduled(Fact, frozen=True, tag="sched"):
    execution_id: str
    source_id: str
    movement: Movement
    at: int
    recovery: Recovery | None = None
    not_before: int = 0


class LocksTaken(Fact, frozen=True, tag="locks"):
    execution_id: str


class AttemptBegun(Fact, frozen=True, tag="begin"):
    execution_id: str
    token: str
    worker_id: str
    at: int


class AttemptGivenBack(Fact, frozen=True, tag="back"):
    """The attempt never started and does not count."""

    execution_id: str
    is_half_close: bool = False


class AttemptFailed(Fact, frozen=True, tag="fail"):
    execution_id: str
    failure: Failure
    retry_at: int = 0  # 0: no retry, the method has failed for good
    is_counted_twice: bool = False  # it failed without having begun
    at: int = 0


class RetryFell(Fact, frozen=True, tag="retry"):
    """The delay before the next attempt is over, or before the first one of a delayed start."""

    execution_id: str


class HeartbeatKept(Fact, frozen=True, tag="beat"):
    execution_id: str
    value: Value | None = None


class WaitBegun(Fact, frozen=True, tag="wait"):
    execution_id: str
    condition: Condition
    timers_due: tuple[int, ...] = ()


class TimerFired(Fact, frozen=True, tag="timer"):
    execution_id: str
    index: int
    is_skipped: bool = False


class SkipKept(Fact, frozen=True, tag="skip"):
    """A client fires a timer of a wait that has not begun."""

    skip: KeptSkip


class ConfigChanged(Fact, frozen=True, tag="conf"):
    config: bytes
    is_async_default: bool


class ParentAttached(Fact, frozen=True, tag="attach"):
    """Another wait wants to know how this Flow ends."""

    parent: Parent


class SubFlowEnded(Fact, frozen=True, tag="sub"):
    execution_id: str
    index: int
    end: FlowEnd


class WaitWon(Fact, frozen=True, tag="won"):
    execution_id: str
    consumed: tuple[Consumed, ...] = ()


class ExecuteEntered(Fact, frozen=True, tag="exec"):
    """The Step goes to its Execute without a wait, or after its WaitFor failed."""

    execution_id: str
    wait_for_failed: bool = False


class MethodCompleted(Fact, frozen=True, tag="done"):
    """History of a method that ended well. What it wrote are the facts of the same commit before it."""

    execution_id: str
    source_id: str
    step_type: str
    method: Literal["wait_for", "execute"]
    attempt: int
    started: int
    at: int
    worker_id: str = ""
    output: bytes = b""  # the encoded result without what other facts hold


class MethodFailed(Fact, frozen=True, tag="mfail"):
    execution_id: str
    source_id: str
    step_type: str
    method: Literal["wait_for", "execute"]
    attempt: int
    started: int
    at: int
    failure: Failure
    step_input: Value = b""


class StepEnded(Fact, frozen=True, tag="end"):
    execution_id: str
    how: Literal["completed", "failed", "canceled"]


class LocalsKept(Fact, frozen=True, tag="locals"):
    execution_id: str
    values: tuple[tuple[str, Value], ...]


class AttributesWritten(Fact, frozen=True, tag="attr"):
    writes: tuple[tuple[str, Value | None], ...]
    indexes: tuple[IndexUse, ...] = ()


class MessagesPublished(Fact, frozen=True, tag="pub"):
    messages: tuple[tuple[str, str, Value], ...]  # channel, message id, value


class MessagesDeleted(Fact, frozen=True, tag="del"):
    messages: tuple[tuple[str, str], ...]  # channel, message id


class OutputAdded(Fact, frozen=True, tag="out"):
    output: Output


class CompletionAsked(Fact, frozen=True, tag="grace"):
    pass


class RpcApplied(Fact, frozen=True, tag="rpc"):
    """History of an RPC with effects. What it wrote are the facts of the same commit before it."""

    name: str
    at: int
    rpc_input: Value = b""
    output: bytes = b""
    worker_id: str = ""
    is_set_attributes: bool = False


class RpcAnswered(Fact, frozen=True, tag="ans"):
    request_id: str
    answer: RpcAnswer


class ExternallyPublished(Fact, frozen=True, tag="xpub"):
    """History of messages published by a client. The messages are the fact before it."""

    at: int


class ExternallyDeleted(Fact, frozen=True, tag="xdel"):
    at: int
    request_id: str = ""


class ServedBy(Fact, frozen=True, tag="by"):
    worker_id: str


class RunClosed(Fact, frozen=True, tag="close"):
    status: int
    at: int
    error_type: int = 0
    error_message: str = ""
    next_run_id: str = ""


AnyFact = (
    RunStarted
    | StepScheduled
    | LocksTaken
    | AttemptBegun
    | AttemptGivenBack
    | AttemptFailed
    | RetryFell
    | HeartbeatKept
    | WaitBegun
    | TimerFired
    | SkipKept
    | ParentAttached
    | SubFlowEnded
    | ConfigChanged
    | WaitWon
    | ExecuteEntered
    | MethodCompleted
    | MethodFailed
    | StepEnded
    | LocalsKept
    | AttributesWritten
    | MessagesPublished
    | MessagesDeleted
    | OutputAdded
    | CompletionAsked
    | RpcApplied
    | RpcAnswered
    | ExternallyPublished
    | ExternallyDeleted
    | ServedBy
    | RunClosed
)

encode_fact = msgspec.msgpack.Encoder().encode
decode_fact = msgspec.msgpack.Decoder(AnyFact).decode
encode_state = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(RunState).decode


RPC_ANSWERS_KEPT = 1_000
_EVENTS = frozenset(
    (MethodCompleted, MethodFailed, RpcApplied, ExternallyPublished, ExternallyDeleted, RunClosed)
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
            attributes=dict(fact.attributes),
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
        state.deletions_done[fact.request_id] = True


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
        (MessagesPublished, _published),
        (MessagesDeleted, _deleted),
        (OutputAdded, _output),
        (CompletionAsked, _completing),
        (RpcAnswered, _answered),
        (ExternallyDeleted, _externally_deleted),
        (ServedBy, _served),
        (RunClosed, _closed),
        (MethodCompleted, _history_only),
        (MethodFailed, _history_only),
        (RpcApplied, _history_only),
        (ExternallyPublished, _history_only),
    ):
        _FOLDS[kind] = function


_register()
