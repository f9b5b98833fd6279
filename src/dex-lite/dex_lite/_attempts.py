"""Attempts of Step methods: from the offer to a Worker to the result, one place for every way an attempt ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dex.dexpb import dex_pb2 as pb

from dex_lite._blobs import is_left_out, most_loads, small_cache_text
from dex_lite._errors import DexLiteError
from dex_lite._logs import event
from dex_lite._machine import decide
from dex_lite._machine.model import Failure, RunState, StepExecution
from dex_lite._room import check_open_flows, check_room
from dex_lite._rpcs import RpcTask
from dex_lite._runs import LiveAttempt, Loading, Run, StepTask
from dex_lite._stream_log import StreamKey
from dex_lite._timers import now_ms
from dex_lite._wire.blobs import TaskTooLarge, encoded_task
from dex_lite._wire.errors import ServiceError
from dex_lite._wire.limits import value_fault
from dex_lite._wire.options import BadRequest
from dex_lite._wire.tasks import step_snapshot, step_task
from dex_lite._worker_slot import Task, TaskSlot, Unstarted

if TYPE_CHECKING:
    from dex_lite._engine import Engine

_LONGEST_DETAIL, _LONGEST_TYPE, _LONGEST_STACK = 4_096, 256, 16_384
_LOGGER = logging.getLogger("dex_lite")
_HEARTBEAT_FLUSH_S = 0.2
_TIMEOUT_GRACE_MS = 250


class Attempts:
    """Tasks and live attempts of all runs; the host of the matcher."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading: set[asyncio.Task[None]] = set()

    def offer(self, run: Run, execution_id: str) -> None:
        """Let Workers know of a method that is ready."""
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
        if execution_id in run.loading:
            task.sticky_worker = run.loading[execution_id].worker_id or None
        run.tasks[execution_id] = task
        if self._engine.options.strict_dispatch:
            loop = asyncio.get_running_loop()
            task.strict_timer = loop.call_later(
                self._engine.options.step_dispatch_wait_s, self._not_dispatched, task
            )
        self._engine.offer(task, run.state)

    def _not_dispatched(self, task: StepTask) -> None:
        run = task.run
        if run.tasks.get(task.execution_id) is not task:
            return
        is_unknown = self._engine.matcher.refused_by_all(task)
        self.forget(run, task.execution_id)
        failure = Failure(
            f"no Worker took {task.name} within {self._engine.options.step_dispatch_wait_s:g} s",
            "UNKNOWN_NAME" if is_unknown else "NO_WORKER_AVAILABLE",
            is_delivered=False,
        )
        self._note_failed(run, task.execution_id, failure)
        turn = self._engine.turn(run)
        decide.fail_dispatch(turn, task.execution_id, failure)
        self._engine.store(run, turn)

    def begin(self, task: Task, slot: TaskSlot) -> bool:
        """A stream is free for a task (MatcherHost)."""
        if isinstance(task, RpcTask):
            return task.begin(slot)
        assert isinstance(task, StepTask)
        run = task.run
        if run.tasks.get(task.execution_id) is task:
            del run.tasks[task.execution_id]
        if task.strict_timer is not None:
            task.strict_timer.cancel()
        if self._engine.is_stopped:
            return False
        turn = self._engine.turn(run)
        step = decide.begin(turn, task.execution_id, slot.token, slot.worker_id)
        if step is None:
            return False
        commit = self._engine.store(run, turn)
        snapshot = run.snapshots.get(task.execution_id)
        if snapshot is None:
            snapshot = run.snapshots[task.execution_id] = step_snapshot(run.state, step)
        options = step.method_options
        deadline_ms = turn.now_ms + options.timeout_ms
        message = step_task(run.state, step, snapshot, deadline_ms, slot.token)
        try:
            data, contents = encoded_task(message, self._engine.options.limits, snapshot.secrets)
        except TaskTooLarge as error:
            # Not here: the matcher is at work.
            asyncio.get_running_loop().call_soon(
                self._too_large, run, task.execution_id, slot.token, str(error)
            )
            return False
        blobs = self._engine.blobs.of_task(run.state.flow_id, contents)
        live = run.live[task.execution_id] = LiveAttempt(slot, deadline_ms, blobs)
        if options.is_async:
            self._send(run, task.execution_id, live, data)
        else:
            self._engine.journal.when_durable(
                commit, partial(self._send, run, task.execution_id, live, data)
            )
        return True

    def _send(self, run: Run, execution_id: str, live: LiveAttempt, data: bytes) -> None:
        if run.live.get(execution_id) is not live or self._engine.is_stopped:
            return
        live.slot.send(data)
        self._engine.meter.steps["dispatched", live.slot.task.kind] += 1
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
            live.slot.give_up()
            self._end_attempt(run, execution_id, live, failure)
        else:
            self._watch(run, execution_id, live)

    def _too_large(self, run: Run, execution_id: str, token: str, text: str) -> None:
        failure = Failure(text, "TASK_TOO_LARGE", is_delivered=False)
        self._note_failed(run, execution_id, failure)
        turn = self._engine.turn(run)
        decide.fail(turn, execution_id, token, failure, is_retryable=False)
        self._engine.store(run, turn)

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
        run.loading.pop(execution_id, None)  # the next attempt may be another Worker's
        self._note_failed(run, execution_id, failure)
        turn = self._engine.turn(run)
        if live.is_heartbeat_new:
            decide.keep_heartbeat(turn, execution_id, live.slot.token, live.heartbeat)
        decide.fail(turn, execution_id, live.slot.token, failure, retry_after_ms=retry_after_ms)
        if cancel:
            live.slot.cancel()
        self._engine.store(run, turn)

    def _note_failed(self, run: Run, execution_id: str, failure: Failure) -> None:
        step = run.state.steps.get(execution_id)
        if step is None:
            return
        self._engine.meter.step_failed(step.method, failure.error_type)
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

    def _live(self, task: Task, slot: TaskSlot) -> tuple[Run, str, LiveAttempt] | None:
        assert isinstance(task, StepTask)
        live = task.run.live.get(task.execution_id)
        if live is None or live.slot is not slot:
            return None
        return task.run, task.execution_id, live

    def unstarted(self, task: Task, slot: TaskSlot, reason: Unstarted) -> None:
        """A begun task certainly did not start (MatcherHost)."""
        if isinstance(task, RpcTask):
            task.offer_again()
            return
        found = self._live(task, slot)
        if found is None or self._engine.is_stopped:
            return
        self._give_back(*found, is_half_close=reason is Unstarted.HALF_CLOSED)

    def _give_back(
        self, run: Run, execution_id: str, live: LiveAttempt, *, is_half_close: bool = False
    ) -> None:
        self._leave(run, execution_id, live)
        self._engine.meter.steps["given_back", live.slot.task.kind] += 1
        turn = self._engine.turn(run)
        decide.give_back(turn, execution_id, live.slot.token, is_half_close=is_half_close)
        self._engine.store(run, turn)

    def lost(self, task: Task, slot: TaskSlot) -> None:
        """The outcome of a task stays unknown (MatcherHost)."""
        if isinstance(task, RpcTask):
            task.lost()
            return
        found = self._live(task, slot)
        if found is None or self._engine.is_stopped:
            return
        failure = Failure(
            "the Worker's connection broke while it had the task", decide.WORKER_DISCONNECTED
        )
        self._end_attempt(*found, failure)

    def unreachable(self, task: Task, slot: TaskSlot, text: str) -> None:
        """Nobody listens where the Flow's Worker should (DialerHost)."""
        if isinstance(task, RpcTask):
            task.unreachable(text)
            return
        found = self._live(task, slot)
        if found is not None and not self._engine.is_stopped:
            self._end_attempt(*found, Failure(text, "NO_WORKER_AVAILABLE", is_delivered=False))

    def frame(self, task: Task, slot: TaskSlot, frame: pb.PollWorkerTaskFrame) -> None:
        """A frame of a Worker (MatcherHost)."""
        if isinstance(task, RpcTask):
            task.frame(frame)
            return
        found = self._live(task, slot)
        if found is None or self._engine.is_stopped:
            return
        run, execution_id, live = found
        kind = frame.WhichOneof("output")
        if kind == "worker_error":
            if is_left_out(frame.worker_error, live.blobs):
                self._load_on(run, execution_id, live)
                return
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
        read: Mapping[str, RunState] | None = None,
    ) -> None:
        is_wait_for = step.method == "wait_for"
        limits = self._engine.options.limits
        try:
            if is_wait_for:
                wait_result = self._engine.reader.wait_for(
                    frame.wait_for.result, run.state, execution_id
                )
                check_room(run.state, limits, wait_result)
                if wait_result.sub_flows:
                    check_open_flows(self._engine, len(wait_result.sub_flows))
            else:
                result = self._engine.reader.execute(
                    frame.execute.result, is_async_default=run.state.is_async_default
                )
                check_room(
                    run.state,
                    limits,
                    result,
                    next_steps=len(result.next_steps),
                    outputs=result.close_value is not None,
                )
        except (BadRequest, ServiceError) as error:
            self._bad_result(run, execution_id, live, str(error))
            return
        if is_wait_for and wait_result.sub_flows:
            assert wait_result.condition is not None
            ids = [sub_flow.flow_id for sub_flow in wait_result.condition.sub_flows]
            if self._engine.unread(ids, read or {}):
                self._later(self._read_first(run, execution_id, live, frame, ids))
                return
        self._leave(run, execution_id, live)
        self._engine.meter.steps["completed", step.method] += 1
        turn = self._engine.turn(run)
        if is_wait_for:
            decide.complete_wait_for(turn, execution_id, live.slot.token, wait_result)
        else:
            decide.complete_execute(turn, execution_id, live.slot.token, result)
        self._engine.store(run, turn, read)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read_first(
        self,
        run: Run,
        execution_id: str,
        live: LiveAttempt,
        frame: pb.PollWorkerTaskFrame,
        flow_ids: Sequence[str],
    ) -> None:
        """Read closed runs back that SubFlows may attach to; the attempt stays live meanwhile."""
        read: dict[str, RunState] = {}
        try:
            while unread := self._engine.unread(flow_ids, read):
                for row in unread:
                    read[row.run_id] = await self._engine.state_of(row)
        except (ServiceError, DexLiteError) as error:
            if run.live.get(execution_id) is live and not self._engine.is_stopped:
                failure = Failure(f"a SubFlow could not be read: {error}", "INTERNAL")
                self._end_attempt(run, execution_id, live, failure)
            return
        if run.live.get(execution_id) is live and not self._engine.is_stopped:
            step = run.state.steps[execution_id]
            self._result(run, execution_id, live, frame, step, read)

    def _load_on(self, run: Run, execution_id: str, live: LiveAttempt) -> None:
        """The Worker has a part of the task's blobs in its cache, and the handler has not begun."""
        loading = run.loading.setdefault(execution_id, Loading("", 0))
        loading.worker_id = live.slot.worker_id
        loading.deliveries += 1
        if loading.deliveries < most_loads(live.blobs, self._engine.options.limits):
            self._give_back(run, execution_id, live)
        else:
            self._leave(run, execution_id, live)
            self._too_large(run, execution_id, live.slot.token, small_cache_text(live.blobs))

    def _bad_result(self, run: Run, execution_id: str, live: LiveAttempt, text: str) -> None:
        failure = Failure(f"invalid result: {text}", "INVALID_RESULT")
        self._end_attempt(run, execution_id, live, failure)

    def _worker_error(
        self, run: Run, execution_id: str, live: LiveAttempt, error: pb.WorkerErrorResponse
    ) -> None:
        step = run.state.steps[execution_id]
        # A Worker that is not the SDK's may send more; what it says is kept with every attempt.
        failure = Failure(
            error.detail[:_LONGEST_DETAIL],
            error.error_type[:_LONGEST_TYPE],
            error.stack_trace[:_LONGEST_STACK],
        )
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
        limits = self._engine.options.limits
        if value is not None and (fault := value_fault("a heartbeat", beat.value, limits)):
            self._bad_result(run, execution_id, live, fault)
            return
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
        turn = self._engine.turn(run)
        decide.keep_heartbeat(turn, execution_id, live.slot.token, live.heartbeat)
        self._engine.store(run, turn)

    def _stream_write(self, state: RunState, execution_id: str, write: pb.StepStreamWrite) -> None:
        key = StreamKey(state.flow_type, write.stream_name, state.flow_id)
        try:
            fault = value_fault("the value", write.value, self._engine.options.limits)
            if fault:
                raise BadRequest(fault)
            self._engine.streams.append(
                key,
                write.value.SerializeToString(),
                f"#{execution_id}",
                write.stream_capacity_bytes,
                now_ms(),
            )
        except Exception as error:
            # A Stream is best effort: what it cannot take never fails the Step.
            _LOGGER.warning("Stream write of %s %s dropped: %s", state.flow_id, execution_id, error)

    def without_worker(self, run: Run) -> list[str]:
        """Types of the Steps that are ready while no Worker is connected that could take them."""
        found = {
            task.name for task in run.tasks.values() if self._engine.matcher.nobody_takes(task)
        }
        return sorted(found)

    def cancel(self, run: Run, execution_id: str) -> None:
        """The live attempt of this execution is not wanted any more."""
        live = run.live.pop(execution_id, None)
        if live is not None:
            live.stop_timers()
            live.slot.cancel()

    def forget(self, run: Run, execution_id: str) -> None:
        """Drop everything that this process keeps about an execution."""
        task = run.tasks.pop(execution_id, None)
        if task is not None:
            self._engine.matcher.withdraw(task)
            if task.strict_timer is not None:
                task.strict_timer.cancel()
        run.snapshots.pop(execution_id, None)
        run.loading.pop(execution_id, None)
        self.cancel(run, execution_id)


def _timed_out(step: StepExecution) -> Failure:
    limit = step.method_options.timeout_ms / 1_000
    return Failure(
        f"timeout: {step.step_type} ran longer than {limit:g} s", "TIMEOUT_TYPE_START_TO_CLOSE"
    )
