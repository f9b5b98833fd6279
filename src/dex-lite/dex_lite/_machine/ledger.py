"""What holds of the facts of a run, one after the other: double entry beside :func:`fold`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dex_lite._machine.facts import (
    AnyFact,
    AttemptBegun,
    AttemptFailed,
    AttemptGivenBack,
    ExecuteEntered,
    HeartbeatKept,
    LocksTaken,
    MessagesDeleted,
    MessagesPublished,
    MethodCompleted,
    MethodFailed,
    RetryFell,
    RunClosed,
    RunForked,
    RunStarted,
    StepScheduled,
    SubFlowEnded,
    TimerFired,
    WaitBegun,
    WaitWon,
)
from dex_lite._machine.model import RunState, StepExecution


class Ledger:
    """Counts what the facts of one run publish, take and begin, and says which of them cannot be.

    Every message that is published is consumed, deleted, waiting, or dropped by the run's end.
    """

    def __init__(self) -> None:
        self.published = self.consumed = self.deleted = self.dropped = 0
        self._waiting: dict[str, list[str]] = {}  # ids of messages by Channel
        self._begun: dict[tuple[str, str], int] = {}  # attempts by execution and method

    def follow(self, before: RunState | None, fact: AnyFact) -> Iterator[str]:
        """Enter the next fact, before it is folded; what keeps it from following this state."""
        if (before is None) != isinstance(fact, RunStarted):
            yield f"a {type(fact).__name__} is not what a run begins or goes on with"
        if before is None:
            return
        if not before.is_open:
            yield f"a {type(fact).__name__} comes after the end of the run"
        execution_id = getattr(fact, "execution_id", "")
        step = before.steps.get(execution_id)
        if execution_id and step is None and not isinstance(fact, StepScheduled):
            yield f"a {type(fact).__name__} is of Step {execution_id}, which is not open"
            return
        rule = _RULES.get(type(fact))
        if rule is not None:
            for fault in rule(self, before, step, fact):
                yield f"Step {execution_id}: {fault}" if execution_id else fault

    def imbalance(self, state: RunState) -> Iterator[str]:
        """Where the sum of all facts so far is not the state that they were folded to."""
        found = {
            name: [message.message_id for message in messages]
            for name, messages in state.channels.items()
        }
        for name in sorted(found.keys() | self._waiting.keys()):
            wanted = self._waiting.get(name, [])
            if found.get(name, []) != wanted:
                yield (
                    f"Channel {name!r} holds {len(found.get(name, []))} messages; by what was "
                    f"published, consumed and deleted it should hold {len(wanted)}"
                )
        waiting = sum(map(len, self._waiting.values()))
        if self.published != self.consumed + self.deleted + self.dropped + waiting:
            yield (
                f"{self.published} messages were published; {self.consumed} consumed, "
                f"{self.deleted} deleted, {self.dropped} dropped at the end, {waiting} wait"
            )
        for key, step in state.steps.items():
            begun = self._begun.get((key, step.method), 0)
            if begun != step.attempts_used:
                yield f"Step {key} counts {step.attempts_used} attempts, and {begun} were made"

    # Steps

    def _scheduled(
        self, before: RunState, step: StepExecution | None, fact: StepScheduled
    ) -> Iterator[str]:
        step_type, _, number = fact.execution_id.rpartition("-")
        if step is not None or number != str(before.counters.get(step_type, 0) + 1):
            yield "it is scheduled out of turn"

    def _locks_taken(
        self, before: RunState, step: StepExecution, fact: LocksTaken
    ) -> Iterator[str]:
        if not step.is_ready or step.has_locks:
            yield "it takes locks and does not want any now"
        for lock in sorted(before.held_locks() & set(step.method_options.locks)):
            yield f"it locks Attribute {lock!r}, which another Step has locked"

    def _attempt_begun(
        self, before: RunState, step: StepExecution, fact: AttemptBegun
    ) -> Iterator[str]:
        if not step.may_begin:
            yield "an attempt begins that may not begin now"
        yield from self._count(step, 1)

    def _attempt_given_back(
        self, before: RunState, step: StepExecution, fact: AttemptGivenBack
    ) -> Iterator[str]:
        yield from self._needs_attempt(before, step, fact)
        yield from self._count(step, -1)

    def _attempt_failed(
        self, before: RunState, step: StepExecution, fact: AttemptFailed
    ) -> Iterator[str]:
        if fact.is_counted_twice:  # it failed without having begun
            yield from self._count(step, 1)
        else:
            yield from self._needs_attempt(before, step, fact)

    def _count(self, step: StepExecution, change: int) -> Iterator[str]:
        key = step.execution_id, step.method
        self._begun[key] = begun = self._begun.get(key, 0) + change
        maximum = step.method_options.retry.maximum_attempts
        if begun < 0 or (maximum and begun > maximum):
            yield f"attempt {begun} of {step.method} is made, and {maximum} are permitted"

    def _needs_attempt(self, before: RunState, step: StepExecution, fact: AnyFact) -> Iterator[str]:
        if step.attempt is None:
            yield f"a {type(fact).__name__} is of an attempt, and none runs"

    def _retry_fell(self, before: RunState, step: StepExecution, fact: RetryFell) -> Iterator[str]:
        if not step.retry_at_ms:
            yield "a retry is due that was not planned"

    def _completed(
        self, before: RunState, step: StepExecution, fact: MethodCompleted
    ) -> Iterator[str]:
        yield from self._needs_attempt(before, step, fact)
        yield from self._is_in_method(before, step, fact)

    def _is_in_method(
        self, before: RunState, step: StepExecution, fact: MethodCompleted | MethodFailed
    ) -> Iterator[str]:
        if step.phase == "waiting" or fact.method != step.method:
            yield f"{fact.method} ends, and is not at work"

    def _execute_entered(
        self, before: RunState, step: StepExecution, fact: ExecuteEntered
    ) -> Iterator[str]:
        if step.phase != "wait_for":
            yield "it goes on to its Execute for the second time"

    # Waits

    def _wait_begun(self, before: RunState, step: StepExecution, fact: WaitBegun) -> Iterator[str]:
        if step.phase != "wait_for" and not step.is_timeout:
            yield "it begins to wait for the second time"
        if len(fact.timers_due) != len(fact.condition.timers):
            yield f"it waits for {len(fact.condition.timers)} timers, {len(fact.timers_due)} are set"

    def _timer_fired(
        self, before: RunState, step: StepExecution, fact: TimerFired
    ) -> Iterator[str]:
        fired = [timer.is_fired for timer in step.timers]
        yield from self._comes_once(step, f"timer {fact.index} fires", fact.index, fired)

    def _sub_flow_ended(
        self, before: RunState, step: StepExecution, fact: SubFlowEnded
    ) -> Iterator[str]:
        ended = [end is not None for end in step.sub_flow_ends]
        yield from self._comes_once(step, f"SubFlow {fact.index} ends", fact.index, ended)

    def _comes_once(
        self, step: StepExecution, what: str, index: int, came: list[bool]
    ) -> Iterator[str]:
        if not 0 <= index < len(came) or step.phase != "waiting":
            yield f"{what}, and nothing waits for it"
        elif came[index]:
            yield f"{what} twice"

    def _won(self, before: RunState, step: StepExecution, fact: WaitWon) -> Iterator[str]:
        if step.phase != "waiting":
            yield "a wait is won that had not begun, or twice"
        taken: dict[str, int] = {}
        for consumed in fact.consumed:
            start = taken.get(consumed.channel, 0)
            end = taken[consumed.channel] = start + len(consumed.values)
            oldest = before.channels.get(consumed.channel, [])[start:end]
            if tuple(message.value for message in oldest) != consumed.values:
                yield f"it consumes messages that are not the oldest of Channel {consumed.channel!r}"
        for name, count in taken.items():
            self.consumed += count
            self._waiting[name] = self._waiting.get(name, [])[count:]

    # Messages

    def _published(self, before: RunState, step: None, fact: MessagesPublished) -> Iterator[str]:
        for name, message_id, _ in fact.messages:
            waiting = self._waiting.setdefault(name, [])
            if waiting and message_id <= waiting[-1]:
                yield f"message {message_id} is published again, or out of turn, to {name!r}"
            waiting.append(message_id)
            self.published += 1

    def _deleted(self, before: RunState, step: None, fact: MessagesDeleted) -> Iterator[str]:
        for name, message_id in fact.messages:
            waiting = self._waiting.get(name, [])
            if message_id in waiting:
                waiting.remove(message_id)
                self.deleted += 1
            else:
                yield f"message {message_id} is deleted, and Channel {name!r} does not hold it"

    # The run

    def _forked(self, before: RunState, step: None, fact: RunForked) -> Iterator[str]:
        self._begun.clear()
        yield from ()

    def _closed(self, before: RunState, step: None, fact: RunClosed) -> Iterator[str]:
        self.dropped += sum(map(len, self._waiting.values()))
        self._waiting.clear()
        yield from ()


_Rule = Callable[[Ledger, RunState, Any, Any], Iterator[str]]
_RULES: dict[type, _Rule] = {
    StepScheduled: Ledger._scheduled,
    LocksTaken: Ledger._locks_taken,
    AttemptBegun: Ledger._attempt_begun,
    AttemptGivenBack: Ledger._attempt_given_back,
    AttemptFailed: Ledger._attempt_failed,
    HeartbeatKept: Ledger._needs_attempt,
    RetryFell: Ledger._retry_fell,
    MethodCompleted: Ledger._completed,
    MethodFailed: Ledger._is_in_method,
    ExecuteEntered: Ledger._execute_entered,
    WaitBegun: Ledger._wait_begun,
    TimerFired: Ledger._timer_fired,
    SubFlowEnded: Ledger._sub_flow_ended,
    WaitWon: Ledger._won,
    MessagesPublished: Ledger._published,
    MessagesDeleted: Ledger._deleted,
    RunForked: Ledger._forked,
    RunClosed: Ledger._closed,
}
