"""An engine on a file, its calls as they are on the wire, and a Worker that a test plays frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.rpc import status_pb2

import dex_lite
from dex_lite import EngineOptions
from dex_lite._wire.errors import DETAILS_KEY
from support.dex_lite_worker import EOF, FLOW, PONG, FakeStream, FakeWorker

NULL = pb.Value(null_value="NULL_VALUE")
SKIP = pb.StepOptions(skip_wait_for=True)
CLOSES = {
    "graceful": pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE,
    "force": pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE,
    "fail": pb.CLOSE_DECISION_TYPE_FORCE_FAIL,
    "empty": pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY,
    "dead end": pb.CLOSE_DECISION_TYPE_DEAD_END,
}
MISSING = ("NOT_FOUND", "FLOW_NOT_EXISTS")
INVALID = ("INVALID_ARGUMENT", "UNCATEGORIZED")
POLL_OVER = ("DEADLINE_EXCEEDED", "LONG_POLL_TIME_OUT")
_WAIT_S = 30


def text(value: str) -> pb.Value:
    """A text as a value."""
    return pb.Value(string_value=value)


def write(key: str, value: pb.Value | str) -> pb.AttributeWrite:
    """An Attribute write."""
    return pb.AttributeWrite(key=key, value=text(value) if isinstance(value, str) else value)


def message(channel: str, value: str, message_id: str = "") -> pb.ChannelMessage:
    """A message to publish."""
    return pb.ChannelMessage(channel_name=channel, value=text(value), message_id=message_id)


def deletion(channel: str, message_id: str) -> pb.ChannelMessageDeletion:
    """A message to delete."""
    return pb.ChannelMessageDeletion(channel_name=channel, message_id=message_id)


def step(name: str, options: pb.StepOptions | None = None, **more: Any) -> pb.StepMovement:
    """A Step to schedule; without other options it has no WaitFor."""
    return pb.StepMovement(
        step_type=name, step_options=SKIP if options is None else options, **more
    )


def go(*steps: str | pb.StepMovement, **more: Any) -> pb.StepDecision:
    """A decision with next Steps."""
    found = [step(each) if isinstance(each, str) else each for each in steps]
    return pb.StepDecision(next_steps=found, **more)


def close(how: str, value: pb.Value | str | None = None, **more: Any) -> pb.StepDecision:
    """A decision that closes, by a key of ``CLOSES``."""
    decision = pb.StepDecision(**more)
    decision.close_decision.close_decision_type = CLOSES[how]
    if value is not None:
        found = text(value) if isinstance(value, str) else value
        decision.close_decision.close_input.CopyFrom(found)
    return decision


def wait(kind: str = "all", **conditions: Any) -> pb.WaitingCondition:
    """A waiting condition of type ``all``, ``any`` or ``any_combination``."""
    name = f"WAITING_CONDITION_TYPE_{kind.upper()}_COMPLETED"
    return pb.WaitingCondition(waiting_condition_type=name, **conditions)


def on_channels(*names: str, kind: str = "all") -> pb.WaitingCondition:
    """A wait for one message of each Channel."""
    return wait(kind, channel_conditions=[pb.ChannelCondition(channel_name=n) for n in names])


def on_timers(*seconds: int) -> pb.WaitingCondition:
    """A wait for all of these timers."""
    return wait(timer_conditions=[pb.TimerCondition(duration_seconds=s) for s in seconds])


class Task:
    """A task that the Worker has, and how it answers."""

    def __init__(self, stream: FakeStream, task: pb.PollWorkerTask) -> None:
        self.stream = stream
        self.id = task.task_id
        self.deadline = task.deadline
        self.kind = task.WhichOneof("request")
        assert self.kind is not None
        self.request: Any = getattr(task, self.kind)

    @property
    def step(self) -> str:
        """Its Step execution."""
        return str(self.request.context.step_execution_id)

    async def frame(self, **output: Any) -> None:
        """Any frame of this task."""
        frame = pb.PollWorkerTaskFrame(task_id=self.id, **output)
        await self.stream.send(pb.PollWorkerTaskRequest(task_frame=frame))

    async def execute(self, decision: pb.StepDecision, **result: Any) -> None:
        """End an Execute."""
        response = pb.InvokeExecuteMethodResponse(step_decision=decision, **result)
        await self.frame(execute=pb.InvokeExecuteMethodOutput(result=response))

    async def wait_for(self, condition: pb.WaitingCondition | None = None, **result: Any) -> None:
        """End a WaitFor."""
        response = pb.InvokeWaitForMethodResponse(waiting_condition=condition, **result)
        await self.frame(wait_for=pb.InvokeWaitForMethodOutput(result=response))

    async def rpc(self, output: pb.Value | None = None, **result: Any) -> None:
        """Answer an RPC."""
        await self.frame(rpc=pb.InvokeWorkerRPCResponse(output=output, **result))

    async def heartbeat(self, value: pb.Value | None = None) -> None:
        """A sign of progress, of an Execute."""
        beat = pb.StepMethodHeartbeat(value=value)
        await self.frame(execute=pb.InvokeExecuteMethodOutput(heartbeat=beat))

    async def write(self, stream_name: str, value: pb.Value, capacity: int = 10_000) -> None:
        """A Stream message, of an Execute."""
        found = pb.StepStreamWrite(
            stream_name=stream_name, value=value, stream_capacity_bytes=capacity
        )
        await self.frame(execute=pb.InvokeExecuteMethodOutput(stream_write=found))

    async def error(self, detail: str, **more: Any) -> None:
        """The handler failed."""
        await self.frame(worker_error=pb.WorkerErrorResponse(detail=detail, **more))

    async def reject(self, reason: str) -> None:
        """Do not take it: NO_CAPACITY, UNKNOWN_STEP or UNKNOWN_RPC."""
        found = pb.PollWorkerTaskReject(
            task_id=self.id, reason=f"POLL_WORKER_TASK_REJECT_REASON_{reason}"
        )
        await self.stream.send(pb.PollWorkerTaskRequest(reject=found))


class PlayedWorker:
    """Its streams are read all the time: tasks and cancellations wait here for the test."""

    def __init__(self, address: str, worker_id: str) -> None:
        self._worker = FakeWorker(address, worker_id)
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._canceled: asyncio.Queue[str] = asyncio.Queue()
        self._readers: list[asyncio.Task[None]] = []

    async def open(self, streams: int) -> None:
        """Open streams on the queue of the Flow type."""
        for _ in range(streams):
            stream = await self._worker.open()
            self._readers.append(asyncio.create_task(self._read(stream)))

    async def _read(self, stream: FakeStream) -> None:
        # A call that is over ends a write with either of these.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (frame := await stream.call.read()) is not EOF:
                kind = frame.WhichOneof("frame")
                if kind == "task":
                    self._tasks.put_nowait(Task(stream, frame.task))
                elif kind == "cancel_task":
                    self._canceled.put_nowait(frame.cancel_task.task_id)
                elif kind == "ping":
                    await stream.send(PONG)

    async def task(self) -> Task:
        """The next task."""
        async with asyncio.timeout(_WAIT_S):
            return await self._tasks.get()

    async def tasks(self, count: int) -> dict[str, Task]:
        """So many tasks by their Step execution."""
        found = [await self.task() for _ in range(count)]
        return {task.step: task for task in found}

    async def canceled(self) -> str:
        """Id of the next task that is not wanted any more."""
        async with asyncio.timeout(_WAIT_S):
            return await self._canceled.get()

    @property
    def has_task(self) -> bool:
        """Whether a task has come that the test did not take yet."""
        return not self._tasks.empty()

    async def close(self) -> None:
        """Break off."""
        for reader in self._readers:
            reader.cancel()
        ends = await asyncio.gather(*self._readers, return_exceptions=True)
        await self._worker.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end


class Frames:
    """The engine as a test of frames sees it."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        self.workers: list[PlayedWorker] = []

    async def worker(self, streams: int = 1, worker_id: str = "w") -> PlayedWorker:
        """Connect a Worker."""
        worker = PlayedWorker(self.address, worker_id)
        self.workers.append(worker)
        await worker.open(streams)
        return worker

    async def start(
        self,
        step_type: str = "S",
        flow_id: str = "f",
        options: pb.StepOptions | None = SKIP,
        **more: Any,
    ) -> str:
        """Start a Flow; the run id."""
        request = pb.StartFlowRequest(
            flow_id=flow_id,
            flow_type=FLOW,
            request_id=more.pop("request_id", flow_id),
            start_step_type=step_type,
            step_options=options,
            **more,
        )
        return str((await self.stub.StartFlow(request)).run_id)

    async def state(self, flow_id: str = "f") -> pb.GetFlowStateResponse:
        """GetFlowState."""
        state: pb.GetFlowStateResponse = await self.stub.GetFlowState(
            pb.GetFlowStateRequest(flow_id=flow_id)
        )
        return state

    async def result(self, flow_id: str = "f") -> pb.FlowResult:
        """How the Flow ended."""
        result: pb.FlowResult = await self.stub.WaitForFlow(
            pb.WaitForFlowRequest(flow_id=flow_id, needs_results=True, wait_time_seconds=_WAIT_S)
        )
        return result

    async def step_ended(self, step_type: str, number: int = 1, flow_id: str = "f") -> None:
        """Wait for the end of a Step execution."""
        await self.stub.WaitForStepCompletion(
            pb.WaitForStepCompletionRequest(
                flow_id=flow_id,
                step_type=step_type,
                step_execution_number=str(number),
                request_timeout_seconds=_WAIT_S,
            )
        )

    async def events(self, run_id: str, flow_id: str = "f") -> Sequence[pb.FlowHistoryEvent]:
        """The first page of the history."""
        request = pb.GetHistoryEventsRequest(flow_id=flow_id, run_id=run_id)
        return list((await self.stub.GetHistoryEvents(request)).events)

    async def publish(self, *messages: pb.ChannelMessage, flow_id: str = "f") -> None:
        """PublishToChannel."""
        await self.stub.PublishToChannel(
            pb.PublishToChannelRequest(flow_id=flow_id, messages=messages)
        )

    async def pending(self, channel: str = "c", flow_id: str = "f") -> list[pb.ChannelMessage]:
        """The messages of a Channel that nobody has taken."""
        request = pb.GetChannelMessagesRequest(flow_id=flow_id, channel_name=channel)
        return list((await self.stub.GetChannelMessages(request)).messages)

    async def attributes(self, flow_id: str = "f") -> dict[str, pb.Value]:
        """All Attributes."""
        request = pb.GetAttributesRequest(flow_id=flow_id, all_keys=True)
        return {kv.key: kv.value for kv in (await self.stub.GetAttributes(request)).attributes}

    def invoke(self, name: str = "rpc", flow_id: str = "f", **more: Any) -> asyncio.Task[Any]:
        """An RPC under way."""
        request = pb.InvokeRPCRequest(flow_id=flow_id, rpc_name=name, **more)

        async def call() -> Any:
            return await self.stub.InvokeRPC(request)

        return asyncio.create_task(call())


class Refusal:
    """What the SDK reads of a failed call."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code()
        self.text = error.details() or ""
        trailers = dict(error.trailing_metadata() or ())
        status = status_pb2.Status.FromString(trailers[DETAILS_KEY])
        (packed,) = status.details
        self.details = pb.ServiceErrorResponse()
        assert packed.Unpack(self.details)
        assert (status.code, status.message) == (self.code.value[0], self.text)

    @property
    def what(self) -> tuple[str, str]:
        """gRPC code and sub status, by their names."""
        name = pb.ErrorSubStatus.Name(self.details.sub_status)
        return self.code.name, name.removeprefix("ERROR_SUB_STATUS_")


async def refusal(call: Any) -> Refusal:
    """The error of a call that has to fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, _WAIT_S)
    return Refusal(caught.value)


@asynccontextmanager
async def frames(folder: Path, **options: Any) -> AsyncIterator[Frames]:
    """An engine on ``folder/engine.db``. It does not wait for Workers when it stops."""
    settings = EngineOptions(**{"drain_s": 0.0, **options})
    async with (
        dex_lite.open_engine(folder / "engine.db", options=settings) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        found = Frames(engine.address, channel)
        try:
            yield found
        finally:
            for worker in found.workers:
                await worker.close()
