"""One command at work on one run: facts are folded as they are decided, effects gathered for the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Union

import msgspec

from dex_lite._machine.commands import SubFlowStart, Writes
from dex_lite._machine.facts import (
    AnyFact,
    AttributesWritten,
    LocalsKept,
    LocksTaken,
    MessagesDeleted,
    MessagesPublished,
    OutputAdded,
    RunClosed,
    RunStarted,
    SecretsWritten,
    StepEnded,
    StepLeft,
    StepScheduled,
    WaitWon,
)
from dex_lite._machine.fold import fold
from dex_lite._machine.model import (
    CANCELED,
    COMPLETED,
    FAILED,
    FLOW_TIMEOUT,
    FlowEnd,
    Movement,
    Output,
    Parent,
    Recovery,
    RunState,
    StepExecution,
    Value,
)
from dex_lite._machine.starts import retry_of
from dex_lite._machine.waits import won


class Ready(msgspec.Struct, frozen=True):
    """The method of this execution wants a Worker."""

    execution_id: str


class CancelTask(msgspec.Struct, frozen=True):
    """The attempt with this token is not wanted any more."""

    execution_id: str
    token: str


class SetTimer(msgspec.Struct, frozen=True):
    """Tell the machine when it is due: a retry (index -1) or a timer of a wait."""

    execution_id: str
    index: int
    due_ms: int


Effect = Ready | CancelTask | SetTimer


class StartSubFlow(msgspec.Struct, frozen=True):
    """A wait wants this Flow to end; started, or attached to if its Flow ID is in use."""

    parent: Parent
    flow_id: str
    sub_flow: SubFlowStart


class TellParent(msgspec.Struct, frozen=True):
    """The Flow ended; a wait of another run is told."""

    parent: Parent
    end: FlowEnd


class AttachSubFlow(msgspec.Struct, frozen=True):
    """A wait that was taken over from another run wants to hear of this Flow's end, too."""

    parent: Parent
    flow_id: str


Call = Union[RunStarted, StartSubFlow, TellParent, AttachSubFlow, "Turn"]
"""What a command causes in another run."""


