"""Malformed requests: refused with a clear text, and nothing is stored."""

# mypy: disable-error-code="arg-type, dict-item"
# Enums are given numbers that they do not have.

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.message_factory import GetMessageClass

import dex_lite
from dex_lite._machine.model import RunState
from dex_lite._options import EngineOptions
from dex_lite._wire.limits import Limits
from dex_lite._wire.options import BadRequest
from dex_lite._wire.results import ResultReader

TEXT = pb.Value(string_value="x")
INF, NAN = float("inf"), float("nan")


@asynccontextmanager
async def _stub(folder: Path, options: EngineOptions | None = None) -> AsyncIterator[Any]:
    async with (
        dex_lite.open_engine(folder / "engine.db", options=options) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        yield dex_pb2_grpc.FlowServiceStub(channel)


async def _refused(call: Any, request: Any, code: grpc.StatusCode) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request, timeout=30)
    assert caught.value.code() is code, caught.value.details()
    return caught.value.details() or ""


def _start(**changes: Any) -> pb.StartFlowRequest:
    good: dict[str, Any] = {
        "flow_id": "f",
        "flow_type": "F",
        "request_id": "r",
        "start_step_type": "S",
        "step_input": TEXT,
    }
    return pb.StartFlowRequest(**{**good, **changes})


def _options(**options: Any) -> pb.StartFlowRequest:
    return _start(flow_start_options=pb.FlowStartOptions(**options))


def _attribute(key: str, value: pb.Value | None, **more: Any) -> pb.StartFlowRequest:
    return _options(attributes=[pb.AttributeWrite(key=key, value=value, **more)])


def _step(**options: Any) -> pb.StartFlowRequest:
    return _start(step_options=pb.StepOptions(**options))


def _retry(**policy: Any) -> pb.StartFlowRequest:
    return _step(execute_retry_policy=pb.RetryPolicy(**policy))


