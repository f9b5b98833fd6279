"""What the calls show of a run, on the wire: summary, live state, history, and who waits for a Worker."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_lite._wire.hints import (
    FLOWS_WITHOUT_WORKER,
    STEPS_WITHOUT_WORKER,
    from_metadata,
    to_metadata,
)
from support.frame_flow import (
    INVALID,
    MISSING,
    NULL,
    SKIP,
    Frames,
    close,
    frames,
    go,
    message,
    on_channels,
    refusal,
    step,
    text,
    write,
)


async def test_summary(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        before = time.time()
        run_id = await engine.start("", request_id="asked")
        request = pb.GetFlowSummaryRequest(flow_id="f")
        summary = await engine.stub.GetFlowSummary(request)
        found = summary.flow_execution_id
        assert (found.flow_id, found.run_id, summary.first_run_id) == ("f", run_id, run_id)
        assert (summary.request_id, summary.flow_type, summary.run_attempt) == ("asked", "Flow", 1)
        assert summary.flow_status == pb.FLOW_STATUS_RUNNING
        assert before - 1 < summary.start_time.seconds <= time.time()
        assert not summary.HasField("close_time")
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        summary = await engine.stub.GetFlowSummary(request)
        assert summary.close_time.ToDatetime() >= summary.start_time.ToDatetime()
        unknown = engine.stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id="unknown"))
        assert (await refusal(unknown)).what == MISSING


async def test_state(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        config = pb.FlowConfig(continue_as_new_threshold=7)
        await engine.start(flow_start_options=pb.FlowStartOptions(flow_config_override=config))
        (queued,) = (await engine.state()).queued_steps
        assert (queued.step_type, queued.from_step_execution_id_internal_only) == ("S", "__start__")
        worker = await engine.worker(streams=2, worker_id="the worker")
        secret = write("token", "hidden in history")
        secret.is_hard_delete_on_null = True
        await (await worker.task()).execute(
            go("A", step("W", pb.StepOptions(), step_input=text("in")), "Later"),
            upsert_attributes=[write("k", "v"), secret],
            publish_to_channel=[message("c", "1")],
        )
        tasks = await worker.tasks(2)
        await tasks["W-1"].wait_for(
            on_channels("d"), upsert_step_exe_locals=[pb.KV(key="local", value=text("kept"))]
        )
        later = await worker.task()
        await later.execute(close("graceful", "out"))
        await engine.step_ended("Later")
        state = await engine.state()
        assert state.flow_config.continue_as_new_threshold == 7
        assert {kv.key for kv in state.attributes} == {"k", "token"}
        assert state.sticky_app_worker_id == "the worker"
        (pending,) = state.pending_channel_messages["c"].messages
        assert pending.value == text("1")
        assert [o.completed_step_output for o in state.completed_steps] == [text("out")]
        active, waiting = state.active_step_executions
        assert (active.step_execution_id, active.from_step_execution_id, active.phase) == (
            "A-1",
            "S-1",
            pb.ACTIVE_STEP_PHASE_ACTIVE,
        )
        assert (waiting.step_type, waiting.phase) == ("W", pb.ACTIVE_STEP_PHASE_WAITING)
        assert waiting.movement.step_input == text("in")
        assert waiting.waiting_condition.channel_conditions[0].channel_name == "d"
        assert [(kv.key, kv.value) for kv in waiting.step_execution_locals] == [
            ("local", text("kept"))
        ]


def _kinds(events: Any) -> list[str]:
    return [event.WhichOneof("payload") for event in events]


async def _busy_run(engine: Frames) -> str:
    """A run with one event of each kind but time travel."""
    worker = await engine.worker(streams=3)
    failing = pb.StepOptions(
        wait_for_retry_policy=pb.RetryPolicy(maximum_attempts=1),
        wait_for_failure_policy="WAIT_FOR_METHOD_FAILURE_POLICY_PROCEED_ON_FAILURE",
        execute_retry_policy=pb.RetryPolicy(maximum_attempts=2, initial_interval_seconds=1),
        execute_failure_policy="EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP",
        execute_failure_proceed_step_type="Next",
    )
    run_id = await engine.start("Bad", options=failing, step_input=text("in"))
    await (await worker.task()).error("no wait", error_type="E")
    for number in range(2):
        await (await worker.task()).error(f"broken {number}", error_type="E", stack_trace="s")
    await (await worker.task()).wait_for(
        on_channels("c"),
        upsert_step_exe_locals=[pb.KV(key="local", value=text("kept"))],
        record_events=[pb.KV(key="noted", value=text("early"))],
    )
    query = engine.invoke("query")
    await (await worker.task()).rpc(text("answer"))
    await query
    effect = engine.invoke("effect", input=text("rpc in"))
    await (await worker.task()).rpc(
        text("rpc out"),
        upsert_attributes=[write("k", "v")],
        record_events=[pb.KV(key="noted", value=text("rpc"))],
        step_decision=go(step("Aside", SKIP), cancel_step_types=["Nobody"]),
    )
    await effect
    aside = await worker.task()
    await aside.execute(close("dead end"))
    await engine.step_ended("Aside")
    await engine.stub.SetAttributes(
        pb.SetAttributesRequest(flow_id="f", attributes=[write("k", "set")])
    )
    await engine.publish(message("x", "1"))
    (there,) = await engine.pending("x")
    await engine.stub.DeleteChannelMessage(
        pb.DeleteChannelMessageRequest(flow_id="f", channel_name="x", message_id=there.message_id)
    )
    await engine.publish(message("c", "taken"))
    await (await worker.task()).execute(
        go("Last"),
        upsert_attributes=[write("l", "w")],
        publish_to_channel=[message("y", "2")],
        record_events=[pb.KV(key="noted", value=text("late"))],
    )
    await (await worker.task()).execute(close("graceful", "out"))
    await engine.result()
    return run_id


async def test_every_kind_of_event(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        run_id = await _busy_run(engine)
        events = await engine.events(run_id)
        assert _kinds(events) == [
            "flow_started_or_continued",
            "step_wait_for_failed",
            "step_execute_failed",
            "step_wait_for_completed",
            "rpc_execution_completed",  # the query has left nothing
            "step_execute_completed",
            "rpc_execution_completed",
            "channel_external_publish",
            "channel_external_delete",
            "channel_external_publish",
            "step_execute_completed",
            "step_execute_completed",
            "flow_closed",
        ]
        ids = [event.event_id for event in events]
        assert ids == sorted(set(ids)) and ids[0] == 1
        assert all(event.run_attempt == 1 and event.HasField("event_time") for event in events)
        started = events[0].flow_started_or_continued
        assert started.flow_execution_id.run_id == run_id
        assert started.initial_start.start_step_type == "Bad"
        assert started.initial_start.step_input == text("in")
        no_wait, broken = events[1].step_wait_for_failed, events[2].step_execute_failed
        assert no_wait.output.failure.details.original_worker_error_detail == "no wait"
        # Single attempts are no events; the last one is shown.
        assert broken.context.final_attempt == 2
        assert broken.output.failure.details.original_worker_error_detail == "broken 1"
        assert broken.output.failure.details.original_worker_error_stack_trace == "s"
        assert broken.input.step_input == text("in")
        assert broken.input.condition_results.wait_for_failed
        assert broken.context.method_options == pb.StepMethodOptions(
            timeout_seconds=7_200,
            heartbeat_timeout_seconds=60,
            retry_policy=pb.RetryPolicy(
                initial_interval_seconds=1,
                backoff_coefficient=2,
                maximum_interval_seconds=100,
                maximum_attempts=2,
                total_duration_seconds=14_400,
            ),
        )
        assert broken.context.durability == pb.STEP_DURABILITY_SYNC
        waited = events[3].step_wait_for_completed
        assert waited.context.step_execution_id == "Next-1"
        assert waited.context.from_step_execution_id == "Bad-1"
        assert waited.output.wait_for_condition.channel_conditions[0].channel_name == "c"
        assert [kv.key for kv in waited.output.upsert_step_execution_locals] == ["local"]
        assert [(kv.key, kv.value) for kv in waited.output.record_events] == [
            ("noted", text("early"))
        ]
        rpc = events[4].rpc_execution_completed
        assert (rpc.rpc_name, rpc.input, rpc.output) == ("effect", text("rpc in"), text("rpc out"))
        assert [kv.value for kv in rpc.record_events] == [text("rpc")]
        assert [kv.key for kv in rpc.upsert_attributes] == ["k"]
        assert [movement.step_type for movement in rpc.step_decision.next_steps] == ["Aside"]
        assert list(rpc.step_decision.cancel_step_types) == ["Nobody"]
        assert not rpc.is_set_attribute_api
        assert events[6].rpc_execution_completed.is_set_attribute_api
        (published,) = events[7].channel_external_publish.messages
        assert (published.channel_name, published.value) == ("x", text("1"))
        (deleted,) = events[8].channel_external_delete.messages
        assert deleted.message_id == published.message_id
        done = events[10].step_execute_completed
        assert done.context.step_execution_id == "Next-1"
        assert done.context.HasField("started_time") and done.context.HasField("duration")
        assert done.context.pull_routing.served_by_app_worker_id == "w"
        assert [kv.key for kv in done.output.upsert_attributes] == ["l"]
        assert [m.channel_name for m in done.output.publish_to_channel] == ["y"]
        assert [kv.value for kv in done.output.record_events] == [text("late")]
        assert [m.step_type for m in done.output.step_decision.next_steps] == ["Last"]
        assert [(kv.key, kv.value) for kv in done.input.step_execution_locals] == [
            ("local", text("kept"))
        ]
        (taken,) = done.input.condition_results.channel_results
        assert (taken.channel_name, list(taken.values)) == ("c", [text("taken")])
        assert not done.context.HasField("last_failure_info")
        ended = events[11].step_execute_completed.output.step_decision.close_decision
        assert ended.close_input == text("out")
        closed = events[12].flow_closed
        assert closed.flow_status == pb.FLOW_STATUS_COMPLETED
        assert [o.completed_step_output for o in closed.results] == [text("out")]


async def test_who_waits_for_a_worker(tmp_path: Path) -> None:
    """Said beside the answers: no Worker is there, or none that knows the Step."""
    async with frames(tmp_path) as engine:

        async def told() -> tuple[list[Any], list[Any]]:
            state = engine.stub.GetFlowState(pb.GetFlowStateRequest(flow_id="f"))
            page = engine.stub.SearchFlows(pb.SearchFlowsRequest())
            await asyncio.gather(state, page)
            return (
                from_metadata(STEPS_WITHOUT_WORKER, await state.trailing_metadata()),
                from_metadata(FLOWS_WITHOUT_WORKER, await page.trailing_metadata()),
            )

        await engine.start("Straße")
        assert await told() == (["Straße"], [0])
        worker = await engine.worker()
        task = await worker.task()
        assert await told() == ([], [])
        await task.reject("UNKNOWN_STEP")
        await engine.start(flow_id="known")
        await worker.task()
        assert await told() == (["Straße"], [1])  # the newest Flow comes first


def test_what_is_said_beside_an_answer_fits_into_its_metadata() -> None:
    names = [f"{number}" * 60 for number in range(1_000)]
    ((key, value),) = to_metadata("k-bin", names)
    assert key == "k-bin" and len(value) <= 4_096
    found = from_metadata("k-bin", [("other", "x"), (key, value)])
    assert found and found == names[: len(found)]
    assert to_metadata("k-bin", []) == () and from_metadata("k-bin", []) == []


async def test_what_was_at_work_when_the_flow_closed(tmp_path: Path) -> None:
    """A method that ran after a failure, one that waits for its lock, and none of a Step that waits."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        run_id = await engine.start()
        again = pb.StepOptions(
            skip_wait_for=True,
            execute_durability_override=pb.STEP_DURABILITY_ASYNC,
            execute_retry_policy=pb.RetryPolicy(initial_interval_seconds=1),
            execute_lock_attribute_keys=["k"],
        )
        await (await worker.task()).execute(
            go(
                step("Runs", again, step_input=text("in")),
                step("Waits", pb.StepOptions()),
            )
        )
        tasks = await worker.tasks(2)
        await tasks["Waits-1"].wait_for(on_channels("c"))
        await tasks["Runs-1"].error("once", error_type="E")
        runs = await worker.task()
        parked = step("Parked", pb.StepOptions(wait_for_lock_attribute_keys=["k"]))
        rpc = engine.invoke()
        await (await worker.task()).rpc(NULL, step_decision=go(parked))
        await rpc
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f", stop_type="STOP_TYPE_TERMINATE"))
        assert await worker.canceled() == runs.id
        events = await engine.events(run_id)
        assert _kinds(events)[-3:] == [
            "step_execute_pending",
            "step_wait_for_pending",
            "flow_closed",
        ]
        ids = [event.event_id for event in events]
        assert ids == sorted(set(ids))
        started, scheduled = events[-3].step_execute_pending, events[-2].step_wait_for_pending
        assert (started.phase, scheduled.phase) == (
            pb.PENDING_STEP_METHOD_PHASE_STARTED,
            pb.PENDING_STEP_METHOD_PHASE_SCHEDULED,
        )
        assert started.input.step_input == text("in")
        assert (started.context.step_execution_id, started.context.final_attempt) == ("Runs-1", 2)
        assert started.context.durability == pb.STEP_DURABILITY_ASYNC
        failure = started.context.last_failure_info
        assert (failure.attempt, failure.details.original_worker_error_detail) == (1, "once")
        assert scheduled.context.step_execution_id == "Parked-1"
        assert not scheduled.context.HasField("last_failure_info")
        response = await engine.stub.WaitForHistoryEvent(
            pb.WaitForHistoryEventRequest(
                flow_id="f", run_id=run_id, next_internal_event_id=ids[-1]
            )
        )
        assert response.available_internal_event_id == ids[-1]