class Turn:
    """Facts and effects of one command. ``foreign_locks`` are keys that RPCs in flight hold.

    ``calls`` is what the command causes in other runs, in the same commit; see :mod:`family`.
    """

    def __init__(self, state: RunState, now_ms: int, foreign_locks: frozenset[str] = frozenset()):
        self.state = state
        self.now_ms = now_ms
        self.foreign_locks = foreign_locks
        self.facts: list[AnyFact] = []
        self.effects: list[Effect] = []
        self.calls: list[Call] = []

    def emit(self, fact: AnyFact) -> None:
        """Decide a fact."""
        fold(self.state, fact)
        self.facts.append(fact)

    def schedule(
        self,
        source_id: str,
        movement: Movement,
        recovery: Recovery | None = None,
        not_before: int = 0,
    ) -> None:
        """Schedule one Step, for now or for later."""
        number = self.state.counters.get(movement.step_type, 0) + 1
        execution_id = f"{movement.step_type}-{number}"
        self.emit(
            StepScheduled(execution_id, source_id, movement, self.now_ms, recovery, not_before)
        )
        if not_before:
            self.effects.append(SetTimer(execution_id, -1, not_before))
        else:
            self.make_ready(self.state.steps[execution_id])

    def make_ready(self, step: StepExecution) -> None:
        """The step's method may start: at once, or when its locks are free."""
        if not step.method_options.locks or step.has_locks:
            self.effects.append(Ready(step.execution_id))
        else:
            self.grant_locks()

    def grant_locks(self) -> None:
        """Give free locks to waiting methods, first come first served; all locks of a method at once."""
        taken = self.state.held_locks() | self.foreign_locks
        for step in list(self.state.steps.values()):
            keys = step.method_options.locks
            if not keys or step.has_locks or not step.is_ready:
                continue
            if taken.isdisjoint(keys):
                self.emit(LocksTaken(step.execution_id))
                self.effects.append(Ready(step.execution_id))
            taken = taken | set(keys)

    def write(self, writes: Writes, execution_id: str | None = None) -> None:
        """Apply a handler's changes."""
        if writes.attributes:
            self.emit(AttributesWritten(writes.attributes, writes.indexes))
        if writes.secrets:
            self.emit(SecretsWritten(writes.secrets))
        self.delete(writes.deleted)
        self.publish(writes.published)
        if writes.step_locals and execution_id is not None:
            self.emit(LocalsKept(execution_id, writes.step_locals))

    def delete(self, deleted: Iterable[tuple[str, str]]) -> None:
        """Delete messages; absent ones do not matter."""
        present = tuple(
            (channel, message_id)
            for channel, message_id in deleted
            if any(m.message_id == message_id for m in self.state.channels.get(channel, ()))
        )
        if present:
            self.emit(MessagesDeleted(present))

    def publish(self, published: Iterable[tuple[str, Value]]) -> None:
        """Publish messages, with ids that sort in publishing order."""
        first = self.state.message_count + 1
        messages = tuple(
            (channel, f"{first + index:010d}-{self.state.run_id}", value)
            for index, (channel, value) in enumerate(published)
        )
        if messages:
            self.emit(MessagesPublished(messages))

    def end_step(
        self, step: StepExecution, how: Literal["completed", "failed", "canceled"]
    ) -> None:
        """End an execution; a cancelled one's task is told."""
        if step.attempt is not None and how == "canceled":
            self.effects.append(CancelTask(step.execution_id, step.attempt.token))
        self.emit(StepEnded(step.execution_id, how))

    def cancel(
        self, step_types: Iterable[str], siblings: Iterable[str], by: StepExecution | None
    ) -> None:
        """Cancel executions by type; of ``siblings`` only those with the same source as ``by``."""
        types, sibling_types = set(step_types), set(siblings)
        for step in list(self.state.steps.values()):
            if step.is_timeout or (by is not None and step.execution_id == by.execution_id):
                continue
            is_sibling = by is not None and step.source_id == by.source_id
            if step.step_type in types or (is_sibling and step.step_type in sibling_types):
                self.end_step(step, "canceled")

    def settle(self) -> None:
        """After any change: waits that are now met, locks that are now free, a completion that is now due."""
        if not self.state.is_open:
            return
        if self.state.is_completing and not self.state.has_user_steps:
            self.close(COMPLETED)
            return
        for step in list(self.state.steps.values()):
            if step.phase == "waiting":
                consumed = won(step, self.state.channels)
                if consumed is not None:
                    self.emit(WaitWon(step.execution_id, consumed))
                    if step.is_timeout and self._time_out():
                        return
                    self.make_ready(step)
        self.grant_locks()

    def _time_out(self) -> bool:
        """The Flow's time is over: whether that closes it, and is no matter of a handler."""
        timeout = self.state.timeout
        assert timeout is not None
        if timeout.policy == "handler":
            return False
        if timeout.policy == "cancel":
            self.close(CANCELED)
        else:
            seconds = timeout.after_ms // 1_000
            self.close(FAILED, FLOW_TIMEOUT, f"Flow timed out after {seconds} seconds")
        return True

    def add_output(self, step: StepExecution, value: Value | None) -> None:
        """Record a Flow output."""
        if value is not None:
            self.emit(OutputAdded(Output(step.step_type, step.execution_id, value)))

    def close(
        self,
        status: int,
        error_type: int = 0,
        error_message: str = "",
        *,
        may_retry: bool = True,
        followed_by: Turn | None = None,
    ) -> None:
        """Close the run; everything that runs is cancelled. A failed Flow may be tried again."""
        again = retry_of(self.state, self.now_ms) if status == FAILED and may_retry else None
        for step in self.state.steps.values():
            if step.attempt is not None:
                self.effects.append(CancelTask(step.execution_id, step.attempt.token))
        self.effects = [e for e in self.effects if not isinstance(e, Ready | SetTimer)]
        for step in self.state.steps.values():
            if step.phase != "waiting":
                self.emit(StepLeft(step.execution_id, self.now_ms))
        next_run_id = ""
        if again is not None:
            self.calls.append(again)
            next_run_id = again.run_id
        elif followed_by is not None:
            self.calls.append(followed_by)
            next_run_id = followed_by.state.run_id
        self.emit(RunClosed(status, self.now_ms, error_type, error_message, next_run_id))
        if not next_run_id:
            end = end_of(self.state)
            self.calls += [TellParent(parent, end) for parent in self.state.parents]


def end_of(state: RunState) -> FlowEnd:
    """How a closed run ended."""
    outputs = tuple(state.outputs) if state.status == COMPLETED else ()
    return FlowEnd(state.status, outputs, state.error_type, state.error_message)