BAD_STARTS: dict[str, tuple[pb.StartFlowRequest, str]] = {
    "blank id": (_start(flow_id=" "), "Flow ID must not be blank"),
    "no id": (_start(flow_id=""), "Flow ID must not be blank"),
    "long id": (_start(flow_id="f" * 256), "at most 255"),
    "bad id": (_start(flow_id="a/b"), "must not contain '/'"),
    "no type": (_start(flow_type=""), "Flow type must not be blank"),
    "bad type": (_start(flow_type="sys:F"), "must not contain ':'"),
    "no request id": (_start(request_id=""), "request id must not be blank"),
    "bad step": (_start(start_step_type="a$b"), "must not contain '$'"),
    "reserved step": (_start(start_step_type="sys:timeout_handler"), "must not contain ':'"),
    "blob input": (_start(step_input=pb.Value(internal_blob_id_for_string_value="b")), "a blob"),
    "large input": (_start(step_input=pb.Value(string_value="x" * 3_700_000)), "at most 3670016"),
    "input without a kind": (_start(step_input=pb.Value()), "Step input has no kind"),
    "unknown encoding": (
        _start(step_input=pb.Value(obj_value=pb.EncodedObject(encoding="pickle", payload=b"x"))),
        "unknown encoding 'pickle'",
    ),
    "infinite input": (_start(step_input=pb.Value(double_value=INF)), "not a finite number"),
    "blank attribute": (_attribute("", TEXT), "Attribute key must not be blank"),
    "unset attribute": (_attribute("k", None), "'k' has no value"),
    "attribute without a kind": (_attribute("k", pb.Value()), "'k' has no kind"),
    "blob attribute": (_attribute("k", pb.Value(internal_blob_id_for_obj_value="b")), "a blob"),
    "attribute twice": (
        _options(attributes=[pb.AttributeWrite(key="k", value=TEXT)] * 2),
        "repeat 'k'",
    ),
    "hard-delete number": (
        _attribute("k", pb.Value(int_value=1), is_hard_delete_on_null=True),
        "hard-delete Attribute 'k' must be text or an object",
    ),
    "hard-delete index": (
        _attribute(
            "k",
            TEXT,
            is_hard_delete_on_null=True,
            index_config=pb.IndexConfig(enable=True, type=pb.INDEX_TYPE_KEYWORD),
        ),
        "must not be indexed",
    ),
    "hard-delete store": (
        _attribute("k", TEXT, is_hard_delete_on_null=True, sync_config=pb.AttributeSyncConfig()),
        "must not go to an Attribute Store",
    ),
    "hard-delete twice": (
        _options(
            attributes=[
                pb.AttributeWrite(key="k", value=TEXT, is_hard_delete_on_null=flag)
                for flag in (True, False)
            ]
        ),
        "repeat 'k'",
    ),
    "index": (
        _attribute("k", TEXT, index_config=pb.IndexConfig(enable=True)),
        "index 'k' has the unknown type 0",
    ),
    "negative timeout": (_start(flow_timeout_seconds=-1), "must not be negative"),
    "negative delay": (_options(flow_start_delay_seconds=-1), "must not be negative"),
    "unknown policy": (_options(id_reuse_policy=99), "unknown id reuse policy 99"),
    "timeout policy without a timeout": (_start(flow_timeout_policy=2), "needs a timeout"),
    "timeout handler without a timeout": (
        _options(timeout_handler_options=pb.FlowTimeoutHandlerOptions()),
        "needs a timeout",
    ),
    "timeout handler that never runs": (
        _start(
            flow_timeout_seconds=5,
            flow_timeout_policy=2,
            flow_start_options=pb.FlowStartOptions(
                timeout_handler_options=pb.FlowTimeoutHandlerOptions()
            ),
        ),
        "need the timeout policy HANDLER",
    ),
    "timeout handler with a bad option": (
        _start(
            flow_timeout_seconds=5,
            flow_timeout_policy=3,
            flow_start_options=pb.FlowStartOptions(
                timeout_handler_options=pb.FlowTimeoutHandlerOptions(method_timeout_seconds=-1)
            ),
        ),
        "must not be negative",
    ),
    "negative Flow attempts": (
        _options(retry_policy=pb.FlowRetryPolicy(maximum_attempts=-1)),
        "must not hold negative numbers",
    ),
    "two Worker targets": (
        _options(
            flow_config_override=pb.FlowConfig(
                worker_target=pb.WorkerTarget(address="a:1", is_pull_mode=True)
            )
        ),
        "either an address or pull mode",
    ),
    "long Worker address": (
        _options(
            flow_config_override=pb.FlowConfig(worker_target=pb.WorkerTarget(address="a" * 1_001))
        ),
        "at most 1000",
    ),
    "unknown timeout policy": (_start(flow_timeout_policy=99), "unknown Flow timeout policy 99"),
    "unknown durability": (
        _options(flow_config_override=pb.FlowConfig(step_durability=99)),
        "unknown Step durability 99",
    ),
    "negative method timeout": (_step(execute_timeout_seconds=-1), "must not be negative"),
    "negative heartbeat": (_step(heartbeat_timeout_seconds=-1), "must not be negative"),
    "route to nowhere": (_step(execute_failure_policy=2), "needs a Step type"),
    "bad route": (
        _step(execute_failure_policy=2, execute_failure_proceed_step_type="a/b"),
        "must not contain '/'",
    ),
    "unknown execute policy": (
        _step(execute_failure_policy=99),
        "unknown Execute failure policy 99",
    ),
    "unknown wait policy": (_step(wait_for_failure_policy=99), "unknown WaitFor failure policy 99"),
    "unknown override": (_step(execute_durability_override=99), "unknown Step durability 99"),
    "blank lock": (_step(execute_lock_attribute_keys=[""]), "lock key must not be blank"),
    "negative attempts": (_retry(maximum_attempts=-1), "must not hold negative numbers"),
    "negative interval": (_retry(initial_interval_seconds=-1), "must not be negative"),
    "shrinking delay": (_retry(backoff_coefficient=0.5), "backoff coefficient"),
    "negative coefficient": (_retry(backoff_coefficient=-2), "backoff coefficient"),
    "no number": (_retry(backoff_coefficient=NAN), "backoff coefficient"),
    "infinite coefficient": (_retry(backoff_coefficient=INF), "backoff coefficient"),
}


