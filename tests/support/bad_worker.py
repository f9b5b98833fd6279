"""A Worker of single frames that does everything wrong, and keeps count of what it did.

Its Flow is a chain of Steps. A Step's result names the attempt that made it, and the next Step's input is the list of
all names so far, so the Flow's output tells which attempts counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc.aio
from dex.dexpb import dex_pb2 as pb

from support.dex_lite_worker import (
    EOF,
    NO_CAPACITY,
    PONG,
    UNKNOWN_STEP,
    FakeStream,
    FakeWorker,
    heartbeat,
    reject,
    rpc_result,
)

ONCE, AGAIN, RESCUE = "Once", "Again", "Rescue"
FORGED = "forged"  # in a result that must never count
_GOOD_AFTER = 4  # deliveries of one Step execution
_OVERSIZE = 4_000_000


class Delivery(NamedTuple):
    """A task as it came."""

    token: str
    flow_id: str
    step: str  # execution id
    step_type: str
    so_far: str

    @property
    def key(self) -> tuple[str, str]:
        return self.flow_id, self.step


class Books:
    """What happened, for the checks at the end."""

    def __init__(self, steps_a_flow: int) -> None:
        self.steps_a_flow = steps_a_flow
        self.deliveries: dict[str, Delivery] = {}
        self.seen: Counter[tuple[str, str]] = Counter()
        self.ran: Counter[tuple[str, str]] = Counter()  # started, as far as the Worker knows
        self.dead: list[str] = []  # tokens that must not count any more
        self.behaviours: Counter[str] = Counter()


def options(chance: random.Random, step_type: str) -> pb.StepOptions:
    """Of one Step of the chain."""
    found = pb.StepOptions(
        skip_wait_for=True,
        heartbeat_timeout_seconds=1,
        execute_durability_override=chance.choice(
            (pb.STEP_DURABILITY_SYNC, pb.STEP_DURABILITY_ASYNC)
        ),
        execute_retry_policy=pb.RetryPolicy(initial_interval_seconds=1, maximum_interval_seconds=1),
    )
    if step_type == ONCE:
        found.execute_durability_override = pb.STEP_DURABILITY_SYNC
        found.execute_retry_policy.maximum_attempts = 1
        found.execute_failure_policy = pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP
        found.execute_failure_proceed_step_type = RESCUE
        found.execute_failure_proceed_step_options.CopyFrom(options(chance, AGAIN))
    return found


def answer(delivery: Delivery, books: Books, chance: random.Random, mark: str = "") -> Any:
    """The result of a Step: the next one, or the end."""
    names = [*filter(None, delivery.so_far.split(",")), mark or delivery.token]
    value = pb.Value(string_value=",".join(names))
    decision = pb.StepDecision()
    if len(names) >= books.steps_a_flow:
        decision.close_decision.close_decision_type = pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE
        decision.close_decision.close_input.CopyFrom(value)
    else:
        step_type = chance.choice((ONCE, AGAIN))
        step = decision.next_steps.add(step_type=step_type, step_options=options(chance, step_type))
        step.step_input.CopyFrom(value)
    response = pb.InvokeExecuteMethodResponse(step_decision=decision)
    frame = pb.PollWorkerTaskFrame(
        task_id=delivery.token, execute=pb.InvokeExecuteMethodOutput(result=response)
    )
    return pb.PollWorkerTaskRequest(task_frame=frame)


class BadWorker:
    """One Worker with a few streams; each is opened again whenever it ends."""

    def __init__(
        self, address: str, name: str, flow_type: str, books: Books, chance: random.Random
    ) -> None:
        self._worker = FakeWorker(address, name, flow_type)
        self._books = books
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False
        self._behaviours: dict[str, tuple[int, Callable[[FakeStream, Delivery], Awaitable[bool]]]]
        self._behaviours = {
            "good": (8, self._good),
            "twice": (2, self._twice),
            "late": (2, self._late),
            "refuse": (3, self._refuse),
            "unknown": (1, self._unknown),
            "drop": (2, self._drop),
            "half-close": (2, self._half_close),
            "race": (2, self._race),
            "break": (2, self._break),
            "silence": (1, self._silence),
            "error": (1, self._error),
            "wrong kind": (1, self._wrong_kind),
            "invalid": (1, self._invalid),
            "oversize": (1, self._oversize),
            "other stream": (1, self._other_stream),
        }

    def start(self, streams: int) -> None:
        """Open the streams."""
        for number in range(streams):
            queue = self._worker.id if number % 3 == 2 else None
            self._tasks.append(asyncio.create_task(self._stream(queue)))

    async def close(self) -> None:
        """Break everything off; a fault of the Worker itself comes out here."""
        self._is_closing = True  # gRPC may answer a cancellation with an error of the call
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._worker.close()
        for end in ends:
            if not isinstance(end, asyncio.CancelledError) and end is not None:
                raise end

    async def _stream(self, queue: str | None) -> None:
        while not self._is_closing:
            stream = await self._worker.open(queue)
            # A call that is over ends a write with either of these.
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                while await self._frame(stream):
                    pass
            stream.cancel()
            # The engine may be busy with the end of the stream before; no need to hurry.
            await asyncio.sleep(self._chance.random() * 0.01)

    async def _frame(self, stream: FakeStream) -> bool:
        """Read and answer one frame; whether the stream goes on."""
        frame = await stream.call.read()
        if frame is EOF:
            return False
        kind = frame.WhichOneof("frame")
        if kind == "reconnect":
            await self._leave(stream)
            return False
        elif kind == "ping":
            for _ in range(self._chance.choice((0, 1, 1, 1, 2))):
                await stream.send(PONG)
        elif kind == "task":
            return await self._task(stream, frame.task)
        elif kind == "registered" and self._chance.random() < 0.05:
            await self._leave(stream)
            return False
        return True

    async def _leave(self, stream: FakeStream) -> None:
        """Half-close; most often the end of the call is waited for, as the SDK does."""
        await stream.half_close()
        if self._chance.random() < 0.9:
            await stream.expect_eof()

    async def _task(self, stream: FakeStream, task: Any) -> bool:
        request = task.execute
        delivery = Delivery(
            task.task_id,
            request.context.flow_id,
            request.context.step_execution_id,
            request.step_type,
            request.step_input.string_value,
        )
        books = self._books
        assert delivery.token not in books.deliveries, "a token came twice"
        books.deliveries[delivery.token] = delivery
        books.seen[delivery.key] += 1
        name = "good"
        if books.seen[delivery.key] < _GOOD_AFTER:
            names = list(self._behaviours)
            (name,) = self._chance.choices(names, [self._behaviours[n][0] for n in names])
        books.behaviours[name] += 1
        await self._noise(stream, delivery)
        return await self._behaviours[name][1](stream, delivery)

    def _runs(self, delivery: Delivery) -> None:
        """The Worker's code runs from here on, and may have had effects."""
        self._books.ran[delivery.key] += 1

    def _is_dead(self, delivery: Delivery) -> None:
        self._books.dead.append(delivery.token)

    def _forged(self, delivery: Delivery) -> Any:
        return answer(delivery, self._books, self._chance, mark=FORGED)

    async def _noise(self, stream: FakeStream, delivery: Delivery) -> None:
        """Frames that are not for this task."""
        pick = self._chance.random()
        if pick < 0.1:
            await stream.send(
                self._forged(delivery._replace(token=self._chance.choice(("", "x" * 300, "é"))))
            )
        elif pick < 0.2 and self._books.dead:
            await stream.send(
                self._forged(delivery._replace(token=self._chance.choice(self._books.dead)))
            )
        elif pick < 0.3:
            # The token of another Flow's task, which may well be running on its own stream.
            await stream.send(self._forged(delivery._replace(token=self._foreign(delivery))))
        elif pick < 0.35:
            await stream.send(pb.PollWorkerTaskRequest())
        elif pick < 0.4:
            await stream.send(reject(self._foreign(delivery), UNKNOWN_STEP))

    def _foreign(self, delivery: Delivery) -> str:
        others = [token for token in list(self._books.deliveries)[-20:] if token != delivery.token]
        return self._chance.choice(others) if others else "none"

    # What it does with a task. Each says whether the stream goes on.

    async def _good(self, stream: FakeStream, delivery: Delivery) -> bool:
        self._runs(delivery)
        for _ in range(self._chance.choice((0, 0, 1, 3))):
            await stream.send(heartbeat(delivery.token))
        await stream.send(answer(delivery, self._books, self._chance))
        return True

    async def _twice(self, stream: FakeStream, delivery: Delivery) -> bool:
        await self._good(stream, delivery)
        self._is_dead(delivery)
        await stream.send(self._forged(delivery))
        await stream.send(heartbeat(delivery.token))
        await stream.send(reject(delivery.token, NO_CAPACITY))
        return True

    async def _late(self, stream: FakeStream, delivery: Delivery) -> bool:
        """A result in time, but slowly and with heartbeats."""
        self._runs(delivery)
        for _ in range(3):
            await asyncio.sleep(self._chance.random() * 0.1)
            await stream.send(heartbeat(delivery.token))
        await stream.send(answer(delivery, self._books, self._chance))
        return True

    async def _refuse(self, stream: FakeStream, delivery: Delivery) -> bool:
        """A storm of refusals, and the result that was refused."""
        self._is_dead(delivery)
        for _ in range(self._chance.choice((1, 1, 5))):
            await stream.send(reject(delivery.token, NO_CAPACITY))
        await stream.send(self._forged(delivery))
        return True

    async def _unknown(self, stream: FakeStream, delivery: Delivery) -> bool:
        """A Step that it does not know; then the whole Worker is a new one, which does."""
        self._is_dead(delivery)
        await stream.send(reject(delivery.token, UNKNOWN_STEP))
        self._worker.id += "+"
        await self._leave(stream)
        return False

    async def _drop(self, stream: FakeStream, delivery: Delivery) -> bool:
        """Retire the stream with the task unread."""
        self._is_dead(delivery)
        await self._leave(stream)
        return False

    async def _half_close(self, stream: FakeStream, delivery: Delivery) -> bool:
        """Go in the midst of it, after a sign of life."""
        self._runs(delivery)
        self._is_dead(delivery)
        await stream.send(heartbeat(delivery.token))
        await self._leave(stream)
        return False

    async def _race(self, stream: FakeStream, delivery: Delivery) -> bool:
        """The result right before the half-close: it counts."""
        await self._good(stream, delivery)
        await self._leave(stream)
        return False

    async def _break(self, stream: FakeStream, delivery: Delivery) -> bool:
        self._runs(delivery)
        if self._chance.random() < 0.5:
            await stream.send(heartbeat(delivery.token))
        stream.cancel()
        self._is_dead(delivery)
        return False

    async def _silence(self, stream: FakeStream, delivery: Delivery) -> bool:
        """Nothing until the engine gives up; then the result."""
        self._runs(delivery)
        while True:
            frame = await stream.read()
            if frame is EOF:
                return False
            if frame.WhichOneof("frame") == "cancel_task":
                break
        self._is_dead(delivery)
        await stream.send(self._forged(delivery))
        return True

    async def _error(self, stream: FakeStream, delivery: Delivery) -> bool:
        self._runs(delivery)
        self._is_dead(delivery)
        error = pb.WorkerErrorResponse(detail="no", error_type="No")
        frame = pb.PollWorkerTaskFrame(task_id=delivery.token, worker_error=error)
        await stream.send(pb.PollWorkerTaskRequest(task_frame=frame))
        await stream.send(self._forged(delivery))
        return True

    async def _wrong_kind(self, stream: FakeStream, delivery: Delivery) -> bool:
        self._runs(delivery)
        self._is_dead(delivery)
        await stream.send(rpc_result(delivery.token))
        await stream.send(self._forged(delivery))
        return True

    async def _invalid(self, stream: FakeStream, delivery: Delivery) -> bool:
        """A decision that breaks a rule."""
        self._runs(delivery)
        self._is_dead(delivery)
        bad = self._forged(delivery)
        decision = bad.task_frame.execute.result.step_decision
        decision.next_steps.add(step_type="")
        await stream.send(bad)
        await stream.send(self._forged(delivery))
        return True

    async def _oversize(self, stream: FakeStream, delivery: Delivery) -> bool:
        self._runs(delivery)
        self._is_dead(delivery)
        bad = self._forged(delivery)
        attribute = bad.task_frame.execute.result.upsert_attributes.add(key="k")
        attribute.value.string_value = "x" * _OVERSIZE
        await stream.send(bad)
        return True

    async def _other_stream(self, stream: FakeStream, delivery: Delivery) -> bool:
        """The result comes on a stream that does not have the task."""
        self._runs(delivery)
        self._is_dead(delivery)
        other = await self._worker.open()
        await other.send(self._forged(delivery))
        await other.half_close()
        stream.cancel()
        await other.expect_eof()
        return False
