"""Client calls on the wire that the SDK's Client has no method for, and every error as the SDK reads it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

import dex_lite
from dex_lite import EngineOptions
from support.frame_flow import (
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

MISSING = ("NOT_FOUND", "FLOW_NOT_EXISTS")
INVALID = ("INVALID_ARGUMENT", "UNCATEGORIZED")
POLL_OVER = ("DEADLINE_EXCEEDED", "LONG_POLL_TIME_OUT")


def _set(*writes: pb.AttributeWrite, request_id: str = "", flow_id: str = "f") -> Any:
    return pb.SetAttributesRequest(flow_id=flow_id, attributes=writes, request_id=request_id)


async def _pending(engine: Frames, channel: str = "c") -> list[pb.ChannelMessage]:
    request = pb.GetChannelMessagesRequest(flow_id="f", channel_name=channel)
    return list((await engine.stub.GetChannelMessages(request)).messages)


# Handshake


async def test_server_info(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        info = await engine.stub.GetServerInfo(Empty())
        assert (
            info.minimum_supported_protocol_version,
            info.current_protocol_version,
            info.server_engine,
        ) == (1, 3, pb.SERVER_ENGINE_ZD)
        assert info.server_version.startswith("dex-lite ")
        assert (await engine.stub.HealthCheck(Empty())).condition == "OK"


async def test_services_of_a_cluster_are_not_there(tmp_path: Path) -> None:
    async with (
        frames(tmp_path) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        matching: Any = dex_pb2_grpc.MatchingServiceStub(channel)
        internal: Any = dex_pb2_grpc.InternalServiceStub(channel)
        for call in (
            matching.DispatchTask(pb.DispatchTaskRequest()),
            internal.DumpFlowForContinueAsNew(pb.ContinueAsNewDumpRequest()),
        ):
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_nobody_has_the_id_of_a_blob(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        entry = pb.LoadBlobRequestEntry(
            flow_id="f", blob_value=pb.Value(internal_blob_id_for_string_value="b")
        )
        error = await refusal(engine.stub.LoadBlobs(pb.LoadBlobsRequest(entries=[entry])))
        assert error.what == ("NOT_FOUND", "UNCATEGORIZED")


async def test_index_types_are_made_once(tmp_path: Path) -> None:
    def types(**found: int) -> pb.SyncAttributeIndexRequest:
        return pb.SyncAttributeIndexRequest(attribute_indexes=found)  # type: ignore[arg-type]

    async with frames(tmp_path) as engine:
        sync = engine.stub.SyncAttributeIndexes
        await sync(types())
        await sync(types(city=pb.INDEX_TYPE_KEYWORD))
    async with frames(tmp_path) as engine:
        sync = engine.stub.SyncAttributeIndexes
        await sync(types(city=pb.INDEX_TYPE_KEYWORD))
        error = await refusal(sync(types(fine=pb.INDEX_TYPE_INT, city=pb.INDEX_TYPE_INT)))
        assert error.what == ("FAILED_PRECONDITION", "UNCATEGORIZED")
        # All or none.
        await sync(types(fine=pb.INDEX_TYPE_BOOL))


# Channels


async def test_messages_are_published_in_order_all_or_none(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        await engine.start("")
        await engine.publish(
            message("c", "1", "mine"), message("d", "2"), message("c", "3", "mine")
        )
        await engine.publish(message("c", "4"))
        found = await _pending(engine)
        assert [m.value.string_value for m in found] == ["1", "3", "4"]
        ids = [m.message_id for m in found]
        assert ids == sorted(set(ids)) and "mine" not in ids
        assert {m.channel_name for m in found} == {"c"}
        bad = pb.PublishToChannelRequest(
            flow_id="f",
            messages=[message("c", "5"), pb.ChannelMessage(channel_name="c", value=pb.Value())],
        )
        assert (await refusal(engine.stub.PublishToChannel(bad))).what == INVALID
        assert await _pending(engine) == found
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        assert await _pending(engine) == []
        late = pb.PublishToChannelRequest(flow_id="f", messages=[message("c", "6")])
        assert (await refusal(engine.stub.PublishToChannel(late))).what == MISSING


async def test_a_message_waits_for_whoever_comes(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        await engine.start(options=pb.StepOptions())
        await engine.publish(message("c", "early"))
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await (await worker.task()).wait_for(on_channels("c"))
        (result,) = (await worker.task()).request.condition_results.channel_results
        assert list(result.values) == [text("early")]
        assert await _pending(engine) == []


async def test_a_message_is_deleted_by_its_id(tmp_path: Path) -> None:
    """Once under a request id, also after a restart; that id is for this message only."""

    def delete(message_id: str, request_id: str) -> pb.DeleteChannelMessageRequest:
        return pb.DeleteChannelMessageRequest(
            flow_id="f", channel_name="c", message_id=message_id, request_id=request_id
        )

    gone = ("NOT_FOUND", "CHANNEL_MESSAGE_NOT_FOUND")
    async with frames(tmp_path) as engine:
        await engine.start("")
        await engine.publish(message("c", "1"), message("c", "2"))
        first, second = await _pending(engine)
        call = engine.stub.DeleteChannelMessage
        await call(delete(first.message_id, "r"))
        assert await _pending(engine) == [second]
        await call(delete(first.message_id, "r"))
        for request_id in ("", "other"):
            assert (await refusal(call(delete(first.message_id, request_id)))).what == gone
    async with frames(tmp_path) as engine:
        call = engine.stub.DeleteChannelMessage
        await call(delete(first.message_id, "r"))
        error = await refusal(call(delete(second.message_id, "r")))
        assert (error.what, "another message" in error.text) == (INVALID, True)
        assert await _pending(engine) == [second]
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        assert (await refusal(call(delete(first.message_id, "r")))).what == MISSING


async def test_steps_and_plain_rpcs_may_delete_what_is_gone(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start()
        await (await worker.task()).execute(
            close("dead end"), delete_from_channel=[deletion("c", "gone")]
        )
        await engine.step_ended("S")
        call = engine.invoke()
        await (await worker.task()).rpc(delete_from_channel=[deletion("c", "gone")])
        await call


# Attributes


async def test_attributes_are_set_once_for_a_request(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        call = engine.stub.SetAttributes
        run_id = await engine.start(
            "",
            flow_start_options=pb.FlowStartOptions(
                attributes=[write("a", "1"), write("none", NULL)]
            ),
        )
        assert await engine.attributes() == {"a": text("1")}  # a null of a start is nothing
        await call(_set(write("a", "2"), write("m/x", "3"), request_id="r"))
        await call(_set(write("a", "other"), request_id="s"))
    async with frames(tmp_path) as engine:
        call = engine.stub.SetAttributes
        await call(_set(write("a", "2"), write("m/x", "3"), request_id="r"))
        assert await engine.attributes() == {"a": text("other"), "m/x": text("3")}
        error = await refusal(call(_set(write("a", "4"), request_id="r")))
        assert (error.what, "request id 'r'" in error.text) == (INVALID, True)
        bad = _set(write("a", "5"), write("b", pb.Value()))
        assert (await refusal(call(bad))).what == INVALID
        await call(_set(write("a", NULL)))  # null deletes
        assert await engine.attributes() == {"m/x": text("3")}
        written = [
            event.rpc_execution_completed
            for event in await engine.events(run_id)
            if event.HasField("rpc_execution_completed")
        ]
        assert [event.is_set_attribute_api for event in written] == [True] * 3
        assert [kv.key for kv in written[0].upsert_attributes] == ["a", "m/x"]


async def test_attributes_are_read_by_key_also_of_a_closed_flow(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        await engine.start("")
        await engine.stub.SetAttributes(_set(write("a", "1"), write("m/x", "2"), write("b", "3")))
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        for keys, wanted in (
            (["b", "a", "unknown"], {"a": text("1"), "b": text("3")}),
            (["m/x"], {"m/x": text("2")}),
            ([], {}),
        ):
            request = pb.GetAttributesRequest(flow_id="f", keys=keys)
            found = (await engine.stub.GetAttributes(request)).attributes
            assert {kv.key: kv.value for kv in found} == wanted
        assert len(await engine.attributes()) == 3
        late = engine.stub.SetAttributes(_set(write("a", "late")))
        assert (await refusal(late)).what == MISSING


async def test_attribute_stores_are_named_and_nothing_else(tmp_path: Path) -> None:
    sync = pb.AttributeSyncConfig(enabled=True)
    async with frames(tmp_path) as engine:
        config = pb.FlowConfig(attribute_store_names=pb.AttributeStoreNames(names=["crm"]))
        options = pb.FlowStartOptions(flow_config_override=config)
        await engine.start("", flow_start_options=options)
        kept = pb.AttributeWrite(key="a", value=text("1"), sync_config=sync)
        await engine.stub.SetAttributes(_set(kept))
        assert await engine.attributes() == {"a": text("1")}
        assert list((await engine.state()).flow_config.attribute_store_names.names) == ["crm"]


# Waits


def _match(operand: pb.Value, operator: str = "EQUAL", seconds: int = 1) -> Any:
    match = pb.AttributeMatch(
        key="a", operator=f"ATTRIBUTE_MATCH_OPERATOR_{operator}", operand=operand
    )
    return pb.WaitForAttributeRequest(flow_id="f", match=match, request_timeout_seconds=seconds)


async def test_the_value_that_matched_is_returned(tmp_path: Path) -> None:
    """Also if it has changed again, and of a Flow that has ended since."""
    async with frames(tmp_path) as engine:
        await engine.start("")
        waiting = asyncio.create_task(
            _call(engine.stub.WaitForAttribute(_match(text("1"), seconds=30)))
        )
        await engine.stub.SetAttributes(_set(write("a", "0")))
        await asyncio.gather(
            *(engine.stub.SetAttributes(_set(write("a", value))) for value in ("1", "2"))
        )
        assert (await waiting).matched_value == text("1")
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        found = await engine.stub.WaitForAttribute(_match(text("2")))
        assert found.matched_value == text("2")
        assert (await refusal(engine.stub.WaitForAttribute(_match(text("3"))))).what == MISSING


async def _call(call: Awaitable[Any]) -> Any:
    return await call


async def test_kinds_have_to_be_the_same(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        await engine.start("")
        await engine.stub.SetAttributes(_set(write("a", pb.Value(int_value=1))))
        one = await engine.stub.WaitForAttribute(_match(pb.Value(int_value=1)))
        assert one.matched_value == pb.Value(int_value=1)
        errors = await asyncio.gather(
            *(
                refusal(engine.stub.WaitForAttribute(_match(operand, operator)))
                for operand in (text("1"), pb.Value(double_value=1.0), pb.Value(bool_value=True))
                for operator in ("EQUAL", "NOT_EQUAL")
            )
        )
        assert {error.what for error in errors} == {("DEADLINE_EXCEEDED", "REQUEST_TIMEOUT")}
        for operand, operator in (
            (NULL, "EQUAL"),
            (pb.Value(obj_value=pb.EncodedObject(encoding="json", payload=b"1")), "EQUAL"),
            (pb.Value(internal_blob_id_for_string_value="b"), "EQUAL"),
            (pb.Value(bool_value=True), "LESS_THAN"),
        ):
            error = await refusal(engine.stub.WaitForAttribute(_match(operand, operator)))
            assert error.what == INVALID


async def test_ends_of_waits(tmp_path: Path) -> None:
    """A client's own budget, and the engine's, after which the SDK asks again."""
    budget_over = ("DEADLINE_EXCEEDED", "REQUEST_TIMEOUT")
    async with frames(tmp_path, max_wait_s=1.5) as engine:
        run_id = await engine.start("")
        stub = engine.stub

        async def ended(least: float, wanted: tuple[str, str], call: Any) -> None:
            started = time.monotonic()
            error = await refusal(call)
            assert (error.what, time.monotonic() - started > least) == (wanted, True), error.text

        def wait_for_step(budget: int) -> pb.WaitForStepCompletionRequest:
            return pb.WaitForStepCompletionRequest(
                flow_id="f",
                step_type="S",
                step_execution_number="1",
                request_timeout_seconds=budget,
            )

        def wait_for_flow(seconds: int) -> pb.WaitForFlowRequest:
            return pb.WaitForFlowRequest(flow_id="f", wait_time_seconds=seconds)

        event = pb.WaitForHistoryEventRequest(flow_id="f", run_id=run_id, next_internal_event_id=2)
        await asyncio.gather(
            *(
                ended(least, wanted, call)
                for budget, wanted, least in (
                    (1, budget_over, 0.9),
                    (0, POLL_OVER, 1.4),
                    (3_600, POLL_OVER, 1.4),
                )
                for call in (
                    stub.WaitForStepCompletion(wait_for_step(budget)),
                    stub.WaitForAttribute(_match(text("1"), seconds=budget)),
                )
            ),
            *(
                ended(least, POLL_OVER, call)
                for seconds, least in ((1, 0.9), (0, 1.4), (3_600, 1.4))
                for call in (
                    stub.WaitForFlow(wait_for_flow(seconds)),
                    stub.ReadStream(_read(seconds=seconds)),
                )
            ),
            ended(1.4, POLL_OVER, stub.WaitForHistoryEvent(event)),
        )


async def test_a_wait_for_a_step(tmp_path: Path) -> None:
    """Of the past, of the future, and one that never comes."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start()
        waits = [asyncio.create_task(engine.step_ended("S", number)) for number in (1, 2)]
        never = asyncio.create_task(_third(engine))
        await (await worker.task()).execute(go("S"))
        await waits[0]
        await (await worker.task()).execute(close("force"))
        await waits[1]
        assert (await refusal(never)).what == MISSING
        await engine.step_ended("S", 1)  # also when the Flow has closed since
        assert (await refusal(_third(engine))).what == MISSING