async def test_malformed_starts_store_nothing(tmp_path: Path) -> None:
    bad: dict[str, str] = {}
    async with _stub(tmp_path) as stub:
        for name, (request, wanted) in BAD_STARTS.items():
            try:
                text = await _refused(stub.StartFlow, request, grpc.StatusCode.INVALID_ARGUMENT)
                if wanted not in text:
                    bad[name] = text
            except (AssertionError, pytest.fail.Exception) as error:
                bad[name] = str(error) or "accepted"
        assert not bad
        # None of them left anything behind.
        await _refused(
            stub.GetFlowSummary,
            pb.GetFlowSummaryRequest(flow_id="f"),
            grpc.StatusCode.NOT_FOUND,
        )
        await stub.StartFlow(_start())


BAD_CALLS: dict[str, tuple[str, Any, str]] = {
    "stop": ("StopFlow", pb.StopFlowRequest(flow_id="f", stop_type=99), "unknown stop type 99"),
    "wait for a flow": (
        "WaitForFlow",
        pb.WaitForFlowRequest(flow_id="f", wait_time_seconds=-1),
        "must not be negative",
    ),
    "wait for a step": (
        "WaitForStepCompletion",
        pb.WaitForStepCompletionRequest(
            flow_id="f", step_type="S", step_execution_number="1", request_timeout_seconds=-1
        ),
        "must not be negative",
    ),
    "step number": (
        "WaitForStepCompletion",
        pb.WaitForStepCompletionRequest(flow_id="f", step_type="S", step_execution_number="0"),
        "execution number from 1",
    ),
    "rpc name": ("InvokeRPC", pb.InvokeRPCRequest(flow_id="f"), "RPC name must not be blank"),
    "rpc timeout": (
        "InvokeRPC",
        pb.InvokeRPCRequest(flow_id="f", rpc_name="r", timeout_seconds=-1),
        "must not be negative",
    ),
    "rpc input": (
        "InvokeRPC",
        pb.InvokeRPCRequest(
            flow_id="f", rpc_name="r", input=pb.Value(internal_blob_id_for_string_value="b")
        ),
        "a blob",
    ),
    "rpc lock": (
        "InvokeRPC",
        pb.InvokeRPCRequest(flow_id="f", rpc_name="r", lock_attribute_keys=[" "]),
        "lock key must not be blank",
    ),
    "match key": (
        "WaitForAttribute",
        pb.WaitForAttributeRequest(flow_id="f", match=pb.AttributeMatch(operand=TEXT)),
        "Attribute key is needed",
    ),
    "match operator": (
        "WaitForAttribute",
        pb.WaitForAttributeRequest(
            flow_id="f", match=pb.AttributeMatch(key="k", operand=TEXT, operator=99)
        ),
        "unknown operator 99",
    ),
    "match operand": (
        "WaitForAttribute",
        pb.WaitForAttributeRequest(flow_id="f", match=pb.AttributeMatch(key="k", operator=1)),
        "can only be compared",
    ),
    "channel name": (
        "PublishToChannel",
        pb.PublishToChannelRequest(flow_id="f", messages=[pb.ChannelMessage(value=TEXT)]),
        "Channel name must not be blank",
    ),
    "message": (
        "PublishToChannel",
        pb.PublishToChannelRequest(
            flow_id="f",
            messages=[
                pb.ChannelMessage(channel_name="good", value=TEXT),
                pb.ChannelMessage(
                    channel_name="c", value=pb.Value(internal_blob_id_for_string_value="b")
                ),
            ],
        ),
        "a blob",
    ),
    "attributes": (
        "SetAttributes",
        pb.SetAttributesRequest(
            flow_id="f", request_id="r", attributes=[pb.AttributeWrite(key="k", value=pb.Value())]
        ),
        "'k' has no kind",
    ),
    "message without a kind": (
        "PublishToChannel",
        pb.PublishToChannelRequest(
            flow_id="f", messages=[pb.ChannelMessage(channel_name="c", value=pb.Value())]
        ),
        "has no kind",
    ),
    "history": ("GetHistoryEvents", pb.GetHistoryEventsRequest(flow_id="f"), "run id is needed"),
    "history event": (
        "WaitForHistoryEvent",
        pb.WaitForHistoryEventRequest(flow_id="f"),
        "event id from 1",
    ),
    "stream value": (
        "WriteStream",
        pb.WriteStreamRequest(flow_type="F", flow_id="f", stream_name="s", source="t"),
        "has no kind",
    ),
    "stream source": (
        "WriteStream",
        pb.WriteStreamRequest(flow_type="F", flow_id="f", stream_name="s", value=TEXT),
        "source must not be blank",
    ),
    "long stream source": (
        "WriteStream",
        pb.WriteStreamRequest(
            flow_type="F", flow_id="f", stream_name="s", value=TEXT, source="x" * 256
        ),
        "at most 255",
    ),
    "stream capacity": (
        "WriteStream",
        pb.WriteStreamRequest(flow_type="F", flow_id="f", stream_name="s", value=TEXT, source="t"),
        "stream_capacity_bytes must be positive",
    ),
    "long stream name": (
        "WriteStream",
        pb.WriteStreamRequest(
            flow_type="F",
            flow_id="f",
            stream_name="s" * 256,
            value=TEXT,
            source="t",
            stream_capacity_bytes=9_000,
        ),
        "stream_name has 256 characters",
    ),
    "read of no stream": (
        "ReadStream",
        pb.ReadStreamRequest(flow_type="F", flow_id="f"),
        "stream_name must not be empty",
    ),
    "list of no page": (
        "ListStreamMessages",
        pb.ListStreamMessagesRequest(flow_type="F", flow_id="f", stream_name="s"),
        "page_size must be between 1 and 1000",
    ),
    "deletion's request id": (
        "DeleteChannelMessage",
        pb.DeleteChannelMessageRequest(flow_id="f", channel_name="c", request_id="x" * 256),
        "request id has 256 characters",
    ),
    "request id of attributes": (
        "SetAttributes",
        pb.SetAttributesRequest(flow_id="f", request_id="x" * 256),
        "request id has 256 characters",
    ),
    "rpc's request id": (
        "InvokeRPC",
        pb.InvokeRPCRequest(flow_id="f", rpc_name="r", request_id="x" * 256),
        "request id has 256 characters",
    ),
    "skip": (
        "SkipTimer",
        pb.SkipTimerRequest(flow_id="f", step_execution_id="S", timer_condition_index=0),
        "Step type must not be blank",
    ),
    "config": (
        "UpdateFlowConfig",
        pb.UpdateFlowConfigRequest(flow_id="f", flow_config=pb.FlowConfig(step_durability=99)),
        "unknown Step durability 99",
    ),
    "query": ("SearchFlows", pb.SearchFlowsRequest(query="no query"), "is not expected here"),
    "page of flows": ("SearchFlows", pb.SearchFlowsRequest(page_size=-1), "must not be negative"),
    "index type": (
        "SyncAttributeIndexes",
        pb.SyncAttributeIndexRequest(attribute_indexes={"city": 99}),
        "unknown type 99",
    ),
    "index key": (
        "SyncAttributeIndexes",
        pb.SyncAttributeIndexRequest(attribute_indexes={"": 1}),
        "index key must not be blank",
    ),
    "travel": ("ResetFlow", pb.ResetFlowRequest(flow_id="f"), "unknown kind of time travel 0"),
    "travel in time": (
        "ResetFlow",
        pb.ResetFlowRequest(flow_id="f", reset_type=2, history_event_time="2026-99-99T00:00:00Z"),
        "is not a time",
    ),
    "travel to no Step": ("ResetFlow", pb.ResetFlowRequest(flow_id="f", reset_type=3), "is needed"),
    "travel to a method": (
        "ResetFlow",
        pb.ResetFlowRequest(flow_id="f", reset_type=4, step_execution_id="S-1", step_method=99),
        "unknown Step method 99",
    ),
    "travel from an attempt": (
        "ResetFlow",
        pb.ResetFlowRequest(flow_id="f", reset_type=1, run_attempt=-1),
        "must not be negative",
    ),
}
# These say nothing that could be malformed.
SAY_LITTLE = {"GetServerInfo", "HealthCheck", "LoadBlobs"}
# These only name a Flow and something of it, which is there or is not.
ONLY_NAME = {
    "GetAttributes",
    "GetChannelMessages",
    "GetFlowState",
    "GetFlowSummary",
    "TriggerContinueAsNew",
}
METHODS = {
    method.name: GetMessageClass(method.input_type)
    for method in pb.DESCRIPTOR.services_by_name["FlowService"].methods
}


