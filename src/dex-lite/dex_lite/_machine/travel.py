"""Time travel: a new run from a point in the log of an earlier one. Pure.

The new run begins with the facts of the old one up to a *cut*, and then the fact that it was forked. A cut is always
between two commands, so a decision is taken over whole or not at all. What was at work at the cut begins anew: nobody
can hand in its old attempts. Then come the writes of clients that were made after the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from dex_lite._machine import decide
from dex_lite._machine.facts import (
    AnyFact,
    AttemptBegun,
    AttemptFailed,
    AttributesWritten,
    ExternallyDeleted,
    ExternallyPublished,
    HeartbeatKept,
    LocalsKept,
    MessagesDeleted,
    MessagesPublished,
    MethodCompleted,
    MethodFailed,
    ParentAttached,
    RpcAnswered,
    RpcApplied,
    RunClosed,
    RunForked,
    RunStarted,
    SecretsWritten,
    ServedBy,
    StepEnded,
    StepLeft,
    StepScheduled,
    TimerFired,
    WaitWon,
)
from dex_lite._machine.fold import fold
from dex_lite._machine.model import Method, Movement, Parent, RunState, Value
from dex_lite._machine.turn import AttachSubFlow, Turn

_CLIENT_WRITE = (RpcApplied, ExternallyPublished, ExternallyDeleted)
_EVENT = (MethodCompleted, MethodFailed, RunClosed, *_CLIENT_WRITE)
_WRITES = (
    AttributesWritten,
    SecretsWritten,
    MessagesDeleted,
    MessagesPublished,
    LocalsKept,
    ServedBy,
)


class Target(msgspec.Struct, frozen=True):
    """Where to go back to. ``method`` is that of an execution; ``None`` is its first one."""

    kind: Literal["beginning", "time", "step_type", "execution"]
    at_ms: float = 0.0
    name: str = ""  # the Step type or the execution id
    method: Method | None = None


class Fork(msgspec.Struct, frozen=True):
    """What a new run is made of."""

    run_id: str
    run_attempt: int
    first_run_id: str
    reason: str
    cut: int  # so many facts of the old run
    with_writes: bool  # apply again what clients wrote after the cut
    parents: tuple[Parent, ...]  # that wait for the Flow's end
    secrets: Mapping[str, Value]  # hard-delete Attributes that the Flow has now


def find_cut(facts: Sequence[AnyFact], target: Target) -> int | None:
    """How many facts come before the target; ``None`` if the run never came to it."""
    if target.kind == "beginning":
        return 1
    if target.kind == "time":
        for index, fact in enumerate(facts):
            if isinstance(fact, _EVENT) and fact.at >= target.at_ms:
                return start_of_command(facts, index)
        return None
    return _before_method(facts, target)


def _before_method(facts: Sequence[AnyFact], target: Target) -> int | None:
    """Before the first attempt of a method; of the latest execution, if the target is a type."""
    cut: int | None = None
    begun: set[tuple[str, Method]] = set()
    in_execute: set[str] = set()
    for index, fact in enumerate(facts):
        if (isinstance(fact, StepScheduled) and fact.movement.options.skip_wait_for) or (
            isinstance(fact, MethodCompleted | MethodFailed) and fact.method == "wait_for"
        ):
            in_execute.add(fact.execution_id)
        elif isinstance(fact, AttemptBegun):
            execution_id = fact.execution_id
            method: Method = "execute" if execution_id in in_execute else "wait_for"
            if (execution_id, method) in begun:
                continue
            is_first = not any((execution_id, other) in begun for other in ("wait_for", "execute"))
            begun.add((execution_id, method))
            if target.kind == "step_type":
                if is_first and execution_id.rpartition("-")[0] == target.name:
                    cut = index
            elif execution_id == target.name and (
                is_first if target.method in (None, "wait_for") else method == target.method
            ):
                return index
    return cut


def start_of_command(facts: Sequence[AnyFact], event: int) -> int:
    """The first fact of the command that an event belongs to."""
    first = event
    while first > 1 and _comes_with(facts[first - 1], facts[first]):
        first -= 1
    return first


def _comes_with(before: AnyFact, fact: AnyFact) -> bool:
    """Whether the first of two neighbours is of the same command, or one that may be decided again."""
    if isinstance(fact, MethodFailed):
        return isinstance(before, AttemptFailed)
    if isinstance(fact, AttemptFailed):
        return isinstance(before, HeartbeatKept)
    if isinstance(fact, RunClosed | StepLeft | WaitWon | TimerFired):
        # A timeout. What another command before it let a wait win, the new run lets it win again.
        return isinstance(before, StepLeft | WaitWon | TimerFired)
    return _is_before_event(before)


def _is_before_event(fact: AnyFact) -> bool:
    is_cancel = isinstance(fact, StepEnded) and fact.how == "canceled"
    return is_cancel or isinstance(fact, _WRITES)


def fork(facts: Sequence[AnyFact], old: RunState, what: Fork, now_ms: int) -> Turn:
    """The new run, and everything that its first commit holds."""
    started = facts[0]
    assert isinstance(started, RunStarted)
    begin = msgspec.structs.replace(
        started,
        run_id=what.run_id,
        run_attempt=what.run_attempt,
        first_run_id=what.first_run_id,
        backoff_ms=0,
    )
    turn = Turn(fold(None, begin), now_ms)
    turn.facts.append(begin)
    for fact in facts[1 : what.cut]:
        turn.emit(fact)
    turn.emit(
        RunForked(
            at=now_ms,
            previous_run_id=old.run_id,
            previous_run_attempt=old.run_attempt,
            target=what.cut,
            message_count=old.message_count,
            reason=what.reason,
        )
    )
    _take_over(turn, what.secrets)
    for parent in what.parents:
        if parent not in turn.state.parents:
            turn.emit(ParentAttached(parent))
    if what.cut == 1:
        decide.begin_run(turn, begin)
    else:
        _await_sub_flows(turn)
        decide.recover(turn)
    if what.with_writes:
        for write in _client_writes(facts[what.cut :]):
            if turn.state.is_open:
                _apply_again(turn, write)
    return turn


def _take_over(turn: Turn, secrets: Mapping[str, Value]) -> None:
    """Hard-delete Attributes are what they are now: their values of then are nowhere.

    A name that was another Attribute's then is that one's again.
    """
    then = turn.state.secrets
    now = [
        item for item in secrets.items() if item[0] in then or item[0] not in turn.state.attributes
    ]
    gone = [(key, None) for key in then if key not in secrets]
    if gone or now:
        turn.emit(SecretsWritten((*gone, *now)))


def _await_sub_flows(turn: Turn) -> None:
    """The Flows that a wait still waits for tell the old run; the new one wants to hear it too."""
    for step in turn.state.steps.values():
        if step.phase != "waiting" or step.condition is None:
            continue
        for index, condition in enumerate(step.condition.sub_flows):
            if step.sub_flow_ends[index] is None:
                parent = Parent(turn.state.run_id, step.execution_id, index)
                turn.calls.append(AttachSubFlow(parent, condition.flow_id))


class _ClientWrite:
    """One command of a client, as the facts that it left."""

    def __init__(self, event: AnyFact, before: list[AnyFact]) -> None:
        self.event = event
        self.before = before
        self.steps: list[tuple[str, Movement]] = []
        self.answers: list[RpcAnswered] = []


def _client_writes(facts: Sequence[AnyFact]) -> Iterator[_ClientWrite]:
    pending: list[AnyFact] = []
    write: _ClientWrite | None = None
    for fact in facts:
        if _is_before_event(fact):
            pending.append(fact)
            continue
        before, pending = pending, []
        if isinstance(fact, _CLIENT_WRITE):
            if write is not None:
                yield write
            write = _ClientWrite(fact, before)
        elif write is None:
            continue
        elif isinstance(fact, StepScheduled) and fact.source_id.startswith(decide.RPC_SOURCE):
            write.steps.append((fact.source_id, fact.movement))
        elif isinstance(fact, RpcAnswered):
            write.answers.append(fact)
    if write is not None:
        yield write


def _apply_again(turn: Turn, write: _ClientWrite) -> None:
    """Messages keep their ids: a later command may delete them by these."""
    canceled: dict[str, None] = {}
    for fact in write.before:
        if isinstance(fact, MessagesDeleted):
            turn.delete(fact.messages)
        elif isinstance(fact, AttributesWritten):
            # A name may have gone over to a hard-delete Attribute later.
            writes = tuple(w for w in fact.writes if w[0] not in turn.state.secrets)
            indexes = tuple(use for use in fact.indexes if use.attribute not in turn.state.secrets)
            turn.emit(AttributesWritten(writes, indexes))
        elif isinstance(fact, MessagesPublished):
            turn.emit(fact)
        elif isinstance(fact, StepEnded):
            canceled[fact.execution_id.rpartition("-")[0]] = None
    turn.cancel(canceled, (), None)
    assert isinstance(write.event, _CLIENT_WRITE)
    turn.emit(msgspec.structs.replace(write.event, at=turn.now_ms))
    for source_id, movement in write.steps:
        turn.schedule(source_id, movement)
    for answer in write.answers:
        turn.emit(answer)
    turn.settle()