async def test_a_wait_that_comes_while_a_closed_run_is_still_in_memory(tmp_path: Path) -> None:
    """An RPC in flight keeps it there; else it is so until the end of the run is on disk."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        await engine.start()
        begun = await worker.task()
        call_in_flight = engine.invoke(request_id="q", is_transactional=True)
        asked = await worker.task()
        await begun.execute(close("force"))
        await engine.result()
        assert (await refusal(_third(engine))).what == MISSING
        match = pb.AttributeMatch(
            key="a", operator="ATTRIBUTE_MATCH_OPERATOR_EQUAL", operand=text("never")
        )
        call = engine.stub.WaitForAttribute(
            pb.WaitForAttributeRequest(flow_id="f", match=match, request_timeout_seconds=30)
        )
        assert (await refusal(call)).what == MISSING
        await asked.rpc(NULL)
        assert (await refusal(call_in_flight)).what == MISSING


async def _third(engine: Frames) -> None:
    await engine.step_ended("S", 3)


async def test_results_only_where_they_are_wanted(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start()
        await (await worker.task()).execute(close("force", "out"))
        assert len((await engine.result()).results) == 1
        bare = await engine.stub.WaitForFlow(pb.WaitForFlowRequest(flow_id="f"))
        assert (bare.flow_status, len(bare.results)) == (pb.FLOW_STATUS_COMPLETED, 0)


@pytest.mark.parametrize(
    ("how", "status", "error_type", "text"),
    [
        ("UNSPECIFIED", pb.FLOW_STATUS_CANCELED, 0, ""),
        ("CANCEL", pb.FLOW_STATUS_CANCELED, 0, ""),
        ("TERMINATE", pb.FLOW_STATUS_TERMINATED, 0, ""),
        (
            "FAIL",
            pb.FLOW_STATUS_FAILED,
            pb.FLOW_ERROR_TYPE_CLIENT_API_FAILING_FLOW,
            "fail by client",
        ),
    ],
)
async def test_stops_without_a_reason(
    tmp_path: Path, how: str, status: int, error_type: int, text: str
) -> None:
    async with frames(tmp_path) as engine:
        await engine.start("")
        request = pb.StopFlowRequest(flow_id="f", stop_type=f"STOP_TYPE_{how}")
        await engine.stub.StopFlow(request)
        result = await engine.result()
        assert (result.flow_status, result.error_type, result.error_message) == (
            status,
            error_type,
            text,
        )
        assert (await refusal(engine.stub.StopFlow(request))).what == MISSING


async def test_continue_as_new_is_nothing(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        run_id = await engine.start("")
        request = pb.TriggerContinueAsNewRequest(flow_id="f")
        await engine.stub.TriggerContinueAsNew(request)
        summary = await engine.stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id="f"))
        assert (summary.flow_execution_id.run_id, summary.flow_status) == (
            run_id,
            pb.FLOW_STATUS_RUNNING,
        )
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        assert (await refusal(engine.stub.TriggerContinueAsNew(request))).what == MISSING


# What is shown of a run


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
    await engine.stub.SetAttributes(_set(write("k", "set")))
    await engine.publish(message("x", "1"))
    (there,) = await _pending(engine, "x")
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


# Streams


def _line(value: pb.Value | None, **changes: Any) -> pb.WriteStreamRequest:
    fields = {
        "flow_id": "f",
        "flow_type": "Flow",
        "stream_name": "s",
        "stream_capacity_bytes": 10_000,
        "source": "test",
        "value": value,
    }
    return pb.WriteStreamRequest(**{**fields, **changes})


def _read(token: str = "", seconds: int = 1, **changes: Any) -> pb.ReadStreamRequest:
    fields = {"flow_id": "f", "flow_type": "Flow", "stream_name": "s"}
    return pb.ReadStreamRequest(
        **{**fields, **changes}, resume_token=token, wait_time_seconds=seconds
    )


async def test_streams_need_no_flow_and_outlive_it(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.stub.WriteStream(_line(text("before")))
        await engine.start(
            options=pb.StepOptions(
                skip_wait_for=True, execute_retry_policy=pb.RetryPolicy(initial_interval_seconds=1)
            )
        )
        for attempt in (1, 2):
            task = await worker.task()
            await task.write("s", text(f"attempt {attempt}"))
            if attempt == 1:
                await task.error("once more")
            else:
                await task.execute(close("force"))
        await engine.result()
        token, found = "", []
        for _ in range(3):
            shown = (await engine.stub.ReadStream(_read(token))).message
            assert shown.HasField("value") and shown.HasField("created_time")
            token = shown.resume_token
            found.append((shown.value.string_value, shown.source))
        # What a failed attempt wrote stays.
        assert found == [("before", "test"), ("attempt 1", "#S-1"), ("attempt 2", "#S-1")]
        request = pb.ListStreamMessagesRequest(
            flow_id="f", flow_type="Flow", stream_name="s", page_size=2
        )
        page = await engine.stub.ListStreamMessages(request)
        assert [m.value.string_value for m in page.messages] == ["attempt 2", "attempt 1"]
        request.before_page_token = page.next_page_token
        page = await engine.stub.ListStreamMessages(request)
        assert ([m.value.string_value for m in page.messages], page.next_page_token) == (
            ["before"],
            "",
        )


async def test_a_waiting_reader_gets_the_next_message(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        reading = asyncio.create_task(_call(engine.stub.ReadStream(_read(seconds=30))))
        await engine.stub.WriteStream(_line(text("elsewhere"), flow_id="g"))
        await engine.stub.WriteStream(_line(text("here")))
        assert (await reading).message.value == text("here")


async def test_stream_errors(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        await engine.stub.WriteStream(_line(text("x")))
        token = (await engine.stub.ReadStream(_read())).message.resume_token
        full = ("RESOURCE_EXHAUSTED", "UNCATEGORIZED")
        cases: list[tuple[Any, tuple[str, str]]] = [
            (engine.stub.WriteStream(_line(text("x" * 20_000))), full),
            (engine.stub.ReadStream(_read("garbage")), INVALID),
            (engine.stub.ReadStream(_read(token, flow_id="g")), INVALID),
            (engine.stub.ReadStream(_read(seconds=-1)), INVALID),
        ]
        for call, wanted in cases:
            assert (await refusal(call)).what == wanted
        assert (await refusal(engine.stub.ReadStream(_read(token)))).what == POLL_OVER


async def test_a_step_goes_on_when_its_stream_message_is_dropped(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start()
        task = await worker.task()
        for value, name in (
            (text("x" * 20_000), "s"),
            (text("x"), ""),
            (text("x"), "n" * 300),
            (pb.Value(), "s"),
            (pb.Value(internal_blob_id_for_string_value="b"), "s"),
            (pb.Value(double_value=float("nan")), "s"),
        ):
            await task.write(name, value)
        await task.write("s", text("kept"))
        await task.execute(close("force"))
        assert (await engine.result()).flow_status == pb.FLOW_STATUS_COMPLETED
        assert (await engine.stub.ReadStream(_read())).message.value == text("kept")


# SubFlows


async def test_a_subflow_has_its_parents_config_and_its_own_over_it(tmp_path: Path) -> None:
    own = pb.FlowConfig(continue_as_new_page_size_in_bytes=9)
    condition = pb.SubFlowCondition(
        sub_flow_type="Flow",
        start_step_type="S",
        step_options=SKIP,
        options=pb.SubFlowOptions(flow_config_override=own),
    )
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        config = pb.FlowConfig(continue_as_new_threshold=7, continue_as_new_page_size_in_bytes=8)
        await engine.start(
            options=pb.StepOptions(),
            flow_start_options=pb.FlowStartOptions(flow_config_override=config),
        )
        waits = pb.WaitingCondition(
            waiting_condition_type="WAITING_CONDITION_TYPE_ALL_COMPLETED",
            sub_flow_conditions=[condition],
        )
        await (await worker.task()).wait_for(waits)
        child = await worker.task()
        assert child.request.context.flow_id == "SubFlow:f-S-1-0"
        found = (await engine.state("SubFlow:f-S-1-0")).flow_config
        assert (found.continue_as_new_threshold, found.continue_as_new_page_size_in_bytes) == (7, 9)


# Search


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("UNSPECIFIED", {"Plain", "Waits"}),
        ("ENABLED_FOR_ALL", {"Plain", "Waits"}),
        ("ENABLED_FOR_STEPS_WITH_WAIT_FOR", {"Waits"}),
        ("DISABLED", set()),
    ],
)
async def test_active_steps_are_found_as_the_config_says(
    tmp_path: Path, mode: str, wanted: set[str]
) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        config = pb.FlowConfig(active_step_search_mode=f"ACTIVE_STEP_SEARCH_MODE_{mode}")
        options = pb.FlowStartOptions(flow_config_override=config)
        await engine.start(flow_start_options=options)
        await (await worker.task()).execute(go("Plain", step("Waits", pb.StepOptions())))
        await engine.step_ended("S")
        found = set()
        for name in ("Plain", "Waits", "S"):
            query = f"ActiveStepTypes = '{name}'"
            page = await engine.stub.SearchFlows(pb.SearchFlowsRequest(query=query))
            found |= {name} if page.flow_runs else set()
        assert found == wanted


# Everybody is told


_Open = Callable[[Any], Awaitable[Any]]
LONG_POLLS: dict[str, _Open] = {
    "flow": lambda stub: stub.WaitForFlow(pb.WaitForFlowRequest(flow_id="f")),
    "step": lambda stub: stub.WaitForStepCompletion(
        pb.WaitForStepCompletionRequest(flow_id="f", step_type="S", step_execution_number="1")
    ),
    "attribute": lambda stub: stub.WaitForAttribute(_match(text("1"), seconds=0)),
    "event": lambda stub: stub.WaitForHistoryEvent(
        pb.WaitForHistoryEventRequest(flow_id="f", next_internal_event_id=9)
    ),
    "stream": lambda stub: stub.ReadStream(_read(seconds=0)),
}


@pytest.mark.parametrize("name", LONG_POLLS)
async def test_a_stop_ends_every_wait(tmp_path: Path, name: str) -> None:
    calls = 0
    async with dex_lite.open_engine(
        tmp_path / "engine.db", options=EngineOptions(drain_s=0)
    ) as engine:
        channel = grpc.aio.insecure_channel(engine.address)
        found = Frames(engine.address, channel)
        await found.start("")
        waiting = asyncio.create_task(_call(LONG_POLLS[name](found.stub)))
        while not calls:  # a call behind it is answered: it has arrived
            await found.state()
            calls += 1
    try:
        assert (await refusal(waiting)).what == ("UNAVAILABLE", "UNCATEGORIZED")
    finally:
        await channel.close()


async def test_a_bug_is_internal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    async with frames(tmp_path) as engine:
        await engine.start("")
        monkeypatch.setattr("dex_lite._flows.flow_state", broken)
        request = pb.GetFlowStateRequest(flow_id="f")
        error = await refusal(engine.stub.GetFlowState(request))
        assert error.what == ("INTERNAL", "UNCATEGORIZED")
        assert "ZeroDivisionError" in error.text
        assert (await engine.stub.HealthCheck(Empty())).condition == "OK"