def test_every_method_has_its_malformed_calls() -> None:
    covered = {"StartFlow", *(method for method, _, _ in BAD_CALLS.values())}
    assert covered | SAY_LITTLE | ONLY_NAME == METHODS.keys()


async def test_every_method_that_needs_a_flow_says_that_there_is_none(tmp_path: Path) -> None:
    good: dict[str, dict[str, Any]] = {
        "GetHistoryEvents": {"run_id": "r"},
        "InvokeRPC": {"rpc_name": "r"},
        "ResetFlow": {"reset_type": 1},
        "WaitForAttribute": {"match": pb.AttributeMatch(key="k", operand=TEXT, operator=1)},
        "WaitForHistoryEvent": {"next_internal_event_id": 1},
        "WaitForStepCompletion": {"step_type": "S", "step_execution_number": "1"},
    }
    need_none = {"StartFlow", "WriteStream", "ReadStream", "ListStreamMessages"}
    asked = 0
    async with _stub(tmp_path) as stub:
        for name, message in METHODS.items():
            if "flow_id" not in message.DESCRIPTOR.fields_by_name or name in need_none:
                continue
            asked += 1
            # The last one is more than gRPC carries in the text of an error.
            for flow_id in ("unknown", "", "é" * 9_000):
                request = message(flow_id=flow_id, **good.get(name, {}))
                await _refused(getattr(stub, name), request, grpc.StatusCode.NOT_FOUND)
    assert asked == len(METHODS) - len(need_none) - 5


