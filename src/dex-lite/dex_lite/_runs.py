"""A run in memory: its state, and what belongs to it only while this process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from dex.dexpb import dex_pb2 as pb

from dex_lite._blobs import Blob
from dex_lite._journal import Journal
from dex_lite._machine.facts import AnyFact, decode_fact
from dex_lite._machine.fold import fold
from dex_lite._machine.model import RunState, Value
from dex_lite._records import RunRow
from dex_lite._secrets import put_back
from dex_lite._wire.tasks import Snapshot
from dex_lite._worker_slot import Task, TaskSlot

_FACTS_A_READ = 2_000
_CLOSED_RUNS_KEPT = 256
_CLOSED_BYTES_KEPT = 64 << 20


class StepTask(Task):
    """One ready method of a Step execution."""

    __slots__ = ("execution_id", "run", "strict_timer")

    def __init__(
        self, run: Run, execution_id: str, kind: Any, name: str, *, is_last_attempt: bool
    ) -> None:
        super().__init__(
            kind,
            run.state.flow_type,
            name,
            run.state.flow_id,
            sticky_worker=run.state.worker_id or None,
            is_last_attempt=is_last_attempt,
        )
        self.run = run
        self.execution_id = execution_id
        self.strict_timer: asyncio.TimerHandle | None = None


class LiveAttempt:
    """The attempt of a Step that a Worker has, or will have once its mark is durable."""

    __slots__ = (
        "beat_at",
        "blobs",
        "deadline_ms",
        "flush_timer",
        "flushed_at",
        "heartbeat",
        "is_heartbeat_new",
        "slot",
        "timer",
    )

    def __init__(self, slot: TaskSlot, deadline_ms: int, blobs: Mapping[str, Blob]) -> None:
        self.slot = slot
        self.blobs = blobs  # that the task names, by id
        self.deadline_ms = deadline_ms
        self.beat_at = 0.0
        self.heartbeat: Value | None = None
        self.is_heartbeat_new = False
        self.flushed_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.flush_timer: asyncio.TimerHandle | None = None

    def stop_timers(self) -> None:
        """It is over."""
        for timer in (self.timer, self.flush_timer):
            if timer is not None:
                timer.cancel()


@dataclass
class Loading:
    """A Worker loads the blobs of a task in several answers, each of which ends a delivery."""

    worker_id: str
    deliveries: int


class Waiter:
    """A client that waits for something about a run, or about the Flow beyond its retries."""

    __slots__ = ("among", "check", "follows", "future")

    def __init__(
        self, check: Callable[[RunState], Any], future: asyncio.Future[Any], *, follows: bool
    ) -> None:
        self.check = check
        self.future = future
        self.follows = follows
        self.among: list[Waiter] = []

    def join(self, run: Run) -> None:
        """Wait for this run from now on."""
        self.among = run.waiters
        self.among.append(self)


class Run:
    """One run. Everything but ``state`` may be dropped at any time without harm to what is durable."""

    __slots__ = (
        "commit",
        "live",
        "loading",
        "rpc_locks",
        "rpcs",
        "snapshot_at",
        "snapshots",
        "state",
        "tails",
        "tasks",
        "waiters",
    )

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.commit = 0  # the last commit that holds facts of this run
        self.snapshot_at = state.fact_count
        self.tasks: dict[str, StepTask] = {}  # offered, by execution id
        self.live: dict[str, LiveAttempt] = {}  # by execution id
        self.snapshots: dict[str, Snapshot] = {}  # of methods that have begun, by execution id
        self.loading: dict[str, Loading] = {}  # of methods that have begun, by execution id
        self.waiters: list[Waiter] = []
        self.tails: list[list[AnyFact]] = []  # whoever reads the log wants what comes meanwhile
        self.rpc_locks: set[str] = set()
        self.rpcs: dict[str, tuple[str, asyncio.Future[pb.InvokeRPCResponse]]] = {}

    def row(self) -> RunRow:
        """The run's row in the journal."""
        state = self.state
        return RunRow(
            run_id=state.run_id,
            flow_id=state.flow_id,
            flow_type=state.flow_type,
            status=state.status,
            run_attempt=state.run_attempt,
            request_id=state.request_id,
            first_run_id=state.first_run_id or state.run_id,
            start_ms=state.start_ms,
            close_ms=state.close_ms or None,
        )

    def is_snapshot_due(self) -> bool:
        """Often enough that a start is quick, seldom enough that a long run does not rewrite itself."""
        count = self.state.fact_count
        return self.state.is_open and count - self.snapshot_at >= max(256, count // 8)


class ClosedStates:
    """States of closed runs that were needed last, up to a number of them and of bytes; one at least."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[RunState, int]] = {}
        self._bytes = 0

    def get(self, run_id: str) -> RunState | None:
        """The state, if it is kept."""
        kept = self._states.get(run_id)
        return None if kept is None else kept[0]

    def keep(self, state: RunState) -> None:
        """Keep a state, and drop the oldest ones that there is no room for."""
        self.drop(state.run_id)
        size = sum(map(len, state.attributes.values())) + sum(len(o.value) for o in state.outputs)
        self._states[state.run_id] = (state, size)
        self._bytes += size
        while len(self._states) > 1 and (
            len(self._states) > _CLOSED_RUNS_KEPT or self._bytes > _CLOSED_BYTES_KEPT
        ):
            self.drop(next(iter(self._states)))

    def drop(self, run_id: str) -> None:
        """Forget a state; harmless if it is not kept."""
        _, size = self._states.pop(run_id, (None, 0))
        self._bytes -= size


async def read_state(journal: Journal, run_id: str) -> RunState | None:
    """The durable state of a run that is not in memory; ``None`` if there is no such run."""
    state: RunState | None = None
    number = 1
    while facts := await journal.facts(run_id, number, _FACTS_A_READ):
        for _, payload in facts:
            state = fold(state, decode_fact(payload))
        number = facts[-1][0] + 1
    if state is not None and state.secrets:
        put_back(state, await journal.secrets(run_id))
    return state


class FactNumber(msgspec.Struct, frozen=True):
    """Where a run's history stands."""

    last_event: int
    status: int
