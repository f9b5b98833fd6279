"""The engine: state of all runs in memory, and the one order of things.

A command is decided and folded, its facts are handed to the journal, and what they cause outside is released
when they are on disk. Everything here runs on one loop and never waits between reading a state and submitting its
change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_lite._attempts import Attempts
from dex_lite._blobs import Blobs
from dex_lite._dialer import Dialer
from dex_lite._indexes import Indexes
from dex_lite._journal import Journal
from dex_lite._logs import event
from dex_lite._machine import decide
from dex_lite._machine.facts import (
    MethodCompleted,
    MethodFailed,
    RunClosed,
    RunStarted,
    StepEnded,
    decode_fact,
    decode_state,
    encode_fact,
    encode_state,
)
from dex_lite._machine.family import spread
from dex_lite._machine.fold import fold
from dex_lite._machine.model import RunState
from dex_lite._machine.turn import CancelTask, Effect, Ready, SetTimer, Turn
from dex_lite._matching import Matcher
from dex_lite._meter import Meter
from dex_lite._options import EngineOptions
from dex_lite._records import AddFacts, DropSecrets, PutRun, PutSnapshot, RunRow, Write
from dex_lite._retention import Retention
from dex_lite._runs import ClosedStates, Run, Waiter, read_state
from dex_lite._secrets import put_back, secret_writes
from dex_lite._stream_log import StreamLog
from dex_lite._timers import Timers, now_ms
from dex_lite._wire.errors import ServiceError, flow_missing, long_poll_over, unavailable
from dex_lite._wire.results import ResultReader
from dex_lite._wire.starts import worker_address
from dex_lite._worker_slot import Task


class Engine:
    """All runs of one data file."""

    def __init__(
        self,
        journal: Journal,
        matcher: Matcher,
        streams: StreamLog,
        options: EngineOptions,
        meter: Meter | None = None,
    ) -> None:
        self.meter = meter or Meter()
        self.journal = journal
        self.matcher = matcher
        self.streams = streams
        self.blobs = Blobs()
        self.options = options
        self.rows: dict[str, RunRow] = {row.flow_id: row for row in journal.latest_runs()}
        self.runs: dict[str, Run] = {}
        self.indexes = Indexes(journal, lambda: (run.state for run in self.runs.values()))
        floor_ms = int(options.heartbeat_floor_s * 1_000)
        self.reader = ResultReader(options.limits, floor_ms, self.indexes.types)
        self._closed = ClosedStates()
        self.attempts = Attempts(self)
        matcher.set_host(self.attempts)
        self.dialer = Dialer(options.limits.request)
        self.dialer.set_host(self.attempts)
        self._retention = Retention(self, options.retention_s)
        self._timers = Timers(self._timer_due, self._is_timer_wanted)
        self._is_stopping = False
        self._stopped: str | None = None
        self._pending: set[asyncio.Future[Any]] = set()  # calls that wait for a commit

    # Start and stop

    def recover(self) -> None:
        """Load the open runs and take up their work. Blocks; call once, before anybody connects."""
        for stored in self.journal.open_runs():
            state: RunState | None = None
            if stored.snapshot is not None:
                state = decode_state(stored.snapshot[1])
            for _, payload in stored.facts:
                state = fold(state, decode_fact(payload))
            assert state is not None
            put_back(state, stored.secrets)
            run = self.runs[state.run_id] = Run(state)
            run.snapshot_at = stored.snapshot[0] if stored.snapshot else 0
        for run in list(self.runs.values()):
            turn = self.turn(run)
            decide.recover(turn)
            self.store(run, turn)
        self._retention.start()
        self.indexes.start()

    def stop(self, reason: str) -> None:
        """Answer everybody who waits that it is over; take nothing more."""
        if self._stopped is not None:
            return
        self._stopped = reason
        self._timers.close()
        self._retention.close()
        self.indexes.close()
        for run in self.runs.values():
            for live in run.live.values():
                live.stop_timers()
            for waiter in run.waiters:
                if not waiter.future.done():
                    waiter.future.set_exception(unavailable(reason))
            run.waiters.clear()
            for _, future in run.rpcs.values():
                if not future.done():
                    future.set_exception(unavailable(reason))
        for pending in self._pending:
            if not pending.done():
                pending.set_exception(unavailable(reason))
        self.streams.close()

    @property
    def is_stopped(self) -> bool:
        """Whether the engine takes nothing more."""
        return self._stopped is not None

    def begin_stop(self) -> None:
        """Take no new Flows and RPCs; what runs may still end, and be waited for."""
        self._is_stopping = True

    def check_taking(self) -> None:
        """Raise if the engine takes no new work."""
        self.check_running()
        if self._is_stopping:
            raise unavailable("the engine is stopping and takes no new Flows and RPCs")

    def check_running(self) -> None:
        """Raise if the engine takes no more calls."""
        if self._stopped is not None:
            raise unavailable(self._stopped)

    # One command

    def turn(self, run: Run) -> Turn:
        """A turn of this run, now."""
        return Turn(run.state, now_ms(), frozenset(run.rpc_locks))

    def store(self, run: Run, turn: Turn, read: Mapping[str, RunState] | None = None) -> int:
        """Hand a turn's facts, and those that it causes in other runs, to the journal as one commit.

        Sets the effects going and returns the number of the commit. ``read`` holds the closed runs of
        :meth:`unread`, by run id.
        """
        writes: list[Write] = []
        moved: list[tuple[Run, Turn]] = []
        for each in spread(turn, _Reachable(self, read or {})):
            its_run = run if each is turn else self._run_of(each.state)
            writes += self._writes(its_run, each)
            moved.append((its_run, each))
        if writes:
            commit = self.journal.submit(writes)
            for its_run, each in moved:
                if each.facts:
                    its_run.commit = commit
        for its_run, each in moved:
            if each.facts:
                self._tell_waiters(its_run)
        for its_run, each in moved:
            for effect in each.effects:
                self._effect(its_run, effect)
            if not its_run.state.is_open:
                self.let_go(its_run)
        return run.commit

    def unread(self, flow_ids: Iterable[str], read: Mapping[str, RunState]) -> list[RunRow]:
        """Newest runs of these Flow IDs whose states are not in memory."""
        rows = (self.rows.get(flow_id) for flow_id in flow_ids)
        return [
            row for row in rows if row and row.run_id not in self.runs and row.run_id not in read
        ]

    def offer(self, task: Task, state: RunState) -> None:
        """Give a task to the Workers of its Flow, wherever these are."""
        address = worker_address(state.config)
        if address:
            self.dialer.offer(task, address)
        else:
            self.matcher.offer(task)

    def start_run(self, started: RunStarted) -> Run:
        """A new run; its ``commit`` is the one to wait for."""
        turn = decide.start(started)
        run = self._run_of(turn.state)
        self.store(run, turn)
        return run

    def store_new(self, turn: Turn, read: Mapping[str, RunState] | None = None) -> int:
        """As :meth:`store`, of a run that is not yet one of this engine's."""
        return self.store(self._run_of(turn.state), turn, read)

    def _run_of(self, state: RunState) -> Run:
        run = self.runs.get(state.run_id)
        if run is None:
            run = self.runs[state.run_id] = Run(state)
            run.snapshot_at = 0
        return run

    def _writes(self, run: Run, turn: Turn) -> list[Write]:
        """What the journal has to keep of a turn that was just decided."""
        if not turn.facts:
            return []
        state = run.state
        for tail in run.tails:
            tail.extend(turn.facts)
        first = state.fact_count - len(turn.facts) + 1
        writes: list[Write] = [
            AddFacts(state.run_id, first, [encode_fact(fact) for fact in turn.facts])
        ]
        is_row_new = False
        for fact in turn.facts:
            if isinstance(fact, StepEnded):
                self.attempts.forget(run, fact.execution_id)
            elif isinstance(fact, MethodCompleted | MethodFailed):
                run.snapshots.pop(fact.execution_id, None)
                run.loading.pop(fact.execution_id, None)
            elif isinstance(fact, RunStarted | RunClosed):
                is_row_new = True
                _note_run(state)
        if is_row_new:
            row = run.row()
            writes.insert(0, PutRun(row))  # the journal wants a run before its facts
            before = self.rows.get(state.flow_id)
            if before is not None and before.run_id != state.run_id:
                # A Flow has its hard-delete Attributes once, in its newest run.
                writes.append(DropSecrets(before.run_id))
                self._closed.drop(before.run_id)
            self.rows[state.flow_id] = row
        writes += secret_writes(state, turn.facts)
        writes += self.indexes.writes(state, turn.facts)
        if run.is_snapshot_due():
            run.snapshot_at = state.fact_count
            writes.append(PutSnapshot(state.run_id, state.fact_count, encode_state(state)))
        return writes

    def _effect(self, run: Run, effect: Effect) -> None:
        if isinstance(effect, Ready):
            self.attempts.offer(run, effect.execution_id)
        elif isinstance(effect, CancelTask):
            self.attempts.cancel(run, effect.execution_id)
        elif isinstance(effect, SetTimer):
            self._timers.set(effect.due_ms, run.state.run_id, effect.execution_id, effect.index)

    def let_go(self, run: Run) -> None:
        """A closed run leaves memory as soon as its end is durable and no RPC needs it."""
        for execution_id in [*run.tasks, *run.live]:
            self.attempts.forget(run, execution_id)
        self.journal.when_durable(run.commit, partial(self._drop_run, run))

    def _drop_run(self, run: Run) -> None:
        if run.rpcs:  # the last of them calls `let_go` again
            return
        self.runs.pop(run.state.run_id, None)
        self._keep_closed(run.state)

    def forget(self, row: RunRow) -> None:
        """A closed run is deleted."""
        self._closed.drop(row.run_id)
        newest = self.rows.get(row.flow_id)
        if newest is not None and newest.run_id == row.run_id:
            del self.rows[row.flow_id]

    def _keep_closed(self, state: RunState) -> None:
        newest = self.rows.get(state.flow_id)
        if state.secrets and (newest is None or newest.run_id != state.run_id):
            return  # the file has them no more
        self._closed.keep(state)

    def _timer_due(self, run_id: str, execution_id: str, index: int) -> None:
        run = self.runs.get(run_id)
        if run is None or not run.state.is_open:
            return
        turn = self.turn(run)
        step = run.state.steps.get(execution_id)
        if index >= 0:
            decide.fire_timer(turn, execution_id, index)
        elif step is not None and step.retry_at_ms and step.retry_at_ms <= turn.now_ms:
            decide.retry_fell(turn, execution_id)
        self.store(run, turn)

    def _is_timer_wanted(self, run_id: str, execution_id: str, index: int) -> bool:
        run = self.runs.get(run_id)
        step = None if run is None else run.state.steps.get(execution_id)
        if step is None:
            return False
        if index < 0:
            return bool(step.retry_at_ms)
        return step.phase == "waiting" and not step.timers[index].is_fired

    # Looking and waiting

    def find(self, flow_id: str, run_id: str = "") -> RunRow:
        """The row of the named run, or of the Flow's newest one.

        Raises:
            ServiceError: There is none.
        """
        self.check_running()
        row = self.rows.get(flow_id)
        if row is None:
            raise flow_missing(flow_id)
        if run_id and row.run_id != run_id:
            raise flow_missing(flow_id, f"is at run {row.run_id!r}, not at {run_id!r}")
        return row

    def find_open(self, flow_id: str, run_id: str = "") -> Run:
        """The open run.

        Raises:
            ServiceError: There is none, or it is closed.
        """
        row = self.find(flow_id, run_id)
        run = self.runs.get(row.run_id)
        if run is None or not run.state.is_open:
            raise flow_missing(flow_id, "is closed")
        return run

    async def find_any(self, flow_id: str, run_id: str = "") -> RunRow:
        """The row of the named run, an older one too, or of the Flow's newest one.

        Raises:
            ServiceError: There is none.
        """
        self.check_running()
        row = self.rows.get(flow_id)
        if row is not None and run_id and row.run_id != run_id:
            run = self.runs.get(run_id)
            row = run.row() if run is not None else await self.journal.run(run_id)
        if row is None or row.flow_id != flow_id:
            is_known = flow_id in self.rows
            raise flow_missing(flow_id, f"has no run {run_id!r}" if is_known else "does not exist")
        return row

    async def state_of(self, row: RunRow) -> RunState:
        """The durable state of a run, from memory or read back."""
        run = self.runs.get(row.run_id)
        if run is not None:
            await self.settled(run)
            return run.state
        state = self._closed.get(row.run_id)
        if state is None:
            state = await read_state(self.journal, row.run_id)
            if state is None:
                raise flow_missing(row.flow_id)
            self._keep_closed(state)
        return state

    async def settled(self, run: Run) -> None:
        """Wait until everything decided about the run so far is on disk."""
        if run.commit > self.journal.durable:
            await self.durable(run.commit)

    async def durable(self, commit: int) -> None:
        """Wait for a commit.

        Raises:
            ServiceError: The engine stops before.
        """
        if commit <= self.journal.durable:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.add(future)
        self.journal.when_durable(commit, partial(_resolve, future, None))
        try:
            await future
        finally:
            self._pending.discard(future)

    async def wait(
        self, run: Run, check: Any, timeout_s: float, message: str, *, follows: bool = True
    ) -> Any:
        """The first result of ``check(state)`` that is not ``None``, once it is durable.

        ``follows`` is for what is said of a Flow and not of a run: a run that a Flow retry follows
        is not asked how it ended.

        Raises:
            ServiceError: The time is over, or ``check`` gave it.
        """
        found = check(run.state)
        if found is not None:
            await self.settled(run)
            return _raised(found)
        self.check_running()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiter = Waiter(check, future, follows=follows)
        waiter.join(run)
        try:
            async with asyncio.timeout(timeout_s):
                found = await future
        except TimeoutError:
            raise long_poll_over(message) from None
        finally:
            if waiter in waiter.among:
                waiter.among.remove(waiter)
        return _raised(found)

    def _tell_waiters(self, run: Run) -> None:
        if not run.waiters:
            return
        left = []
        after = self.runs.get(run.state.next_run_id)
        for waiter in run.waiters:
            if after is not None and waiter.follows:
                waiter.join(after)
                continue
            found = waiter.check(run.state)
            if found is None:
                left.append(waiter)
            else:
                self.journal.when_durable(run.commit, partial(_resolve, waiter.future, found))
        run.waiters[:] = left


class _Reachable:
    """The runs that a command may reach (``family.Runs``)."""

    def __init__(self, engine: Engine, read: Mapping[str, RunState]) -> None:
        self._engine = engine
        self._read = read

    def latest(self, flow_id: str) -> RunState | None:
        row = self._engine.rows.get(flow_id)
        if row is None:
            return None
        run = self._engine.runs.get(row.run_id)
        return self._read[row.run_id] if run is None else run.state

    def turn(self, run_id: str) -> Turn | None:
        run = self._engine.runs.get(run_id)
        return self._engine.turn(run) if run is not None and run.state.is_open else None


def _note_run(state: RunState) -> None:
    event(
        logging.INFO,
        "flow_started" if state.is_open else "flow_closed",
        "a Flow started" if state.is_open else "a Flow closed",
        flow_id=state.flow_id,
        run_id=state.run_id,
        flow_type=state.flow_type,
        status=pb.FlowStatus.Name(state.status).removeprefix("FLOW_STATUS_").lower(),
    )


def _raised(found: Any) -> Any:
    if isinstance(found, ServiceError):
        raise found
    return found


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