async def test_malformed_calls_change_nothing(tmp_path: Path) -> None:
    bad: dict[str, str] = {}
    async with _stub(tmp_path) as stub:
        await stub.StartFlow(_start())
        read = pb.GetFlowStateRequest(flow_id="f")
        before = await stub.GetFlowState(read)
        for name, (method, request, wanted) in BAD_CALLS.items():
            try:
                call = getattr(stub, method)
                text = await _refused(call, request, grpc.StatusCode.INVALID_ARGUMENT)
                if wanted not in text:
                    bad[name] = text
            except (AssertionError, pytest.fail.Exception) as error:
                bad[name] = str(error) or "accepted"
        assert not bad
        assert await stub.GetFlowState(read) == before


def _wait(**condition: Any) -> pb.InvokeWaitForMethodResponse:
    return pb.InvokeWaitForMethodResponse(waiting_condition=pb.WaitingCondition(**condition))


def _timer(seconds: int, name: str = "") -> pb.TimerCondition:
    return pb.TimerCondition(duration_seconds=seconds, condition_id=name)


def _channel(**bounds: int) -> pb.InvokeWaitForMethodResponse:
    condition = pb.ChannelCondition(channel_name="c", **bounds)
    return _wait(waiting_condition_type=1, channel_conditions=[condition])


def _sub_flow(
    options: pb.SubFlowOptions | None = None, **fields: Any
) -> pb.InvokeWaitForMethodResponse:
    condition = pb.SubFlowCondition(**{"sub_flow_type": "F", "start_step_type": "S", **fields})
    if options is not None:
        condition.options.CopyFrom(options)
    return _wait(waiting_condition_type=1, sub_flow_conditions=[condition])


PARENT = RunState("p", "run", "F", "r", 0)


