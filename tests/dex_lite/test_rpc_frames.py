"""RPCs on the wire: what a Worker is sent, what its answers do, and what a client is told of every failure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb

from support.frame_flow import (
    INVALID,
    MISSING,
    NULL,
    SKIP,
    Frames,
    close,
    deletion,
    frames,
    go,
    message,
    on_channels,
    refusal,
    step,
    text,
    write,
)

WORKER_ERROR = ("FAILED_PRECONDITION", "WORKER_API_ERROR")


async def _pending(engine: Frames, channel: str = "c") -> list[pb.ChannelMessage]:
    request = pb.GetChannelMessagesRequest(flow_id="f", channel_name=channel)
    return list((await engine.stub.GetChannelMessages(request)).messages)


async def test_what_the_worker_is_sent(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        run_id = await engine.start("")
        await engine.stub.SetAttributes(
            pb.SetAttributesRequest(
                flow_id="f", attributes=[write(k, k) for k in ("plain", "m/a", "n/a")]
            )
        )
        await engine.publish(message("c", "1"), message("q/a", "2"), message("d", "3"))
        before = time.time()
        call = engine.invoke(
            "ask",
            timeout_seconds=20,
            load_attribute_map_instances=["m/"],
            load_channel_names=["c"],
            load_channel_map_instances=["q/a"],
        )
        task = await worker.task()
        request = task.request
        assert (task.kind, request.rpc_name, request.flow_type) == ("rpc", "ask", "Flow")
        assert (request.context.flow_id, request.context.run_id) == ("f", run_id)
        assert request.input == NULL  # also where the client gave none
        assert sorted(kv.key for kv in request.attributes) == ["m/a", "plain"]
        assert sorted(request.channel_infos) == ["c", "d", "q/a"]
        assert sorted(request.loaded_channel_messages) == ["c", "q/a"]
        assert list(request.loaded_attribute_map_instances) == ["m/"]
        assert list(request.loaded_channel_names) == ["c"]
        assert list(request.loaded_channel_map_instances) == ["q/a"]
        assert before + 15 < task.deadline.seconds < time.time() + 21
        await task.rpc(text("answer"))
        assert (await call).output == text("answer")


async def test_no_output_is_null(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        call = engine.invoke()
        await (await worker.task()).rpc()
        assert (await call).output == NULL


async def test_an_answer_without_effects_leaves_nothing(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        run_id = await engine.start("")
        call = engine.invoke()
        await (await worker.task()).rpc(text("x"))
        await call
        assert len(await engine.events(run_id)) == 1


async def test_effects_are_applied_before_the_reply(tmp_path: Path) -> None:
    """In the order of a Step's: deletions, publications, cancellations, then the next Steps; then waits."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=4)
        await engine.start()
        await engine.publish(message("c", "old"))
        (old,) = await _pending(engine)
        waiting = pb.StepOptions()
        await (await worker.task()).execute(go(step("W", waiting), step("X", SKIP)))
        tasks = await worker.tasks(2)
        await tasks["W-1"].wait_for(on_channels("d"))
        while not any(
            s.HasField("waiting_condition") for s in (await engine.state()).active_step_executions
        ):
            pass
        call = engine.invoke("change")
        rpc = await worker.task()
        await rpc.rpc(
            text("done"),
            delete_from_channel=[deletion("c", old.message_id), deletion("c", "unknown")],
            publish_to_channel=[message("c", "new"), message("d", "for W")],
            upsert_attributes=[write("k", "v")],
            step_decision=go("X", cancel_step_types=["X"]),
        )
        await call
        state = await engine.state()
        # The wait for "d" is over already.
        assert [m.value for m in await _pending(engine)] == [text("new")]
        assert await _pending(engine, "d") == []
        assert {kv.key: kv.value for kv in state.attributes} == {"k": text("v")}
        assert await worker.canceled() == tasks["X-1"].id
        more = await worker.tasks(2)
        assert sorted(more) == ["W-1", "X-2"]


async def test_rpcs_run_beside_steps_and_each_other(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=3)
        await engine.start()
        running = await worker.task()
        calls = [engine.invoke(f"r{number}") for number in range(2)]
        tasks = [await worker.task() for _ in range(2)]
        for task in reversed(tasks):
            await task.rpc(text(task.request.rpc_name))
        outputs = {(await call).output.string_value for call in calls}
        assert outputs == {"r0", "r1"}
        await running.execute(close("force"))


