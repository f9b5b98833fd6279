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
    INVALID,
    MISSING,
    NULL,
    POLL_OVER,
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


def _set(*writes: pb.AttributeWrite, request_id: str = "", flow_id: str = "f") -> Any:
    return pb.SetAttributesRequest(flow_id=flow_id, attributes=writes, request_id=request_id)


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
        found = await engine.pending()
        assert [m.value.string_value for m in found] == ["1", "3", "4"]
        ids = [m.message_id for m in found]
        assert ids == sorted(set(ids)) and "mine" not in ids
        assert {m.channel_name for m in found} == {"c"}
        bad = pb.PublishToChannelRequest(
            flow_id="f",
            messages=[message("c", "5"), pb.ChannelMessage(channel_name="c", value=pb.Value())],
        )
        assert (await refusal(engine.stub.PublishToChannel(bad))).what == INVALID
        assert await engine.pending() == found
        await engine.stub.StopFlow(pb.StopFlowRequest(flow_id="f"))
        assert await engine.pending() == []
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
        assert await engine.pending() == []


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
        first, second = await engine.pending()
        call = engine.stub.DeleteChannelMessage
        await call(delete(first.message_id, "r"))
        assert await engine.pending() == [second]
        await call(delete(first.message_id, "r"))
        for request_id in ("", "other"):
            assert (await refusal(call(delete(first.message_id, request_id)))).what == gone
    async with frames(tmp_path) as engine:
        call = engine.stub.DeleteChannelMessage
        await call(delete(first.message_id, "r"))
        error = await refusal(call(delete(second.message_id, "r")))
        assert (error.what, "another message" in error.text) == (INVALID, True)
        assert await engine.pending() == [second]
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
