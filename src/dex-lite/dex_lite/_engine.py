"""The engine: state of all runs in memory, and the one order of things.

A command is decided and folded, its facts are handed to the journal, and what they cause outside is released
when they are on disk. Everything here runs on one loop and never waits between reading a state and submitting its
change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import Any

from dex.dexpb import dex_pb2 as pb

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
    fold,
)
from dex_lite._machine.model import Failure, RunState, StepExecution
from dex_lite._machine.turn import CancelTask, Effect, Ready, SetTimer, Turn
from dex_lite._matching import Matcher, Slot, Task, Unstarted
from dex_lite._meter import Meter
from dex_lite._options import EngineOptions
from dex_lite._records import AddFacts, PutRun, PutSnapshot, RunRow, Write
from dex_lite._rpcs import RpcTask
from dex_lite._runs import LiveAttempt, Run, StepTask, Waiter
from dex_lite._stream_log import StreamKey, StreamLog
from dex_lite._timers import Timers, now_ms
from dex_lite._wire.errors import ServiceError, flow_missing, long_poll_over, unavailable
from dex_lite._wire.options import BadRequest
from dex_lite._wire.results import ResultReader
from dex_lite._wire.tasks import step_snapshot, step_task

_LOGGER = logging.getLogger("dex_lite")
_HEARTBEAT_FLUSH_S = 0.2
_TIMEOUT_GRACE_MS = 250
_FACTS_A_READ = 2_000
_CLOSED_RUNS_KEPT = 256


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
        self.options = options
        self.reader = ResultReader(options.limits, int(options.heartbeat_floor_s * 1_000))
        self.index_types = journal.index_types()
        self.rows: dict[str, RunRow] = {row.flow_id: row for row in journal.latest_runs()}
        self.runs: dict[str, Run] = {}
        self._closed: dict[str, RunState] = {}  # recently read ones
        self._timers = Timers(self._timer_due)
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
            run = self.runs[state.run_id] = Run(state)
            run.snapshot_at = stored.snapshot[0] if stored.snapshot else 0
        for run in list(self.runs.values()):
            turn = self.turn(run)
            decide.recover(turn)
            self.store(run, turn)

    def stop(self, reason: str) -> None:
        """Answer everybody who waits that it is over; take nothing more."""
        if self._stopped is not None:
            return
        self._stopped = reason
        self._timers.close()
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

    def check_running(self) -> None:
        """Raise if the engine takes no more calls."""
        if self._stopped is not None:
            raise unavailable(self._stopped)

    # One command

    def turn(self, run: Run) -> Turn:
        """A turn of this run, now."""
        return Turn(run.state, now_ms(), frozenset(run.rpc_locks))

    def store(self, run: Run, turn: Turn) -> int:
        """Hand a turn's facts to the journal and set its effects going; the number of their commit."""
        if turn.facts:
            state = run.state
            first = state.fact_count - len(turn.facts) + 1
            writes: list[Write] = [
                AddFacts(state.run_id, first, [encode_fact(fact) for fact in turn.facts])
            ]
            is_row_new = False
            for fact in turn.facts:
                if isinstance(fact, StepEnded):
                    self._forget_step(run, fact.execution_id)
                elif isinstance(fact, MethodCompleted | MethodFailed):
                    run.snapshots.pop(fact.execution_id, None)
                elif isinstance(fact, RunStarted | RunClosed):
                    is_row_new = True
                    _note_run(state)
            if is_row_new:
                row = run.row()
                writes.insert(0, PutRun(row))  # the journal wants a run before its facts
                self.rows[state.flow_id] = row
            if run.is_snapshot_due():
                run.snapshot_at = state.fact_count
                writes.append(PutSnapshot(state.run_id, state.fact_count, encode_state(state)))
            run.commit = self.journal.submit(writes)
            self._tell_waiters(run)
        commit = run.commit
        for effect in turn.effects:
            self._effect(run, effect)
        if not run.state.is_open:
            self.let_go(run)
        return commit

    def _effect(self, run: Run, effect: Effect) -> None:
        if isinstance(effect, Ready):
            self._offer(run, effect.execution_id)
        elif isinstance(effect, CancelTask):
            live = run.live.pop(effect.execution_id, None)
            if live is not None:
                live.stop_timers()
                live.slot.cancel()
        elif isinstance(effect, SetTimer):
            self._timers.set(effect.due_ms, run.state.run_id, effect.execution_id, effect.index)

    def let_go(self, run: Run) -> None:
        """A closed run leaves memory as soon as its end is durable and no RPC needs it."""
        for execution_id in [*run.tasks, *run.live]:
            self._forget_step(run, execution_id)
        self.journal.when_durable(run.commit, partial(self._drop_run, run))

    def _drop_run(self, run: Run) -> None:
        if run.rpcs:  # the last of them calls `let_go` again
            return
        self.runs.pop(run.state.run_id, None)
        self._keep_closed(run.state)

    def _keep_closed(self, state: RunState) -> None:
        self._closed[state.run_id] = state
        while len(self._closed) > _CLOSED_RUNS_KEPT:
            del self._closed[next(iter(self._closed))]

    def _forget_step(self, run: Run, execution_id: str) -> None:
        task = run.tasks.pop(execution_id, None)
        if task is not None:
            self.matcher.withdraw(task)
            if task.strict_timer is not None:
                task.strict_timer.cancel()
        run.snapshots.pop(execution_id, None)
        live = run.live.pop(execution_id, None)
        if live is not None:
            live.stop_timers()
            live.slot.cancel()

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

    # Attempts

    def _offer(self, run: Run, execution_id: str) -> None:
        step = run.state.steps.get(execution_id)
        if step is None or not step.is_ready or execution_id in run.tasks:
            return
        task = StepTask(
            run,
            execution_id,
            step.method,
            step.step_type,
            is_last_attempt=decide.is_last_attempt(step),
        )
        run.tasks[execution_id] = task
        if self.options.strict_dispatch:
            loop = asyncio.get_running_loop()
            task.strict_timer = loop.call_later(
                self.options.step_dispatch_wait_s, self._not_dispatched, task
            )
        self.matcher.offer(task)

    def _not_dispatched(self, task: StepTask) -> None:
        run = task.run
        if run.tasks.get(task.execution_id) is not task:
            return
        is_unknown = self.matcher.refused_by_all(task)
        self._forget_step(run, task.execution_id)
        failure = Failure(
            f"no Worker took {task.name} within {self.options.step_dispatch_wait_s:g} s",
            "UNKNOWN_NAME" if is_unknown else "NO_WORKER_AVAILABLE",
            is_delivered=False,
        )
        self._note_failed(run, task.execution_id, failure)
        turn = self.turn(run)
        decide.fail_dispatch(turn, task.execution_id, failure)
        self.store(run, turn)

    def begin(self, task: Task, slot: Slot) -> bool:
        """A stream is free for a task (MatcherHost)."""
        if isinstance(task, RpcTask):
            return task.begin(slot)
        assert isinstance(task, StepTask)
        run = task.run
        if run.tasks.get(task.execution_id) is task:
            del run.tasks[task.execution_id]
        if task.strict_timer is not None:
            task.strict_timer.cancel()
        if self._stopped is not None:
            return False
        turn = self.turn(run)
        step = decide.begin(turn, task.execution_id, slot.token, slot.worker_id)
        if step is None:
            return False
        commit = self.store(run, turn)
        snapshot = run.snapshots.get(task.execution_id)
        if snapshot is None:
            snapshot = run.snapshots[task.execution_id] = step_snapshot(run.state, step)
        options = step.method_options
        deadline_ms = turn.now_ms + options.timeout_ms
        message = step_task(run.state, step, snapshot, deadline_ms, slot.token)
        data = message.SerializeToString()
        if len(data) > self.options.limits.task:
            # Not here: the matcher is at work.
            asyncio.get_running_loop().call_soon(
                self._too_large, run, task.execution_id, slot.token, len(data)
            )
            return False
        live = run.live[task.execution_id] = LiveAttempt(slot, deadline_ms)
        if options.is_async:
            self._send(run, task.execution_id, live, data)
        else:
            self.journal.when_durable(
                commit, partial(self._send, run, task.execution_id, live, data)
            )
        return True

    def _send(self, run: Run, execution_id: str, live: LiveAttempt, data: bytes) -> None:
        if run.live.get(execution_id) is not live or self._stopped is not None:
            return
        live.slot.send(data)
        self.meter.steps["dispatched", live.slot.task.kind] += 1
        live.beat_at = asyncio.get_running_loop().time()
        self._watch(run, execution_id, live)

    def _watch(self, run: Run, execution_id: str, live: LiveAttempt) -> None:
        step = run.state.steps[execution_id]
        loop = asyncio.get_running_loop()
        beat_in = live.beat_at + step.movement.options.heartbeat_ms / 1_000 - loop.time()
        deadline_in = (live.deadline_ms + _TIMEOUT_GRACE_MS - now_ms()) / 1_000
        live.timer = loop.call_later(
            max(0.0, min(beat_in, deadline_in)), self._watch_due, run, execution_id, live
        )

    def _watch_due(self, run: Run, execution_id: str, live: LiveAttempt) -> None:
        step = run.state.steps.get(execution_id)
        if step is None or run.live.get(execution_id) is not live:
            return
        silence = asyncio.get_running_loop().time() - live.beat_at
        limit = step.movement.options.heartbeat_ms / 1_000
        if now_ms() >= live.deadline_ms:
            self._end_attempt(run, execution_id, live, _timed_out(step), cancel=True)
        elif silence >= limit:
            failure = Failure(
                f"heartbeat timeout: no sign of progress for {limit:g} s", "TIMEOUT_TYPE_HEARTBEAT"
            )
            self._end_attempt(run, execution_id, live, failure, cancel=True)
        else:
            self._watch(run, execution_id, live)

    def _too_large(self, run: Run, execution_id: str, token: str, size: int) -> None:
        failure = Failure(
            f"the task has {size} bytes, a Worker takes at most {self.options.limits.task}; "
            "load less, or store less",
            "TASK_TOO_LARGE",
            is_delivered=False,
        )
        self._note_failed(run, execution_id, failure)
        turn = self.turn(run)
        decide.fail(turn, execution_id, token, failure, is_retryable=False)
        self.store(run, turn)

    def _end_attempt(
        self,
        run: Run,
        execution_id: str,
        live: LiveAttempt,
        failure: Failure,
        *,
        cancel: bool = False,
        retry_after_ms: int | None = None,
    ) -> None:
        """A failed attempt; its newest heartbeat value is kept first."""
        self._leave(run, execution_id, live)
        self._note_failed(run, execution_id, failure)
        turn = self.turn(run)
        if live.is_heartbeat_new:
            decide.keep_heartbeat(turn, execution_id, live.slot.token, live.heartbeat)
        decide.fail(turn, execution_id, live.slot.token, failure, retry_after_ms=retry_after_ms)
        if cancel:
            live.slot.cancel()
        self.store(run, turn)

    def _note_failed(self, run: Run, execution_id: str, failure: Failure) -> None:
        step = run.state.steps.get(execution_id)
        if step is None:
            return
        self.meter.step_failed(step.method, failure.error_type)
        event(
            logging.WARNING,
            "attempt_failed",
            "an attempt of a Step failed",
            flow_id=run.state.flow_id,
            run_id=run.state.run_id,
            step=execution_id,
            method=step.method,
            attempt=step.attempts_used,
            error_type=failure.error_type,
        )

    def _leave(self, run: Run, execution_id: str, live: LiveAttempt) -> None:
        live.stop_timers()
        if run.live.get(execution_id) is live:
            del run.live[execution_id]

    def _live(self, task: Task, slot: Slot) -> tuple[Run, str, LiveAttempt] | None:
        assert isinstance(task, StepTask)
        live = task.run.live.get(task.execution_id)
        if live is None or live.slot is not slot:
            return None
        return task.run, task.execution_id, live

    def unstarted(self, task: Task, slot: Slot, reason: Unstarted) -> None:
        """A begun task certainly did not start (MatcherHost)."""
        if isinstance(task, RpcTask):
            task.offer_again()
            return
        found = self._live(task, slot)
        if found is None or self._stopped is not None:
            return
        run, execution_id, live = found
        self._leave(run, execution_id, live)
        self.meter.steps["given_back", slot.task.kind] += 1
        turn = self.turn(run)
        decide.give_back(
            turn, execution_id, slot.token, is_half_close=reason is Unstarted.HALF_CLOSED
        )
        self.store(run, turn)

    def lost(self, task: Task, slot: Slot) -> None:
        """The outcome of a task stays unknown (MatcherHost)."""
        if isinstance(task, RpcTask):
            task.lost()
            return
        found = self._live(task, slot)
        if found is None or self._stopped is not None:
            return
        failure = Failure(
            "the Worker's connection broke while it had the task", decide.WORKER_DISCONNECTED
        )
        self._end_attempt(*found, failure)

    def frame(self, task: Task, slot: Slot, frame: pb.PollWorkerTaskFrame) -> None:
        """A frame of a Worker (MatcherHost)."""
        if isinstance(task, RpcTask):
            task.frame(frame)
            return
        found = self._live(task, slot)
        if found is None or self._stopped is not None:
            return
        run, execution_id, live = found
        kind = frame.WhichOneof("output")
        if kind == "worker_error":
            self._worker_error(run, execution_id, live, frame.worker_error)
            return
        step = run.state.steps[execution_id]
        if kind != step.method:
            self._bad_result(
                run, execution_id, live, f"a {step.method} task was answered by {kind}"
            )
            return
        output = frame.wait_for if kind == "wait_for" else frame.execute
        part = output.WhichOneof("output")
        if part == "heartbeat":
            self._heartbeat(run, execution_id, live, output.heartbeat)
        elif part == "stream_write":
            live.beat_at = asyncio.get_running_loop().time()
            self._stream_write(run.state, execution_id, output.stream_write)
        elif part == "result":
            self._result(run, execution_id, live, frame, step)
        else:
            self._bad_result(run, execution_id, live, "an empty frame")

    def _result(
        self,
        run: Run,
        execution_id: str,
        live: LiveAttempt,
        frame: pb.PollWorkerTaskFrame,
        step: StepExecution,
    ) -> None:
        is_wait_for = step.method == "wait_for"
        try:
            if is_wait_for:
                wait_result = self.reader.wait_for(frame.wait_for.result)
                self.check_room(run.state, wait_result.published, 0)
            else:
                result = self.reader.execute(
                    frame.execute.result, is_async_default=run.state.is_async_default
                )
                self.check_room(run.state, result.published, len(result.next_steps))
        except BadRequest as error:
            self._bad_result(run, execution_id, live, str(error))
            return
        self._leave(run, execution_id, live)
        self.meter.steps["completed", step.method] += 1
        turn = self.turn(run)
        if is_wait_for:
            decide.complete_wait_for(turn, execution_id, live.slot.token, wait_result)
        else:
            decide.complete_execute(turn, execution_id, live.slot.token, result)
        self.store(run, turn)

    def check_room(self, state: RunState, published: Any, next_steps: int) -> None:
        """Refuse what would grow a Flow beyond its limits."""
        limits = self.options.limits
        if len(state.steps) + next_steps > limits.steps:
            raise BadRequest(f"a Flow may have at most {limits.steps} open Steps")
        for channel, count in Counter(channel for channel, _ in published).items():
            if len(state.channels.get(channel, ())) + count > limits.messages:
                raise BadRequest(f"Channel {channel!r} may hold at most {limits.messages} messages")

    def _bad_result(self, run: Run, execution_id: str, live: LiveAttempt, text: str) -> None:
        failure = Failure(f"invalid result: {text}", "INVALID_RESULT")
        self._end_attempt(run, execution_id, live, failure)

    def _worker_error(
        self, run: Run, execution_id: str, live: LiveAttempt, error: pb.WorkerErrorResponse
    ) -> None:
        step = run.state.steps[execution_id]
        failure = Failure(error.detail, error.error_type, error.stack_trace)
        if now_ms() >= live.deadline_ms:
            failure = _timed_out(step)
        retry_after = error.retry_after_seconds * 1_000 if error.retry_after_seconds > 0 else None
        self._end_attempt(run, execution_id, live, failure, retry_after_ms=retry_after)

    def _heartbeat(
        self, run: Run, execution_id: str, live: LiveAttempt, beat: pb.StepMethodHeartbeat
    ) -> None:
        now = asyncio.get_running_loop().time()
        live.beat_at = now
        value = beat.value.SerializeToString() if beat.HasField("value") else None
        if value == live.heartbeat and not live.is_heartbeat_new:
            kept = run.state.steps[execution_id].heartbeat
            if value == kept:
                return
        live.heartbeat = value
        live.is_heartbeat_new = True
        if live.flush_timer is None:
            wait_s = max(0.0, live.flushed_at + _HEARTBEAT_FLUSH_S - now)
            if wait_s:
                live.flush_timer = asyncio.get_running_loop().call_later(
                    wait_s, self._flush_heartbeat, run, execution_id, live
                )
            else:
                self._flush_heartbeat(run, execution_id, live)

    def _flush_heartbeat(self, run: Run, execution_id: str, live: LiveAttempt) -> None:
        live.flush_timer = None
        if run.live.get(execution_id) is not live:
            return
        live.flushed_at = asyncio.get_running_loop().time()
        live.is_heartbeat_new = False
        turn = self.turn(run)
        decide.keep_heartbeat(turn, execution_id, live.slot.token, live.heartbeat)
        self.store(run, turn)

    def _stream_write(self, state: RunState, execution_id: str, write: pb.StepStreamWrite) -> None:
        key = StreamKey(state.flow_type, write.stream_name, state.flow_id)
        try:
            self.streams.append(
                key,
                write.value.SerializeToString(),
                f"#{execution_id}",
                write.stream_capacity_bytes,
                now_ms(),
            )
        except Exception as error:
            # A Stream is best effort: what it cannot take never fails the Step.
            _LOGGER.warning("Stream write of %s %s dropped: %s", state.flow_id, execution_id, error)

    # Looking and waiting

    def find(self, flow_id: str, run_id: str = "") -> RunRow:
        """The row of the named run, or of the Flow's newest one.

        Raises:
            ServiceError: There is none.
        """
        self.check_running()
        row = self.rows.get(flow_id)
        if row is None or (run_id and row.run_id != run_id):
            raise flow_missing(flow_id)
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

    async def state_of(self, row: RunRow) -> RunState:
        """The durable state of a run, from memory or read back."""
        run = self.runs.get(row.run_id)
        if run is not None:
            await self.settled(run)
            return run.state
        state = self._closed.get(row.run_id)
        if state is None:
            number = 1
            while facts := await self.journal.facts(row.run_id, number, _FACTS_A_READ):
                for _, payload in facts:
                    state = fold(state, decode_fact(payload))
                number = facts[-1][0] + 1
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

    async def wait(self, run: Run, check: Any, timeout_s: float, message: str) -> Any:
        """The first result of ``check(state)`` that is not ``None``, once it is durable.

        Raises:
            ServiceError: The time is over.
        """
        found = check(run.state)
        if found is not None:
            await self.settled(run)
            return found
        self.check_running()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiter = Waiter(check, future)
        run.waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                found = await future
        except TimeoutError:
            raise long_poll_over(message) from None
        finally:
            if waiter in run.waiters:
                run.waiters.remove(waiter)
        if isinstance(found, ServiceError):
            raise found
        return found

    def _tell_waiters(self, run: Run) -> None:
        if not run.waiters:
            return
        left = []
        for waiter in run.waiters:
            found = waiter.check(run.state)
            if found is None:
                left.append(waiter)
            else:
                self.journal.when_durable(run.commit, partial(_resolve, waiter.future, found))
        run.waiters = left


def _note_run(state: RunState) -> None:
    event(
        logging.INFO,
        "flow_started" if state.is_open else "flow_closed",
        "a Flow started" if state.is_open else "a Flow closed",
        flow_id=state.flow_id,
        run_id=state.run_id,
        flow_type=state.flow_type,
        status=state.status,
    )


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _timed_out(step: StepExecution) -> Failure:
    limit = step.method_options.timeout_ms / 1_000
    return Failure(
        f"timeout: {step.step_type} ran longer than {limit:g} s", "TIMEOUT_TYPE_START_TO_CLOSE"
    )
