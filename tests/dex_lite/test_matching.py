"""Which stream a task goes to, and what the engine is told of each way it can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb

from dex_lite import _worker_stream
from dex_lite._matching import Task, Unstarted
from support.dex_lite_worker import (
    EOF,
    FLOW,
    NO_CAPACITY,
    PONG,
    UNKNOWN_RPC,
    UNKNOWN_STEP,
    Engine,
    FakeStream,
    FakeWorker,
    heartbeat,
    message,
    reject,
    result,
    rpc,
    rpc_result,
    serve,
    step,
)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with serve() as engine:
        yield engine


async def run(engine: Engine, stream: FakeStream, task: Task) -> None:
    """Take a Step through a stream that is sure to get it."""
    engine.matcher.offer(task)
    await stream.send(result(await stream.expect_task()))
    while (await engine.host.next("frame")).task is not task:
        pass


# Registration.


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"app_worker_id": ""}, "app_worker_id"),
        ({"queue": ""}, "queue"),
        ({"queue": "Elsewhere"}, "queue 'Elsewhere'"),
        ({"flow_types": ["worker-1", FLOW]}, "one of the flow_types"),
        ({"flow_types": ["", FLOW]}, "empty name"),
        ({"sdk_name": ""}, "sdk_name"),
    ],
)
async def test_wrong_registration(engine: Engine, fields: dict[str, Any], fault: str) -> None:
    stream = await engine.worker().open(**fields)
    code, details = await stream.end()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert fault in details


async def test_first_frame_must_be_register(engine: Engine) -> None:
    worker = engine.worker()
    stream = await worker.open(queue="")
    await stream.end()
    import dex.dexpb.dex_pb2_grpc as grpc_pb

    stub: Any = grpc_pb.WorkerTaskServiceStub(worker.channel)
    call = stub.PollWorkerTask()
    await call.write(PONG)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_call_without_a_frame_just_ends(engine: Engine) -> None:
    import dex.dexpb.dex_pb2_grpc as grpc_pb

    stub: Any = grpc_pb.WorkerTaskServiceStub(engine.worker().channel)
    call = stub.PollWorkerTask()
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_first_stream_of_each_queue_is_acknowledged_at_once(engine: Engine) -> None:
    worker = engine.worker()
    own = await worker.open(queue=worker.id)
    first = await worker.open()
    registered = await own.expect("registered")
    assert registered.supports_unknown_name_rejection
    await first.expect("registered")
    assert engine.matcher.has_workers(FLOW)
    assert not engine.matcher.has_workers("Other")


async def test_reserve_is_acknowledged_right_before_its_first_task(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    reserve = await worker.open()
    engine.matcher.offer(step("one"))
    engine.matcher.offer(step("two"))
    one = await first.expect_task()
    await reserve.expect("registered")
    two = await reserve.expect_task()
    await reserve.send(result(two))
    await first.send(result(one))
    # Both are registered now; the one that has been free the longest comes first.
    await engine.host.next("frame")
    await engine.host.next("frame")
    await run(engine, reserve, step("three"))
    await run(engine, first, step("four"))


async def test_reserve_follows_the_last_registered_stream(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    reserve = await worker.open()
    engine.matcher.offer(step())
    task_id = await first.expect_task()
    # Busy is still registered: the reserve stays one until the first stream ends.
    await first.send(result(task_id))
    await engine.host.next("frame")
    await first.half_close()
    await first.expect_eof()
    await reserve.expect("registered")
    await run(engine, reserve, step())


async def _registered_by_a_burst(
    engine: Engine, worker: FakeWorker, count: int
) -> list[FakeStream]:
    """Streams that all had a task at the same time, the longest free first."""
    streams = [await worker.open_registered()]
    streams += [await worker.open() for _ in range(count - 1)]
    await engine.matcher.streams(count)
    for number in range(count):
        engine.matcher.offer(step(f"burst-{number}"))
    for index, stream in enumerate(streams):
        if index:
            await stream.expect("registered")
        await stream.send(result(await stream.expect_task()))
        await engine.host.next("frame")
    return streams


async def test_registered_streams_that_nobody_needs_become_reserves_again(engine: Engine) -> None:
    worker = engine.worker()
    needed, first, second, spare = await _registered_by_a_burst(engine, worker, 4)
    engine.matcher._sweep()  # all of them were needed since the last look
    await run(engine, needed, step())
    engine.matcher._sweep()
    for stream in (first, second):
        assert "not needed" in (await stream.expect("reconnect")).reason
        stream.cancel()
    await engine.matcher.streams(2)
    again = await worker.open()
    await engine.matcher.streams(3)
    for name in ("one", "two", "three"):
        engine.matcher.offer(step(name))
    await spare.expect_task()
    await needed.expect_task()
    await again.expect("registered")
    await again.expect_task()


async def test_recalled_stream_that_stays_is_ended(engine: Engine) -> None:
    worker = engine.worker()
    recalled, spare = await _registered_by_a_burst(engine, worker, 2)
    engine.matcher._sweep()
    engine.matcher._sweep()
    await recalled.expect("reconnect")
    await run(engine, spare, step())  # never the other one
    engine.matcher._sweep()
    code, details = await recalled.end()
    assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "the Worker did not reconnect")
    await run(engine, spare, step())


async def test_eager_registration() -> None:
    async with serve(eager=True) as engine:
        worker = engine.worker()
        for _ in range(3):
            await worker.open_registered()


async def test_streams_of_a_worker_are_bounded() -> None:
    async with serve(most_streams_per_worker=2) as engine:
        await _check_bound_of_two(engine)


async def _check_bound_of_two(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    second = await worker.open()
    await engine.matcher.streams(2)
    # Not RESOURCE_EXHAUSTED, which the SDK takes for permanent.
    assert (await (await worker.open()).end())[0] is grpc.StatusCode.UNAVAILABLE
    await engine.worker("worker-2").open_registered()
    await first.half_close()
    await first.expect_eof()
    await second.expect("registered")
    third = await worker.open(queue=worker.id)
    await third.expect("registered")


# Choice.


async def test_task_waits_for_a_worker_and_rpcs_go_first(engine: Engine) -> None:
    tasks = [step("a"), step("b"), rpc("c"), step("d"), rpc("e")]
    for task in tasks:
        engine.matcher.offer(task)
    engine.matcher.withdraw(tasks[1])
    engine.matcher.withdraw(tasks[1])
    stream = await engine.worker().open_registered()
    order = []
    for _ in range(4):
        task_id = await stream.expect_task()
        report = await engine.host.next("begin")
        order.append(report.task.name)
        done = rpc_result if report.task.kind == "rpc" else result
        await stream.send(done(task_id))
    assert order == ["c", "e", "a", "d"]


async def test_a_stream_has_one_task_at_a_time(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    for name in ("one", "two"):
        engine.matcher.offer(step(name))
    first = await stream.expect_task()
    await stream.send(heartbeat(first))
    await engine.host.next("frame")
    assert engine.host.count("begin") == 1
    await stream.send(result(first))
    assert await stream.expect_task() != first


async def test_flow_types_do_not_mix(engine: Engine) -> None:
    other = await engine.worker("worker-2", "Other").open_registered()
    engine.matcher.offer(step())
    await run(engine, other, step(flow_type="Other"))
    mine = await engine.worker().open_registered()
    await mine.expect_task()


async def test_a_workers_own_queue_takes_every_flow_type_of_it(engine: Engine) -> None:
    worker = engine.worker()
    own = await worker.open(queue=worker.id, flow_types=[FLOW, "Other"])
    await own.expect("registered")
    await run(engine, own, step())
    await run(engine, own, step(flow_type="Other"))


async def test_last_worker_of_the_flow_is_preferred_and_others_take_turns(engine: Engine) -> None:
    streams = {}
    for number in (1, 2, 3):
        worker = engine.worker(f"worker-{number}")
        streams[worker.id] = await worker.open_registered()
    for _ in range(3):
        await run(engine, streams["worker-2"], step(sticky_worker="worker-2"))
    served = []
    for _ in range(6):
        task = step(sticky_worker="worker-gone")
        engine.matcher.offer(task)
        report = await engine.host.next("begin")
        served.append(report.slot.worker_id)
        stream = streams[report.slot.worker_id]
        await stream.send(result(await stream.expect_task()))
        await engine.host.next("frame")
    assert served[:3] == ["worker-1", "worker-3", "worker-2"]
    assert served[3:] == served[:3]


async def test_busy_preferred_worker_does_not_hold_the_task(engine: Engine) -> None:
    first = await engine.worker("worker-1").open_registered()
    second = await engine.worker("worker-2").open_registered()
    engine.matcher.offer(step(sticky_worker="worker-1"))
    await first.expect_task()
    await run(engine, second, step(sticky_worker="worker-1"))


async def test_last_attempt_avoids_a_stream_that_may_be_retiring(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    # Alone on its queue it is not retired, so it is used, and the reserve is left alone.
    await worker.open(queue=worker.id)
    engine.matcher.offer(step("one", is_last_attempt=True))
    one = await first.expect_task()
    await first.expect("ping")
    await first.send(result(one))
    await first.send(PONG)
    await engine.host.next("frame")


async def test_last_attempt_under_load_prefers_a_reserve(engine: Engine) -> None:
    worker = engine.worker()
    streams = [await worker.open_registered()]
    for count in (2, 3, 4):
        streams.append(await worker.open())
        await engine.matcher.streams(count)
    task_ids = []
    for number, stream in enumerate(streams):
        engine.matcher.offer(step())
        if number:
            await stream.expect("registered")
        task_ids.append(await stream.expect_task())
    # Two are idle and two run: the SDK may be about to retire an idle one.
    for stream, task_id in zip(streams[:2], task_ids[:2], strict=True):
        await stream.send(result(task_id))
        await engine.host.next("frame")
    reserve = await worker.open()
    await engine.matcher.streams(5)
    await run(engine, streams[0], step("any"))
    engine.matcher.offer(step("last", is_last_attempt=True))
    await reserve.expect("registered")
    await reserve.expect_task()
    await reserve.expect("ping")


async def test_task_that_is_not_wanted_frees_the_stream(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.host.refuses_begin = True
    engine.matcher.offer(step("unwanted"))
    engine.host.refuses_begin = False
    await run(engine, stream, step("wanted"))


async def test_release_and_cancel_before_the_send_free_the_stream(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.host.holds = True
    for end in ("release", "cancel"):
        task = step()
        engine.matcher.offer(task)
        slot = (await engine.host.next("begin")).slot
        getattr(slot, end)()
        slot.send(message(task))  # too late: nothing happens
        slot.release()
        slot.cancel()
    engine.host.holds = False
    await run(engine, stream, step())


# Frames.


async def test_frames_of_a_task(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    task = step()
    engine.matcher.offer(task)
    task_id = await stream.expect_task()
    slot = (await engine.host.next("begin")).slot
    assert slot.token == task_id
    assert slot.worker_id == "worker-1"
    await stream.send(heartbeat("another"))
    await stream.send(heartbeat(task_id))
    await stream.send(pb.PollWorkerTaskRequest(task_frame=pb.PollWorkerTaskFrame(task_id=task_id)))
    await stream.send(result("another"))
    await stream.send(reject("another", NO_CAPACITY))
    await stream.send(result(task_id))
    # Late and duplicate frames.
    await stream.send(result(task_id))
    await stream.send(heartbeat(task_id))
    await stream.send(reject(task_id, NO_CAPACITY))
    await run(engine, stream, step("next"))
    outputs = [
        (report.task.name, report.detail.execute.WhichOneof("output"))
        for report in engine.host.reports
        if report.kind == "frame"
    ]
    assert outputs == [("Step", "heartbeat"), ("Step", "result"), ("next", "result")]
    assert engine.host.count("lost") == engine.host.count("unstarted") == 0


async def test_worker_error_is_final(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.matcher.offer(step())
    error = pb.PollWorkerTaskFrame(
        task_id=await stream.expect_task(), worker_error=pb.WorkerErrorResponse(detail="no")
    )
    await stream.send(pb.PollWorkerTaskRequest(task_frame=error))
    assert (await engine.host.next("frame")).detail.worker_error.detail == "no"
    await run(engine, stream, step())


async def test_wait_for_frames(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.matcher.offer(Task("wait_for", FLOW, "Step", "flow-1"))
    output = pb.InvokeWaitForMethodOutput(result=pb.InvokeWaitForMethodResponse())
    frame = pb.PollWorkerTaskFrame(task_id=await stream.expect_task(), wait_for=output)
    await stream.send(pb.PollWorkerTaskRequest(task_frame=frame))
    assert (await engine.host.next("frame")).detail.WhichOneof("output") == "wait_for"
    await run(engine, stream, step())


async def test_answer_of_another_kind_is_no_answer(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.matcher.offer(step())
    await stream.send(rpc_result(await stream.expect_task()))
    await engine.host.next("lost")
    await run(engine, stream, step())


async def test_task_may_be_sent_as_bytes(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.host.holds = True
    task = step()
    engine.matcher.offer(task)
    slot = (await engine.host.next("begin")).slot
    wanted = message(task)
    wanted.task_id = slot.token
    wanted.execute.step_input.string_value = "x" * 300_000
    slot.send(wanted.SerializeToString())
    assert await stream.expect("task") == wanted


async def test_canceled_task_is_not_reported_any_more(engine: Engine) -> None:
    worker = engine.worker()
    stream = await worker.open_registered()
    engine.matcher.offer(step())
    slot = (await engine.host.next("begin")).slot
    task_id = await stream.expect_task()
    slot.cancel()
    slot.cancel()
    assert (await stream.expect("cancel_task")).task_id == task_id
    # The Worker is still busy with it.
    waiting = step("waiting")
    engine.matcher.offer(waiting)
    await stream.send(heartbeat(task_id))
    await stream.send(result(task_id))
    assert (await engine.host.next("begin")).task is waiting
    await stream.send(result(await stream.expect_task()))
    assert (await engine.host.next("frame")).task is waiting
    engine.matcher.offer(step("again"))
    (await engine.host.next("begin")).slot.cancel()
    await stream.expect("task")
    await stream.expect("cancel_task")
    stream.cancel()
    await engine.matcher.streams(0)
    assert [report.kind for report in engine.host.reports].count("frame") == 1
    assert engine.host.count("lost") == engine.host.count("unstarted") == 0


async def test_a_worker_that_missed_a_heartbeat_gets_nothing_until_it_is_heard(
    engine: Engine,
) -> None:
    first = await engine.worker("worker-1").open_registered()
    spare = await engine.worker("worker-1").open()
    second = await engine.worker("worker-2").open_registered()
    engine.matcher.offer(step("hangs", sticky_worker="worker-1"))
    slot = (await engine.host.next("begin")).slot
    task_id = await first.expect_task()
    slot.give_up()
    await first.expect("cancel_task")
    await first.expect("ping")
    await run(engine, second, step("again", sticky_worker="worker-1"))
    engine.matcher.offer(step("other"))
    other = await second.expect_task()
    waiting = step("waiting", sticky_worker="worker-1")
    engine.matcher.offer(waiting)
    assert engine.matcher.depth == 1  # the spare stream is free, and its Worker silent
    await first.send(PONG)
    await spare.expect("registered")
    await spare.send(result(await spare.expect_task()))
    await second.send(result(other))
    for _ in range(2):  # so that both streams are free again
        await engine.host.next("frame")
    # The late end of what was given up is heard by nobody.
    await first.send(result(task_id))
    await run(engine, second, step("last", sticky_worker="worker-2"))
    frames = [report.task.name for report in engine.host.reports if report.kind == "frame"]
    assert sorted(frames) == ["again", "last", "other", "waiting"]
    assert engine.host.count("lost") == engine.host.count("unstarted") == 0


async def test_a_silent_worker_that_opens_a_stream_is_heard(engine: Engine) -> None:
    """The stream that was asked may have ended without an answer."""
    first = await engine.worker("worker-1").open_registered()
    engine.matcher.offer(step("hangs"))
    slot = (await engine.host.next("begin")).slot
    await first.expect_task()
    slot.give_up()
    engine.matcher.offer(step("next"))
    assert engine.matcher.depth == 1
    second = await engine.worker("worker-1").open()
    await second.expect("registered")
    await second.send(result(await second.expect_task()))
    await engine.host.next("frame")


# Refusals.


async def test_unknown_name_excludes_the_worker_for_that_name(engine: Engine) -> None:
    first = await engine.worker("worker-1").open_registered()
    second = await engine.worker("worker-2").open_registered()
    task = step("new")
    engine.matcher.offer(task)
    await first.send(reject(await first.expect_task(), UNKNOWN_STEP))
    report = await engine.host.next("unstarted")
    assert report.detail is Unstarted.UNKNOWN_NAME
    assert not engine.matcher.refused_by_all(task)
    engine.matcher.offer(task)
    await second.send(reject(await second.expect_task(), UNKNOWN_STEP))
    await engine.host.next("unstarted")
    assert engine.matcher.refused_by_all(task)
    engine.matcher.offer(task)
    # It waits without standing in the way, and an RPC of that name is something else.
    await run(engine, first, step("old"))
    engine.matcher.offer(rpc("new"))
    await second.send(reject(await second.expect_task(), UNKNOWN_RPC))
    await engine.host.next("unstarted")
    third = await engine.worker("worker-3").open_registered()
    await third.send(result(await third.expect_task()))
    assert (await engine.host.next("frame")).task is task
    assert not engine.matcher.refused_by_all(task)
    assert not engine.matcher.refused_by_all(step(flow_type="nobody serves this"))


async def test_refused_step_waits_until_a_task_of_the_worker_ends(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    second = await worker.open()
    third = await worker.open()
    await engine.matcher.streams(3)
    engine.matcher.offer(step("running"))
    running = await first.expect_task()
    refused = step("refused")
    engine.matcher.offer(refused)
    await second.expect("registered")
    await second.send(reject(await second.expect_task(), NO_CAPACITY))
    assert (await engine.host.next("unstarted")).detail is Unstarted.NO_CAPACITY
    engine.matcher.offer(refused)
    assert refused.waiting is not None  # nothing is offered to the full Worker
    # An RPC may use the slot that the Worker keeps for it.
    engine.matcher.offer(rpc())
    await second.send(rpc_result(await second.expect_task()))
    assert (await engine.host.next("frame")).task.kind == "rpc"
    await first.send(result(running))
    assert (await engine.host.next("frame")).task.name == "running"
    streams = [asyncio.create_task(stream.read()) for stream in (first, second, third)]
    done, rest = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert len(done) == 1
    for read in rest:
        read.cancel()


async def test_refusal_storm_does_not_spin(engine: Engine) -> None:
    engine.host.on_report = lambda report: (
        engine.matcher.offer(report.task) if report.kind == "unstarted" else None
    )
    stream = await engine.worker().open_registered()
    task = step()
    engine.matcher.offer(task)
    loop = asyncio.get_running_loop()
    started = loop.time()
    for _ in range(9):
        await stream.send(reject(await stream.expect_task(), NO_CAPACITY))
    # The first is offered again at once, then after 2, 4, 8, … 128 ms.
    assert loop.time() - started > 0.2
    await stream.send(result(await stream.expect_task()))
    assert (await engine.host.next("frame")).task is task


async def test_farewell_of_a_retiring_stream_is_no_limit(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    second = await worker.open()
    third = await worker.open()
    await engine.matcher.streams(3)
    engine.matcher.offer(step("long"))
    await first.expect_task()
    task = step("refused")
    engine.matcher.offer(task)
    await second.expect("registered")
    await second.send(reject(await second.expect_task(), NO_CAPACITY))
    await engine.host.next("unstarted")
    engine.matcher.offer(task)
    await second.half_close()
    await second.expect_eof()
    await third.expect("registered")
    await third.send(result(await third.expect_task()))
    assert (await engine.host.next("frame")).task is task


# Ends of streams.


async def test_clean_half_close_without_a_frame_gives_the_task_back(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.matcher.offer(step())
    await stream.expect_task()
    await stream.half_close()
    assert (await engine.host.next("unstarted")).detail is Unstarted.HALF_CLOSED
    await stream.expect_eof()
    assert (await stream.end())[0] is grpc.StatusCode.OK


@pytest.mark.parametrize("evidence", ["frame", "pong"])
async def test_clean_half_close_after_evidence_is_a_loss(engine: Engine, evidence: str) -> None:
    stream = await engine.worker().open_registered()
    engine.matcher.offer(step(is_last_attempt=True))
    task_id = await stream.expect_task()
    await stream.expect("ping")
    await stream.send(heartbeat(task_id) if evidence == "frame" else PONG)
    await stream.half_close()
    await engine.host.next("lost")
    await stream.expect_eof()


async def test_only_last_attempts_are_followed_by_a_ping(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    await run(engine, stream, step())
    await run(engine, stream, step())


async def test_broken_stream_is_a_loss(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.matcher.offer(step())
    await stream.expect_task()
    stream.cancel()
    await engine.host.next("lost")
    assert not engine.matcher.has_workers(FLOW)


async def test_lost_connection_loses_every_task_on_it(engine: Engine) -> None:
    worker = engine.worker()
    streams = [await worker.open_registered(worker.id), await worker.open_registered()]
    for _ in streams:
        engine.matcher.offer(step())
    for stream in streams:
        await stream.expect_task()
    await worker.close()
    for _ in streams:
        await engine.host.next("lost")


async def test_loss_is_reported_although_a_write_hangs(engine: Engine) -> None:
    # The peer reads nothing: the task stays in flight, and a reserve waits for its turn.
    worker = engine.worker()
    first = await worker.open_registered()
    await worker.open()
    await engine.matcher.streams(2)
    engine.host.holds = True
    task = step(is_last_attempt=True)
    engine.matcher.offer(task)
    big = message(task)
    big.execute.step_input.string_value = "x" * (3 << 20)
    (await engine.host.next("begin")).slot.send(big)
    first.cancel()
    assert (await engine.host.next("lost", "unstarted")).task is task


async def test_stream_that_ends_before_the_send_is_replaced_silently(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    reserve = await worker.open()
    await engine.matcher.streams(2)
    engine.host.holds = True
    task = step()
    engine.matcher.offer(task)
    slot = (await engine.host.next("begin")).slot
    await first.half_close()
    await first.expect_eof()
    slot.send(message(task))
    await reserve.expect("registered")
    assert await reserve.expect_task() == slot.token
    await reserve.send(result(slot.token))
    assert (await engine.host.next()).kind == "frame"


async def test_task_to_be_sent_waits_for_the_next_stream(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    own = await worker.open_registered(worker.id)
    engine.matcher.offer(step("other"))
    await first.expect_task()
    engine.host.holds = True
    task = step()
    engine.matcher.offer(task)
    await engine.host.next("begin")
    slot = (await engine.host.next("begin")).slot
    await own.half_close()
    await own.expect_eof()
    slot.send(message(task))
    late = await worker.open()
    await late.expect("registered")
    assert await late.expect_task() == slot.token


async def test_task_to_be_sent_is_given_back_when_no_stream_comes(engine: Engine) -> None:
    stream = await engine.worker().open_registered()
    engine.host.holds = True
    task = step()
    engine.matcher.offer(task)
    slot = (await engine.host.next("begin")).slot
    await stream.half_close()
    await stream.expect_eof()
    slot.send(message(task))
    assert engine.host.count("unstarted") == 0  # not from inside the engine's call
    assert (await engine.host.next("unstarted")).detail is Unstarted.NOT_DELIVERED


async def test_released_while_it_waits_for_a_stream(engine: Engine) -> None:
    worker = engine.worker()
    first = await worker.open_registered()
    own = await worker.open_registered(worker.id)
    engine.matcher.offer(step("other"))
    await first.expect_task()
    engine.host.holds = True
    engine.matcher.offer(step())
    await engine.host.next("begin")
    slot = (await engine.host.next("begin")).slot
    await own.half_close()
    await own.expect_eof()
    slot.send(message(step()))
    slot.release()
    assert engine.matcher._workers["worker-1"].load.in_flight == 1


# Liveness.


async def test_idle_stream_is_pinged_and_dropped_after_two_misses(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_worker_stream, "PING_IDLE_AFTER_S", 0.0)
    worker = engine.worker()
    stream = await worker.open_registered()
    reserve = await worker.open()
    await engine.matcher.streams(2)
    engine.matcher._sweep()
    await stream.expect("ping")
    await stream.send(PONG)
    await run(engine, stream, step())  # the pong has been read when this is done
    for _ in range(2):
        engine.matcher._sweep()
        await stream.expect("ping")
    engine.matcher._sweep()
    code, details = await stream.end()
    assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "the Worker did not answer")
    # The reserve was never pinged, and takes the place.
    await reserve.expect("registered")


async def test_silent_busy_stream_is_broken(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await engine.worker().open_registered()
    engine.matcher.offer(step(is_last_attempt=True))
    await stream.expect_task()
    await stream.expect("ping")
    engine.matcher._sweep()
    assert engine.host.count("lost") == 0
    monkeypatch.setattr(_worker_stream, "BUSY_SILENCE_S", -1.0)
    engine.matcher._sweep()
    # Reported in that very call, before anything is written.
    assert engine.host.count("lost") == 1
    assert (await stream.end())[0] is grpc.StatusCode.UNAVAILABLE
    again = await engine.worker().open_registered()
    await run(engine, again, step())


# Stop.


async def test_drain_waits_for_final_frames(engine: Engine) -> None:
    worker = engine.worker()
    busy = await worker.open_registered()
    idle = await worker.open()
    await engine.matcher.streams(2)
    engine.matcher.offer(step("last"))
    task_id = await busy.expect_task()
    draining = asyncio.create_task(engine.matcher.drain(30))
    await busy.expect("reconnect")
    await idle.expect("reconnect")
    engine.matcher.offer(step("not any more"))
    assert (await (await worker.open()).end())[0] is grpc.StatusCode.UNAVAILABLE
    assert not draining.done()
    await busy.send(result(task_id))
    await draining
    assert (await engine.host.next("frame")).task.name == "last"
    assert engine.host.count("begin") == 1


async def test_drain_without_tasks_and_with_too_long_ones(engine: Engine) -> None:
    await engine.matcher.drain(30)
    async with serve() as other:
        stream = await other.worker().open_registered()
        other.matcher.offer(step())
        await stream.expect_task()
        await other.matcher.drain(0.01)
        other.matcher.close()
        await stream.expect("reconnect")
        code, details = await stream.end()
        assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "the engine has stopped")
        await asyncio.sleep(0)
        assert other.host.count("lost") == other.host.count("unstarted") == 0


async def test_many_waiting_tasks_are_handed_out_fast(engine: Engine) -> None:
    tasks = [step(f"s{number % 5}") for number in range(20_000)]
    for task in tasks:
        engine.matcher.offer(task)
    for task in tasks[100:]:
        engine.matcher.withdraw(task)
    stream = await engine.worker().open_registered()
    for task in tasks[:100]:
        report = await engine.host.next("begin")
        assert report.task is task
        await stream.send(result(await stream.expect_task()))
    assert engine.matcher._waiting == {}
    assert engine.matcher._waiting_count == 0


async def test_two_workers_under_churn_serve_every_task_once(engine: Engine) -> None:
    """Streams come and go at random; every task is answered, none twice."""
    import random

    source = random.Random(7)
    answered: list[Task] = []
    done = asyncio.Event()
    total = 300

    def on_report(report: Any) -> None:
        if report.kind == "unstarted" or report.kind == "lost":
            engine.matcher.offer(report.task)
        elif report.kind == "frame":
            answered.append(report.task)
            if len(answered) == total:
                done.set()

    engine.host.on_report = on_report

    async def serve_stream(worker: FakeWorker, queue: str) -> None:
        while not done.is_set():
            stream = await worker.open(queue)
            for _ in range(source.randint(1, 12)):
                frame = await stream.call.read()
                if frame is EOF or done.is_set():
                    return
                if frame.WhichOneof("frame") != "task":
                    continue
                task_id = frame.task.task_id
                chance = source.random()
                if chance < 0.1:
                    stream.cancel()
                    break
                if chance < 0.2:
                    await stream.send(reject(task_id, NO_CAPACITY))
                elif chance < 0.3:
                    break
                else:
                    await stream.send(result(task_id))
            else:
                await stream.half_close()
                continue
            if not stream.call.done():
                await stream.half_close()

    tasks = []
    for number in (1, 2):
        worker = engine.worker(f"worker-{number}")
        for queue in (worker.id, FLOW, FLOW):
            tasks.append(asyncio.create_task(serve_stream(worker, queue)))
    for number in range(total):
        engine.matcher.offer(step(f"s{number % 3}", is_last_attempt=number % 4 == 0))
    async with asyncio.timeout(60):
        await done.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(set(answered)) == total
    assert engine.matcher._waiting_count == 0