@pytest.mark.parametrize(
    "result, wanted",
    [
        (_sub_flow(sub_flow_type=""), "Flow type must not be blank"),
        (_sub_flow(start_step_type="a/b"), "must not contain '/'"),
        (_sub_flow(step_input=pb.Value()), "has no kind"),
        (_sub_flow(pb.SubFlowOptions(reuse_policy=99)), "reuse policy 99"),
        (_sub_flow(pb.SubFlowOptions(flow_timeout_seconds=-1)), "must not be negative"),
        (_sub_flow(pb.SubFlowOptions(flow_start_delay_seconds=-1)), "must not be negative"),
        (
            _sub_flow(pb.SubFlowOptions(retry_policy=pb.FlowRetryPolicy(maximum_attempts=-1))),
            "must not hold negative numbers",
        ),
        (
            _sub_flow(pb.SubFlowOptions(attributes=[pb.AttributeWrite(key="k")])),
            "'k' has no value",
        ),
        (_wait(waiting_condition_type=99, timer_conditions=[_timer(1)]), "type 99"),
        (_wait(waiting_condition_type=1), "at least one condition"),
        (_wait(waiting_condition_type=1, timer_conditions=[_timer(-1)]), "not be negative"),
        (_wait(waiting_condition_type=1, timer_conditions=[_timer(2**62)]), "not be longer"),
        (
            _wait(waiting_condition_type=1, timer_conditions=[_timer(1, "t"), _timer(2, "t")]),
            "repeat 't'",
        ),
        (
            _wait(
                waiting_condition_type=3,
                timer_conditions=[_timer(1, "t")],
                condition_combinations=[pb.ConditionCombination(condition_ids=["u"])],
            ),
            "unknown condition ids",
        ),
        (_wait(waiting_condition_type=3, timer_conditions=[_timer(1, "t")]), "combinations"),
        (_channel(at_least=-1), "bad bounds"),
        (_channel(at_least=3, at_most=2), "bad bounds"),
        (_channel(at_most=-1), "bad bounds"),
    ],
)
def test_malformed_wait_results(result: pb.InvokeWaitForMethodResponse, wanted: str) -> None:
    with pytest.raises(BadRequest, match=wanted):
        ResultReader(Limits(), 1_000, {}).wait_for(result, PARENT, "Wait-1")


def test_a_subflow_without_a_reuse_policy_runs_again_after_a_failure() -> None:
    read = ResultReader(Limits(), 1_000, {}).wait_for(_sub_flow(), PARENT, "Wait-1")
    assert [sub_flow.reuse for sub_flow in read.sub_flows] == ["restart_failed"]


def _decision(kind: int | None = None, steps: int = 0, **close: Any) -> pb.StepDecision:
    decision = pb.StepDecision(next_steps=[pb.StepMovement(step_type="S")] * steps)
    if kind is not None:
        decision.close_decision.CopyFrom(pb.CloseDecision(close_decision_type=kind, **close))
    return decision


@pytest.mark.parametrize(
    "decision, wanted",
    [
        (_decision(), "next Steps or a close decision"),
        (_decision(99), "unknown close decision 99"),
        (_decision(pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE, 1), "must not have next Steps"),
        (_decision(pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY, 1), "needs Channels"),
        (
            _decision(
                pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY,
                conditional_channel_names=["c"],
            ),
            "fallback Steps",
        ),
        (
            _decision(pb.CLOSE_DECISION_TYPE_FORCE_FAIL, close_input=pb.Value(int_value=1)),
            "must be text",
        ),
        (pb.StepDecision(next_steps=[pb.StepMovement(step_type=" ")]), "must not be blank"),
    ],
)
def test_malformed_decisions(decision: pb.StepDecision, wanted: str) -> None:
    result = pb.InvokeExecuteMethodResponse(step_decision=decision)
    with pytest.raises(BadRequest, match=wanted):
        ResultReader(Limits(), 1_000, {}).execute(result, is_async_default=False)


async def test_channel_takes_no_more_than_its_limit(tmp_path: Path) -> None:
    def publish(count: int) -> pb.PublishToChannelRequest:
        messages = [pb.ChannelMessage(channel_name="c", value=TEXT)] * count
        return pb.PublishToChannelRequest(flow_id="f", messages=messages)

    options = EngineOptions(limits=Limits(messages=3))
    async with _stub(tmp_path, options) as stub:
        await stub.StartFlow(_start())
        await stub.PublishToChannel(publish(2))
        text = await _refused(stub.PublishToChannel, publish(2), grpc.StatusCode.INVALID_ARGUMENT)
        assert "at most 3 messages" in text
        await stub.PublishToChannel(publish(1))
