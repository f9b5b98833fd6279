"""What one Step costs does not depend on how many Flows are open or how long its Flow has been running.

Times say little on a busy machine, so calls, commits and looks at every Flow are counted.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_lite import EngineOptions, _flows
from dex_lite._engine import Engine
from dex_lite._journal import Journal
from dex_lite._matching import Matcher
from dex_lite._stream_log import StreamLog
from dex_lite._worker_slot import Slot
from dex_lite._worker_stream import WorkerStream

FLOW, STEP = "Chain", "Hop"


class Unwalked(dict[str, Any]):
    """A dict in which things may be looked up, and nobody may go through all of them."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("somebody went through all Flows")

    def keys(self) -> Any:
        return iter(self)

    values = items = keys


class InstantWorker:
    """A Worker stream without a network: what is written to it waits in ``tasks``."""

    def __init__(self) -> None:
        self.tasks: asyncio.Queue[str] = asyncio.Queue()

    def write(self, data: bytes, slot: Slot | None = None) -> None:
        if slot is not None:
            slot.is_write_begun = slot.is_written = True
        frame = pb.PollWorkerTaskResponse.FromString(data)
        if frame.HasField("task"):
            self.tasks.put_nowait(frame.task.task_id)

    def end(self, details: str) -> None:
        raise AssertionError(details)


class Counted:
    """An engine whose calls on the way of a Step are counted."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.worker = InstantWorker()
        self.calls = 0
        committed = engine.journal._committed
        engine.journal._committed = lambda number: self._count(  # type: ignore[method-assign]
            lambda: committed(number)
        )

    def _count(self, action: Callable[[], None]) -> None:
        def called(frame: object, event: str, argument: object) -> None:
            self.calls += event in ("call", "c_call")

        sys.setprofile(called)
        try:
            action()
        finally:
            sys.setprofile(None)

    async def start(self, flow_id: str, flow_type: str) -> None:
        """Start a Flow whose first Step is ready."""
        request = pb.StartFlowRequest(
            flow_id=flow_id, flow_type=flow_type, request_id=flow_id, start_step_type=STEP
        )
        request.step_input.int_value = 0
        request.step_options.skip_wait_for = True
        await _flows.start(self.engine, request)

    async def chain(self, flow_id: str, steps: int) -> tuple[list[int], list[int]]:
        """Calls and commits of each Step of a new Flow, from one task to the next."""
        await self.start(flow_id, FLOW)
        stream: WorkerStream = next(iter(self.engine.matcher._workers["worker"].streams))
        calls, commits = [], []
        task_id = await self.worker.tasks.get()
        for _ in range(steps):
            self.calls, durable = 0, self.engine.journal.durable
            frame = pb.PollWorkerTaskFrame(task_id=task_id)
            following = frame.execute.result.step_decision.next_steps.add(step_type=STEP)
            following.step_input.int_value = 0
            following.step_options.skip_wait_for = True
            request = pb.PollWorkerTaskRequest(task_frame=frame)
            self._count(lambda: stream.received(request))  # noqa: B023
            async with asyncio.timeout(30):
                task_id = await self.worker.tasks.get()
            calls.append(self.calls)
            commits.append(self.engine.journal.durable - durable)
        frame = pb.PollWorkerTaskFrame(task_id=task_id)
        close = frame.execute.result.step_decision.close_decision
        close.close_decision_type = pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE
        stream.received(pb.PollWorkerTaskRequest(task_frame=frame))
        return calls, commits


@asynccontextmanager
async def counted(path: Path) -> AsyncIterator[Counted]:
    options = EngineOptions()
    failed: list[BaseException] = []
    journal = Journal.open(str(path), loop=asyncio.get_running_loop(), on_failed=failed.append)
    matcher = Matcher()
    engine = Engine(journal, matcher, StreamLog(journal, options.limits), options)
    try:
        engine.recover()
        found = Counted(engine)
        matcher.connect("worker", "worker", [FLOW], found.worker)
        yield found
    finally:
        found.worker.end = lambda details: None  # type: ignore[method-assign]
        matcher.close()
        engine.stop("the test is over")
        await journal.close()
    assert not failed


async def test_a_step_costs_the_same_whatever_is_open(tmp_path: Path) -> None:
    async with counted(tmp_path / "engine.db") as found:
        await asyncio.gather(*(found.start(f"open-{n}", "Nobody") for n in range(10)))
        few, _ = await found.chain("few", 100)
        await asyncio.gather(*(found.start(f"open-{n}", "Nobody") for n in range(10, 1_000)))
        engine = found.engine
        engine.runs, engine.rows = Unwalked(engine.runs), Unwalked(engine.rows)
        many, commits = await found.chain("many", 100)
        engine.runs, engine.rows = dict(dict.items(engine.runs)), dict(dict.items(engine.rows))
    assert statistics.median(many) == statistics.median(few) > 100
    assert commits == [1] * len(commits)


async def test_a_step_costs_the_same_late_in_a_flow(tmp_path: Path) -> None:
    async with counted(tmp_path / "engine.db") as found:
        calls, commits = await found.chain("long", 1_000)
    assert statistics.median(calls[-100:]) == statistics.median(calls[:100]) > 100
    # A snapshot now and then, in the commit of its Step and seldom enough.
    assert commits == [1] * len(commits)
    assert sum(calls) < 1.02 * len(calls) * statistics.median(calls)