# What can fail


async def test_a_workers_error_is_told_as_it_is(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        call = engine.invoke()
        await (await worker.task()).error(
            "no such order", error_type="shop.Missing", stack_trace="line 1", grpc_status=2
        )
        error = await refusal(call)
        assert (error.what, error.text) == (WORKER_ERROR, "no such order")
        details = error.details
        assert details.detail == ""  # the worker's own words stand instead
        assert details.original_worker_error_detail == "no such order"
        assert details.original_worker_error_type == "shop.Missing"
        assert details.original_worker_error_stack_trace == "line 1"
        assert details.original_worker_error_status == 2
        assert not worker.has_task  # nobody tries again


async def test_a_workers_error_of_any_length_reaches_the_client(tmp_path: Path) -> None:
    """gRPC drops an answer whose texts have more than 8 KiB, and the client would see another error."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        for character in ("x", "é", "承", "%"):
            call = engine.invoke()
            words = dict.fromkeys(
                ("detail", "error_type", "stack_trace"), f"begins {character * 9000} ends"
            )
            await (await worker.task()).error(words.pop("detail"), **words, grpc_status=2)
            error = await refusal(call)
            assert error.what == WORKER_ERROR
            told = (
                error.text,
                error.details.original_worker_error_detail,
                error.details.original_worker_error_type,
                error.details.original_worker_error_stack_trace,
            )
            # As much as there is room for, without the middle.
            for told_text, least in zip(told, (950, 950, 200, 2_000), strict=True):
                assert told_text.startswith("begins ") and told_text.endswith(" ends")
                assert len(told_text.encode()) > least
            packed = sum(len(told_text.encode()) for told_text in (error.text, *told))
            assert packed < 8_000


async def test_time_is_up(tmp_path: Path) -> None:
    """The client's time, and never more than the engine's; the handler is told."""
    async with frames(tmp_path, rpc_timeout_s=1.0) as engine:
        worker = await engine.worker(streams=2)
        await engine.start("")
        for asked in (0, 1, 3_600):
            started = time.monotonic()
            call = engine.invoke("slow", timeout_seconds=asked)
            task = await worker.task()
            assert task.deadline.seconds <= time.time() + 2
            error = await refusal(call)
            assert (error.what, "timeout" in error.text) == (WORKER_ERROR, True)
            assert time.monotonic() - started < 15
            assert await worker.canceled() == task.id
            await task.rpc(text("late"), upsert_attributes=[write("k", "late")])
        call = engine.invoke()
        await (await worker.task()).rpc()
        await call
        assert await engine.attributes() == {}


async def test_nobody_takes_it(tmp_path: Path) -> None:
    async with frames(tmp_path, rpc_dispatch_wait_s=0.2) as engine:
        await engine.start("")
        error = await refusal(engine.invoke())
        assert error.what == WORKER_ERROR
        reason = error.details.dispatch_task_error_reason
        assert reason == pb.DISPATCH_TASK_ERROR_REASON_NO_WORKER_AVAILABLE
        worker = await engine.worker()
        call = engine.invoke("unheard of")
        await (await worker.task()).reject("UNKNOWN_RPC")
        error = await refusal(call)
        assert error.what == WORKER_ERROR
        reason = error.details.dispatch_task_error_reason
        assert reason == pb.DISPATCH_TASK_ERROR_REASON_UNKNOWN_NAME


async def test_the_worker_goes_away(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        call = engine.invoke()
        task = await worker.task()
        task.stream.cancel()
        error = await refusal(call)
        assert error.what == WORKER_ERROR
        reason = error.details.dispatch_task_error_reason
        assert reason == pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED


async def test_a_refused_rpc_goes_to_another_worker(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        first = await engine.worker(worker_id="first")
        await engine.start("")
        call = engine.invoke()
        task = await first.task()
        second = await engine.worker(worker_id="second")
        await task.reject("UNKNOWN_RPC")
        await (await second.task()).rpc(text("known here"))
        assert (await call).output == text("known here")


async def test_decisions_that_an_rpc_may_not_take(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        for decision, told in (
            (close("force"), "may only schedule Steps"),
            (go(cancel_sibling_step_types=["A"]), "may only schedule Steps"),
            (go(cancel_step_types=["A", "A"]), "repeat 'A'"),
            (go(step("a/b")), "must not contain '/'"),
        ):
            call = engine.invoke(is_transactional=True)
            await (await worker.task()).rpc(
                step_decision=decision, upsert_attributes=[write("k", "v")]
            )
            error = await refusal(call)
            assert (error.what, told in error.text) == (WORKER_ERROR, True), error.text
        assert await engine.attributes() == {}


async def test_an_rpc_has_neither_heartbeats_nor_stream_messages(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        call = engine.invoke()
        task = await worker.task()
        await task.write("s", text("x"))
        await task.heartbeat(text("x"))
        await task.rpc(text("answer"))
        assert (await call).output == text("answer")
        request = pb.ListStreamMessagesRequest(
            flow_id="f", flow_type="Flow", stream_name="s", page_size=1
        )
        assert not (await engine.stub.ListStreamMessages(request)).messages


async def test_task_and_answer_that_are_too_large(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        await engine.publish(*(message("c", "x" * 50_000) for _ in range(90)))  # no blobs
        error = await refusal(engine.invoke(load_channel_names=["c"]))
        assert error.what == WORKER_ERROR
        assert error.details.original_worker_error_type == "TASK_TOO_LARGE"
        call = engine.invoke()
        await (await worker.task()).rpc(text("x" * 3_700_000))
        error = await refusal(call)
        assert (error.what, "at most 3670016" in error.text) == (WORKER_ERROR, True)
        request = pb.GetChannelMessagesRequest(flow_id="f", channel_name="c")
        error = await refusal(engine.stub.GetChannelMessages(request))
        assert (error.what, "consume or delete some" in error.text) == (INVALID, True)


# Closed Flows and older runs


async def test_closed_flows(tmp_path: Path) -> None:
    """A query is answered; effects and strict RPCs are refused, the strict ones before the handler."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        run_id = await engine.start()
        await (await worker.task()).execute(close("force"), upsert_attributes=[write("k", "v")])
        await engine.result()
        for pinned in ("", run_id):
            call = engine.invoke(run_id=pinned)
            task = await worker.task()
            assert [kv.value for kv in task.request.attributes] == [text("v")]
            await task.rpc(text("answer"))
            assert (await call).output == text("answer")
        for effects in (
            {"upsert_attributes": [write("k", "new")]},
            {"publish_to_channel": [message("c", "1")]},
            {"step_decision": go("S")},
            {"record_events": [pb.KV(key="event", value=NULL)]},
        ):
            call = engine.invoke()
            await (await worker.task()).rpc(**effects)
            assert (await refusal(call)).what == MISSING
        for strict in ({"is_transactional": True}, {"lock_attribute_keys": ["k"]}):
            assert (await refusal(engine.invoke(**strict))).what == MISSING
        assert not worker.has_task
        assert (await refusal(engine.invoke(flow_id="unknown"))).what == MISSING
        assert await engine.attributes() == {"k": text("v")}


async def test_an_older_run_is_closed(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        await engine.worker()
        run_id = await engine.start("")
        again = pb.FlowStartOptions(id_reuse_policy="ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING")
        await engine.start("", flow_start_options=again)
        error = await refusal(engine.invoke(run_id=run_id, is_transactional=True))
        assert error.what == MISSING
        assert (await refusal(engine.invoke(run_id="never"))).what == MISSING


# Strict RPCs


async def test_a_missing_message_fails_a_strict_rpc_as_a_whole(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        run_id = await engine.start("")
        await engine.publish(message("c", "1"))
        (there,) = await _pending(engine)
        for strict in ({"is_transactional": True}, {"lock_attribute_keys": ["k"]}):
            call = engine.invoke(**strict)
            await (await worker.task()).rpc(
                delete_from_channel=[deletion("c", there.message_id), deletion("c", "gone")],
                upsert_attributes=[write("k", "v")],
            )
            error = await refusal(call)
            assert error.what == ("NOT_FOUND", "CHANNEL_MESSAGE_NOT_FOUND")
        assert await _pending(engine) == [there]
        assert await engine.attributes() == {}
        assert len(await engine.events(run_id)) == 2


async def test_a_request_id_acts_once(tmp_path: Path) -> None:
    """Also while it is under way, and after a restart; another request under that id is refused."""
    strict: dict[str, Any] = {"is_transactional": True, "request_id": "r", "input": text("in")}
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        await engine.start("")
        calls = [engine.invoke("add", **strict)]
        task = await worker.task()
        calls += [engine.invoke("add", **strict) for _ in range(3)]
        other = engine.invoke("remove", **strict)
        error = await refusal(other)
        assert (error.what, "request id 'r'" in error.text) == (INVALID, True)
        await task.rpc(text("added"), publish_to_channel=[message("c", "1")])
        assert [(await call).output for call in calls] == [text("added")] * 4
        assert not worker.has_task
    async with frames(tmp_path) as engine:
        # Nobody has to be there: the answer is the stored one.
        assert (await engine.invoke("add", **strict)).output == text("added")
        assert len(await _pending(engine)) == 1
        for name, changes in (("remove", {}), ("add", {"input": text("else")})):
            error = await refusal(engine.invoke(name, **{**strict, **changes}))
            assert error.what == INVALID


async def test_a_failed_strict_rpc_may_be_tried_again_under_its_id(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        for answer in ("error", "well"):
            call = engine.invoke(is_transactional=True, request_id="r")
            task = await worker.task()
            if answer == "error":
                await task.error("not now")
                assert (await refusal(call)).what == WORKER_ERROR
            else:
                await task.rpc(text("done"))
                assert (await call).output == text("done")


async def test_a_query_runs_again_under_its_id(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        for answer in ("one", "two"):
            call = engine.invoke(request_id="r")
            await (await worker.task()).rpc(text(answer))
            assert (await call).output == text(answer)


async def test_locks_conflict_at_once_and_are_given_back(tmp_path: Path) -> None:
    """With those of RPCs and of Steps; whoever takes no lock is not held up."""
    conflict = ("ABORTED", "WORKER_API_ERROR")
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=4)
        await engine.start("")
        first = engine.invoke("first", lock_attribute_keys=["x", "y"])
        task = await worker.task()
        for keys in (["y"], ["z", "x"]):
            assert (await refusal(engine.invoke("late", lock_attribute_keys=keys))).what == conflict
        beside = engine.invoke("beside", lock_attribute_keys=["z"])
        await (await worker.task()).rpc()
        await beside
        # Client writes and unlocked RPCs do not care.
        await engine.stub.SetAttributes(
            pb.SetAttributesRequest(flow_id="f", attributes=[write("x", "set")])
        )
        unlocked = engine.invoke("unlocked")
        await (await worker.task()).rpc(upsert_attributes=[write("y", "set")])
        await unlocked
        # A Step waits until they are free.
        steps = engine.invoke("steps")
        locked = pb.StepOptions(skip_wait_for=True, execute_lock_attribute_keys=["x"])
        await (await worker.task()).rpc(step_decision=go(step("L", locked)))
        await steps
        assert not worker.has_task
        await task.error("failed")
        assert (await refusal(first)).what == WORKER_ERROR
        held = await worker.task()
        assert held.step == "L-1"
        assert (await refusal(engine.invoke("l", lock_attribute_keys=["x"]))).what == conflict
        await held.execute(close("dead end"))
        await engine.step_ended("L")
        last = engine.invoke("last", lock_attribute_keys=["x", "y"])
        await (await worker.task()).rpc(text("free"))
        assert (await last).output == text("free")


async def test_a_client_that_gives_up_frees_its_locks(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        await engine.start("")
        call = engine.invoke(lock_attribute_keys=["x"])
        task = await worker.task()
        call.cancel()
        assert await worker.canceled() == task.id
        again = engine.invoke(lock_attribute_keys=["x"])
        await (await worker.task()).rpc(text("free"))
        assert (await again).output == text("free")


@pytest.mark.parametrize("is_strict", [False, True])
async def test_a_flow_that_ends_meanwhile(tmp_path: Path, is_strict: bool) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        call = engine.invoke(is_transactional=is_strict)
        task = await worker.task()
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        await task.rpc(upsert_attributes=[write("k", "v")])
        assert (await refusal(call)).what == MISSING
        assert await engine.attributes() == {}
