"""Hostile values in every field of every call and every frame: the right kind of error, and a file that is whole.

``HOSTILE_SEED=<seed>`` replays one seed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from dex.dexpb import dex_pb2 as pb
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message_factory import GetMessageClass

from dex_lite._check import check
from dex_lite._machine.model import RunState
from dex_lite._wire.limits import Limits
from dex_lite._wire.options import BadRequest
from dex_lite._wire.results import ResultReader
from support.frame_flow import Frames, PlayedWorker, Task, close, frames, text
from support.hostile import Hostile

METHODS = pb.DESCRIPTOR.services_by_name["FlowService"].methods
SEEDS = [int(os.environ["HOSTILE_SEED"])] if "HOSTILE_SEED" in os.environ else range(10)
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
}
# Times are short, so that a wait that is granted ends.
OPTIONS: dict[str, Any] = {
    "max_wait_s": 0.05,
    "rpc_timeout_s": 0.05,
    "rpc_dispatch_wait_s": 0.05,
    "limits": Limits(streams=50, indexes=50),
}
LIKELY: dict[str, tuple[Any, ...]] = {
    "flow_id": ("f", "g"),
    "flow_type": ("Flow",),
    "start_step_type": ("S",),
    "step_type": ("S",),
    "request_id": ("r", ""),
    "rpc_name": ("rpc",),
    "stream_name": ("s",),
    "source": ("test",),
    "stream_capacity_bytes": (100_000,),
    "channel_name": ("c", "q/a"),
    "step_execution_id": ("S-1", "S-2"),
    "step_execution_number": ("1", "2"),
    "timer_condition_id": ("t", ""),
    "timer_condition_index": (0,),
    "reset_type": (1, 2, 3, 4),
    "start_internal_event_id": (0, 1),
    "query": ("", "FlowId = 'f'"),
    "before_page_token": ("",),
    "address": ("",),
    "encoding": ("json",),
}


async def _call(engine: Frames, method: Any, request: Any) -> grpc.StatusCode:
    call = getattr(engine.stub, method.name)(request, timeout=30)
    code: grpc.StatusCode = await call.code()
    is_expected = code is grpc.StatusCode.OK or code in REFUSALS
    assert is_expected, f"{method.name}: {code} {await call.details()}"
    return code


# Of what is not there: an answer of a Worker, an Attribute that matches, a message.
NEVER_WELL = {"InvokeRPC", "WaitForAttribute", "DeleteChannelMessage"}


def _is_clean(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = check(str(folder / "engine.db"))
    assert [fault for result in results for fault in result.faults] == []
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert not errors, errors[:3]


async def test_every_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers: dict[str, Counter[grpc.StatusCode]] = {m.name: Counter() for m in METHODS}
    async with frames(tmp_path, **OPTIONS) as engine:
        again = pb.FlowStartOptions(id_reuse_policy="ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING")
        for seed in SEEDS:
            run_id = await engine.start(flow_start_options=again, options=None)
            hostile = Hostile(seed, LIKELY | {"run_id": ("", run_id)})
            for method in sorted(METHODS, key=lambda m: m.name == "StopFlow"):
                for _ in range(3):
                    request = hostile.fill(GetMessageClass(method.input_type)())
                    try:
                        answers[method.name][await _call(engine, method, request)] += 1
                    except Exception as error:
                        raise AssertionError(f"HOSTILE_SEED={seed}: {error}") from error
            await engine.start(flow_id=f"after-{seed}")
        assert (await engine.stub.HealthCheck(Empty())).condition == "OK"
    async with frames(tmp_path, **OPTIONS) as engine:  # and it starts again
        await engine.state("f")
    _is_clean(tmp_path, caplog)
    # Every call that takes something refused some of it.
    takes_nothing = {"GetServerInfo", "HealthCheck"}
    refused = {name for name, codes in answers.items() if codes.keys() & REFUSALS}
    assert "HOSTILE_SEED" in os.environ or refused == answers.keys() - takes_nothing
    taken = {name for name, codes in answers.items() if grpc.StatusCode.OK in codes}
    assert "HOSTILE_SEED" in os.environ or answers.keys() - taken == NEVER_WELL


OUTPUTS = {
    "execute": pb.InvokeExecuteMethodOutput,
    "wait_for": pb.InvokeWaitForMethodOutput,
    "rpc": pb.InvokeWorkerRPCResponse,
    "worker_error": pb.WorkerErrorResponse,
}


async def _answer(task: Task, hostile: Hostile) -> None:
    """A few frames with anything in them, the last one an end."""
    kind = task.kind
    for _ in range(3):
        output = hostile.fill(OUTPUTS[kind]())
        await task.frame(**{kind: output})
    if hostile.random.random() < 0.3:
        await task.frame(worker_error=hostile.fill(pb.WorkerErrorResponse()))
    elif kind == "execute":
        result = hostile.fill(pb.InvokeExecuteMethodResponse())
        await task.frame(execute=pb.InvokeExecuteMethodOutput(result=result))
    elif kind == "wait_for":
        result = hostile.fill(pb.InvokeWaitForMethodResponse())
        await task.frame(wait_for=pb.InvokeWaitForMethodOutput(result=result))


async def _good(task: Task) -> None:
    if task.kind == "execute":
        await task.execute(close("force", "well"))
    elif task.kind == "wait_for":
        await task.wait_for()
    else:
        await task.rpc(text("well"))


FRAME_LIKELY = LIKELY | {
    "retry_after_seconds": (0,),
    "close_decision_type": (1, 2, 3, 4, 5),
    "waiting_condition_type": (1, 2, 3),
    "duration_seconds": (0, 1),
    "sub_flow_type": ("Child",),  # nobody serves it
}


async def _play(worker: PlayedWorker, hostile: Hostile) -> None:
    """Two hostile answers for each good one."""
    number = 0
    while True:
        task = await worker.task()
        number += 1
        await (_good(task) if number % 3 == 0 else _answer(task, hostile))


async def test_every_frame_of_a_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    retry = pb.RetryPolicy(initial_interval_seconds=1, maximum_attempts=2)
    options = pb.StepOptions(wait_for_retry_policy=retry, execute_retry_policy=retry)
    async with frames(tmp_path, **OPTIONS) as engine:
        for seed in SEEDS:
            hostile = Hostile(seed, FRAME_LIKELY)
            worker = await engine.worker(streams=4, worker_id=f"w{seed}")
            playing = asyncio.create_task(_play(worker, hostile))
            flow_id = f"f{seed}"
            await engine.start(flow_id=flow_id, options=options)
            calls = [engine.invoke(flow_id=flow_id, is_transactional=n % 2 == 0) for n in range(4)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            for end in ends:
                if isinstance(end, grpc.aio.AioRpcError):
                    assert end.code() in REFUSALS, f"HOSTILE_SEED={seed}: {end.details()}"
            await engine.state(flow_id)
            summary = await engine.stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id=flow_id))
            await engine.events(summary.flow_execution_id.run_id, flow_id)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await worker.close()
        # Whoever serves the Flows well ends them.
        good = await engine.worker(streams=2, worker_id="good")
        await engine.start(flow_id="last")
        while (task := await good.task()).request.context.flow_id != "last":
            await _good(task)
        await _good(task)
        assert (await engine.result("last")).flow_status == pb.FLOW_STATUS_COMPLETED
    async with frames(tmp_path, **OPTIONS) as engine:
        await engine.result("last")
    _is_clean(tmp_path, caplog)


def test_every_result_is_taken_or_refused() -> None:
    """What is taken can be stored and shown."""
    reader = ResultReader(Limits(), 1_000, {"c": pb.INDEX_TYPE_KEYWORD})
    parent = RunState("p", "run", "Flow", "r", 0)
    taken: Counter[str] = Counter()
    for seed in range(500):
        hostile = Hostile(seed, FRAME_LIKELY)
        execute = hostile.fill(pb.InvokeExecuteMethodResponse())
        if seed % 2:
            execute.step_decision.CopyFrom(close("dead end"))
        wait_for = hostile.fill(pb.InvokeWaitForMethodResponse())
        rpc = hostile.fill(pb.InvokeWorkerRPCResponse())
        for kind, read in (
            ("execute", partial(reader.execute, execute, is_async_default=False)),
            ("wait_for", partial(reader.wait_for, wait_for, parent, "S-1")),
            ("rpc", partial(reader.rpc, rpc, is_async_default=False)),
        ):
            try:
                result: Any = read()
            except BadRequest:
                taken[kind] += 0
            else:
                taken[kind] += 1
                assert msgspec.msgpack.encode(result), seed
    assert min(taken.values()) > 10, taken
