"""RPCs in flight: from the client's call to the Worker's answer and the commit of its effects."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_lite._blobs import Blob, is_left_out, most_loads, small_cache_text
from dex_lite._machine import decide
from dex_lite._machine.commands import RpcResult
from dex_lite._machine.model import RunState, Value
from dex_lite._machine.turn import Turn
from dex_lite._room import check_room
from dex_lite._timers import now_ms
from dex_lite._wire.blobs import TaskTooLarge, encoded_task
from dex_lite._wire.errors import (
    ServiceError,
    flow_missing,
    invalid,
    message_missing,
    worker_failure,
)
from dex_lite._wire.limits import name_fault, request_id_fault
from dex_lite._wire.options import BadRequest, check_lock_keys, encoded_value
from dex_lite._wire.tasks import rpc_task, take_snapshot
from dex_lite._worker_slot import Task, TaskSlot

if TYPE_CHECKING:
    from dex_lite._engine import Engine
    from dex_lite._runs import Run


class RpcTask(Task):
    """One RPC on its way to a Worker and back."""

    __slots__ = (
        "answer",
        "blobs",
        "deadline_ms",
        "deliveries",
        "engine",
        "request",
        "rpc_input",
        "slot",
        "state",
    )

    def __init__(
        self,
        engine: Engine,
        state: RunState,
        request: pb.InvokeRPCRequest,
        rpc_input: Value,
        deadline_ms: int,
    ) -> None:
        super().__init__(
            "rpc",
            state.flow_type,
            request.rpc_name,
            state.flow_id,
            sticky_worker=state.worker_id or None,
        )
        self.engine = engine
        self.state = state
        self.request = request
        self.rpc_input = rpc_input
        self.deadline_ms = deadline_ms
        self.slot: TaskSlot | None = None
        self.blobs: Mapping[str, Blob] = {}  # that the task names, by id
        self.deliveries = 0  # that ended with a part of the blobs
        self.answer: asyncio.Future[pb.PollWorkerTaskFrame] = (
            asyncio.get_running_loop().create_future()
        )

    def begin(self, slot: TaskSlot) -> bool:
        """A stream is free."""
        if self.answer.done():
            return False
        request = self.request
        snapshot = take_snapshot(
            self.state,
            tuple(request.load_attribute_map_instances),
            tuple(request.load_channel_names),
            tuple(request.load_channel_map_instances),
        )
        message = rpc_task(
            self.state, request.rpc_name, self.rpc_input, snapshot, self.deadline_ms, slot.token
        )
        try:
            data, contents = encoded_task(message, self.engine.options.limits, snapshot.secrets)
        except TaskTooLarge as error:
            self._too_large(str(error))
            return False
        self.blobs = self.engine.blobs.of_task(self.state.flow_id, contents)
        self.slot = slot
        # What the handler sees must not be undone by a crash: its answer goes to a client.
        run = self.engine.runs.get(self.state.run_id)
        if run is None or run.commit <= self.engine.journal.durable:
            slot.send(data)
        else:
            self.engine.journal.when_durable(run.commit, partial(slot.send, data))
        return True

    def offer_again(self) -> None:
        """The task did not start."""
        self.slot = None
        if not self.answer.done():
            self.engine.offer(self, self.state)

    def lost(self) -> None:
        """The Worker went away with it."""
        self._fail(
            worker_failure(
                f"the Worker's connection broke while it ran RPC {self.name}",
                dispatch_reason=pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED,
            )
        )

    def unreachable(self, text: str) -> None:
        """Nobody listens at the Flow's address."""
        self._fail(
            worker_failure(
                f"RPC {self.name}: {text}",
                dispatch_reason=pb.DISPATCH_TASK_ERROR_REASON_NO_WORKER_AVAILABLE,
            )
        )

    def frame(self, frame: pb.PollWorkerTaskFrame) -> None:
        """The Worker's answer."""
        if frame.HasField("worker_error") and is_left_out(frame.worker_error, self.blobs):
            self._load_on()
        elif not self.answer.done():
            self.answer.set_result(frame)

    def _load_on(self) -> None:
        """The Worker has a part of the task's blobs in its cache, and the handler has not begun."""
        self.sticky_worker = (self.slot.worker_id if self.slot is not None else "") or None
        self.deliveries += 1
        if self.deliveries < most_loads(self.blobs, self.engine.options.limits):
            self.offer_again()
        else:
            self._too_large(small_cache_text(self.blobs))

    def _too_large(self, text: str) -> None:
        self._fail(
            worker_failure(
                f"RPC {self.name}: {text}",
                # The word that a Step's failure route gets too, so that a caller can load less.
                worker_error=pb.WorkerErrorResponse(
                    error_type="TASK_TOO_LARGE", detail="load less"
                ),
            )
        )

    def abandon(self) -> None:
        """The client does not wait any more."""
        self.engine.matcher.withdraw(self)
        if self.slot is not None:
            self.slot.cancel()
        if not self.answer.done():
            self.answer.cancel()

    def _fail(self, error: ServiceError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def invoke(engine: Engine, request: pb.InvokeRPCRequest) -> pb.InvokeRPCResponse:
    """One RPC of a client, from its check to its durable answer.

    Raises:
        ServiceError: Nothing was committed.
    """
    engine.check_taking()
    row = await engine.find_any(request.flow_id, request.run_id)
    if fault := name_fault("RPC name", request.rpc_name, engine.options.limits, forbidden=""):
        raise invalid(fault)
    if fault := request_id_fault(request.request_id, engine.options.limits):
        raise invalid(fault)
    if request.timeout_seconds < 0:
        raise invalid("an RPC timeout must not be negative")
    try:
        check_lock_keys(request.lock_attribute_keys, engine.options.limits)
        rpc_input = encoded_value(
            "RPC input", request.input, engine.options.limits, request.HasField("input")
        )
    except BadRequest as error:
        raise invalid(str(error)) from None
    if not request.is_transactional and not request.lock_attribute_keys:
        state = await engine.state_of(row)
        task, result = await _run(engine, state, request, rpc_input)
        if result.has_effects:
            run = engine.runs.get(row.run_id)
            if run is None or not run.state.is_open:
                raise flow_missing(request.flow_id, "is closed")
            await engine.durable(
                _commit(engine, run, task, request, rpc_input, result, is_kept=False)
            )
        return _response(engine, result.value)
    return await _invoke_once(
        engine, engine.find_open(request.flow_id, request.run_id), request, rpc_input
    )


async def _invoke_once(
    engine: Engine, run: Run, request: pb.InvokeRPCRequest, rpc_input: Value
) -> pb.InvokeRPCResponse:
    """A transactional or locked RPC: its request id acts once, also while it is in flight."""
    fingerprint = hashlib.sha256(request.rpc_name.encode() + b"\0" + rpc_input).hexdigest()
    request_id = request.request_id
    known = run.state.rpc_answers.get(request_id) if request_id else None
    in_flight = run.rpcs.get(request_id) if request_id else None
    if known is not None or in_flight is not None:
        before = known.fingerprint if known is not None else in_flight[0]  # type: ignore[index]
        if before != fingerprint:
            raise invalid(f"request id {request_id!r} was used for another RPC or input")
        if in_flight is not None:
            return await asyncio.shield(in_flight[1])
        assert known is not None
        await engine.settled(run)
        return _response(engine, known.output)
    keys = set(request.lock_attribute_keys)
    if not keys.isdisjoint(run.rpc_locks) or not keys.isdisjoint(run.state.held_locks()):
        raise worker_failure(
            f"RPC {request.rpc_name} needs locks that are held: {sorted(keys)}",
            code=grpc.StatusCode.ABORTED,
        )
    future: asyncio.Future[pb.InvokeRPCResponse] = asyncio.get_running_loop().create_future()
    future.add_done_callback(_retrieve)
    if request_id:
        run.rpcs[request_id] = (fingerprint, future)
    run.rpc_locks |= keys
    try:
        response = await _run_strictly(engine, run, request, rpc_input, fingerprint)
    except BaseException as error:
        if not future.done():
            future.set_exception(
                error if isinstance(error, ServiceError) else worker_failure("the RPC was given up")
            )
        raise
    else:
        if not future.done():
            future.set_result(response)
        return response
    finally:
        run.rpcs.pop(request_id, None)
        run.rpc_locks -= keys
        if not run.state.is_open:
            engine.let_go(run)
        elif keys:
            turn = engine.turn(run)
            decide.release_foreign_locks(turn)
            engine.store(run, turn)


async def _run_strictly(
    engine: Engine, run: Run, request: pb.InvokeRPCRequest, rpc_input: Value, fingerprint: str
) -> pb.InvokeRPCResponse:
    task, result = await _run(engine, run.state, request, rpc_input)
    if not run.state.is_open:
        raise flow_missing(request.flow_id, "is closed")
    missing = decide.missing_deletion(Turn(run.state, now_ms()), result)
    if missing is not None:
        raise message_missing(*missing)
    if result.has_effects or request.request_id:
        commit = _commit(engine, run, task, request, rpc_input, result, fingerprint=fingerprint)
        await engine.durable(commit)
    return _response(engine, result.value)


def _commit(
    engine: Engine,
    run: Run,
    task: RpcTask,
    request: pb.InvokeRPCRequest,
    rpc_input: Value,
    result: RpcResult,
    *,
    fingerprint: str = "",
    is_kept: bool = True,
) -> int:
    turn = engine.turn(run)
    decide.apply_rpc(
        turn,
        request.rpc_name,
        result,
        rpc_input=rpc_input,
        worker_id=task.slot.worker_id if task.slot is not None else "",
        request_id=request.request_id if is_kept else "",
        fingerprint=fingerprint,
    )
    return engine.store(run, turn)


async def _run(
    engine: Engine, state: RunState, request: pb.InvokeRPCRequest, rpc_input: Value
) -> tuple[RpcTask, RpcResult]:
    options = engine.options
    budget_s = min(request.timeout_seconds or options.rpc_timeout_s, options.rpc_timeout_s)
    task = RpcTask(engine, state, request, rpc_input, now_ms() + int(budget_s * 1_000))
    loop = asyncio.get_running_loop()
    dispatch_timer = loop.call_later(
        min(budget_s, options.rpc_dispatch_wait_s), _not_dispatched, task
    )
    try:
        engine.offer(task, state)
        async with asyncio.timeout(budget_s):
            frame = await task.answer
    except TimeoutError:
        raise worker_failure(
            f"timeout: RPC {request.rpc_name} did not answer within {budget_s:g} s"
        ) from None
    finally:
        dispatch_timer.cancel()
        if not task.answer.done() or task.answer.cancelled():
            task.abandon()
    if frame.HasField("worker_error"):
        error = frame.worker_error
        raise worker_failure(error.detail, worker_error=error)
    try:
        if not frame.HasField("rpc"):
            raise BadRequest("the frame holds no RPC result")
        result = engine.reader.rpc(frame.rpc, is_async_default=state.is_async_default)
        check_room(state, options.limits, result, next_steps=len(result.next_steps))
    except BadRequest as bad:
        raise worker_failure(f"RPC {request.rpc_name} gave an invalid result: {bad}") from None
    return task, result


def _not_dispatched(task: RpcTask) -> None:
    if task.slot is not None or task.answer.done():
        return
    is_unknown = task.engine.matcher.refused_by_all(task)
    task.answer.set_exception(
        worker_failure(
            f"no Worker knows RPC {task.name} of Flow type {task.flow_type}"
            if is_unknown
            else f"no Worker for Flow type {task.flow_type} took RPC {task.name}",
            dispatch_reason=(
                pb.DISPATCH_TASK_ERROR_REASON_UNKNOWN_NAME
                if is_unknown
                else pb.DISPATCH_TASK_ERROR_REASON_NO_WORKER_AVAILABLE
            ),
        )
    )
    task.engine.matcher.withdraw(task)


def _response(engine: Engine, value: Value) -> pb.InvokeRPCResponse:
    response = pb.InvokeRPCResponse()
    if value:
        response.output.ParseFromString(value)
    limit = engine.options.limits.task
    if response.ByteSize() > limit:
        raise worker_failure(
            f"the RPC's output has {response.ByteSize()} bytes, a client takes at most {limit}; "
            "return it in pages"
        )
    return response


def _retrieve(future: asyncio.Future[pb.InvokeRPCResponse]) -> None:
    if not future.cancelled():
        future.exception()