async def test_pages_of_a_history(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        run_id = await _busy_run(engine)
        whole = await engine.events(run_id)
        call = engine.stub.GetHistoryEvents
        for size in (1, 5, 100):
            request = pb.GetHistoryEventsRequest(
                flow_id="f", run_id=run_id, estimate_page_size=size
            )
            found: list[pb.FlowHistoryEvent] = []
            while True:
                page = await call(request)
                assert len(page.events) <= size
                found += page.events
                if not page.next_page_token:
                    break
                request.next_page_token = page.next_page_token
            assert found == whole
            assert page.next_internal_event_id == whole[-1].event_id + 1
        rest = await call(
            pb.GetHistoryEventsRequest(
                flow_id="f", run_id=run_id, start_internal_event_id=whole[3].event_id
            )
        )
        assert list(rest.events) == whole[3:]
        behind = pb.GetHistoryEventsRequest(
            flow_id="f", run_id=run_id, start_internal_event_id=10_000
        )
        page = await call(behind)
        assert (len(page.events), page.next_internal_event_id) == (0, 10_000)
        for token in (b"x", b"-1", b"9" * 30, b"1_0", "٣".encode()):
            behind.next_page_token = token
            assert (await refusal(call(behind))).what == INVALID


async def test_an_event_that_no_client_can_receive_is_named(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        run_id = await engine.start("")
        await engine.publish(*(message("c", "x" * 3_000_000) for _ in range(2)))
        await engine.publish(message("c", "small"))
        call = engine.stub.GetHistoryEvents
        request = pb.GetHistoryEventsRequest(flow_id="f", run_id=run_id)
        first = await call(request)
        assert _kinds(first.events) == ["flow_started_or_continued"]
        request.next_page_token = first.next_page_token
        error = await refusal(call(request))
        assert error.what == INVALID
        (behind,) = [word for word in error.text.split() if "start_internal_event_id" in word]
        request = pb.GetHistoryEventsRequest(
            flow_id="f", run_id=run_id, start_internal_event_id=int(behind.split("=")[1])
        )
        assert _kinds((await call(request)).events) == ["channel_external_publish"]


async def test_a_wait_for_an_event(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        run_id = await engine.start("")

        async def wait_for(number: int) -> Any:
            request = pb.WaitForHistoryEventRequest(
                flow_id="f", run_id=run_id, next_internal_event_id=number
            )
            return await engine.stub.WaitForHistoryEvent(request)

        there = await wait_for(1)
        assert (there.event_available, there.available_internal_event_id) == (True, 1)
        assert there.flow_status == pb.FLOW_STATUS_RUNNING
        waiting = asyncio.create_task(wait_for(2))
        await engine.publish(message("c", "1"))
        found = await waiting
        assert found.event_available and found.available_internal_event_id >= 2
        never = asyncio.create_task(wait_for(1_000))
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        over = await never
        assert (over.event_available, over.flow_status) == (False, pb.FLOW_STATUS_CANCELED)
        assert not (await wait_for(1_000)).event_available
        assert (await refusal(wait_for(0))).what == INVALID
