"""Results of handlers: checked, then in the machine's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.commands import ExecuteResult, RpcResult, SubFlowStart, WaitForResult
from dex_lite._machine.model import (
    ChannelCondition,
    Condition,
    Movement,
    RunState,
    SubFlowCondition,
    TimerCondition,
    Value,
)
from dex_lite._wire.attributes import AttributeWrites, attribute_writes
from dex_lite._wire.limits import Limits, name_fault, value_fault
from dex_lite._wire.options import NULL, BadRequest, encoded_value, movement, unique
from dex_lite._wire.starts import flow_start, sub_flow_request, without_secrets

_CLOSES: dict[int, Literal["graceful", "force", "fail", "conditional", "dead_end"]] = {
    pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE: "graceful",
    pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE: "force",
    pb.CLOSE_DECISION_TYPE_FORCE_FAIL: "fail",
    pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY: "conditional",
    pb.CLOSE_DECISION_TYPE_DEAD_END: "dead_end",
}
_KINDS: dict[int, Literal["all", "any", "combination"]] = {
    pb.WAITING_CONDITION_TYPE_ALL_COMPLETED: "all",
    pb.WAITING_CONDITION_TYPE_ANY_COMPLETED: "any",
    pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED: "combination",
}
_REUSES: dict[int, Literal["attach", "restart_failed", "restart"]] = {
    pb.SUB_FLOW_REUSE_POLICY_UNSPECIFIED: "restart_failed",
    pb.SUB_FLOW_REUSE_POLICY_ATTACH: "attach",
    pb.SUB_FLOW_REUSE_POLICY_RESTART_IF_PREVIOUS_EXITS_ABNORMALLY: "restart_failed",
    pb.SUB_FLOW_REUSE_POLICY_ALWAYS_RESTART: "restart",
}
_LONGEST_TIMER_S = 1_000 * 366 * 86_400  # what is stored are 64 bit milliseconds


class ResultReader:
    """Reads results under the engine's limits."""

    def __init__(
        self, limits: Limits, heartbeat_floor_ms: int, index_types: Mapping[str, int]
    ) -> None:
        self.limits = limits
        self._index_types = index_types
        self._heartbeat_floor_ms = heartbeat_floor_ms

    def wait_for(
        self, result: pb.InvokeWaitForMethodResponse, parent: RunState, execution_id: str
    ) -> WaitForResult:
        """A WaitFor's result; ``parent`` and ``execution_id`` are whose."""
        condition = None
        sub_flows: tuple[SubFlowStart, ...] = ()
        if result.HasField("waiting_condition"):
            flow_ids = [
                f"SubFlow:{parent.flow_id}-{execution_id}-{index}"
                for index in range(len(result.waiting_condition.sub_flow_conditions))
            ]
            condition = self._condition(result.waiting_condition, flow_ids)
            sub_flows = tuple(
                self._sub_flow(message, flow_id, parent.config)
                for message, flow_id in zip(
                    result.waiting_condition.sub_flow_conditions, flow_ids, strict=True
                )
            )
        written = self.attributes(result.upsert_attributes)
        left = pb.StepWaitForCompletedOutput(record_events=result.record_events)
        return WaitForResult(
            condition=condition,
            sub_flows=sub_flows,
            attributes=written.values,
            indexes=written.indexes,
            secrets=written.secrets,
            deleted=self._deletions(result.delete_from_channel),
            published=self.publications(result.publish_to_channel),
            step_locals=self._locals(result.upsert_step_exe_locals),
            output=left.SerializeToString(),
        )

    def execute(
        self, result: pb.InvokeExecuteMethodResponse, *, is_async_default: bool
    ) -> ExecuteResult:
        """An Execute's result."""
        decision = result.step_decision
        close: Literal["none", "graceful", "force", "fail", "conditional", "dead_end"] = "none"
        value: Value | None = None
        message = ""
        if decision.HasField("close_decision"):
            kind = decision.close_decision.close_decision_type
            if kind not in _CLOSES:
                raise BadRequest(f"unknown close decision {kind}")
            close = _CLOSES[kind]
            if close == "fail":
                message = decision.close_decision.close_input.string_value
                if fault := value_fault(
                    "the failure's text", decision.close_decision.close_input, self.limits
                ):
                    raise BadRequest(fault)
            elif decision.close_decision.HasField("close_input"):
                value = self._output(decision.close_decision.close_input)
        self._check_decision(decision, close)
        if close == "dead_end" and value is not None:
            raise BadRequest("a dead end must not have an output")
        written = self.attributes(result.upsert_attributes)
        left = pb.StepExecuteCompletedOutput(record_events=result.record_events)
        if close != "none":
            left.step_decision.close_decision.CopyFrom(decision.close_decision)
            left.step_decision.close_decision.ClearField("close_input")
        left.step_decision.cancel_step_types.extend(decision.cancel_step_types)
        left.step_decision.cancel_sibling_step_types.extend(decision.cancel_sibling_step_types)
        return ExecuteResult(
            next_steps=self._movements(decision.next_steps, is_async_default),
            close=close,
            close_value=value,
            fail_message=message,
            conditional_channels=tuple(decision.close_decision.conditional_channel_names),
            cancel_types=tuple(decision.cancel_step_types),
            cancel_sibling_types=tuple(decision.cancel_sibling_step_types),
            attributes=written.values,
            indexes=written.indexes,
            secrets=written.secrets,
            deleted=self._deletions(result.delete_from_channel),
            published=self.publications(result.publish_to_channel),
            step_locals=self._locals(result.upsert_step_exe_locals),
            output=left.SerializeToString(),
        )

    def rpc(self, result: pb.InvokeWorkerRPCResponse, *, is_async_default: bool) -> RpcResult:
        """An RPC's result."""
        decision = result.step_decision
        if decision.HasField("close_decision") or decision.cancel_sibling_step_types:
            raise BadRequest("an RPC may only schedule Steps and cancel Steps by type")
        unique("cancelled Step types", decision.cancel_step_types)
        written = self.attributes(result.upsert_attributes)
        left = pb.RpcExecutionCompletedEvent(record_events=result.record_events)
        left.step_decision.cancel_step_types.extend(decision.cancel_step_types)
        if result.HasField("output"):
            left.output.CopyFrom(result.output)
        return RpcResult(
            value=encoded_value(
                "RPC output", result.output, self.limits, result.HasField("output")
            ),
            next_steps=self._movements(decision.next_steps, is_async_default),
            cancel_types=tuple(decision.cancel_step_types),
            has_recorded_events=bool(result.record_events),
            attributes=written.values,
            indexes=written.indexes,
            secrets=written.secrets,
            deleted=self._deletions(result.delete_from_channel),
            published=self.publications(result.publish_to_channel),
            output=left.SerializeToString(),
        )

    def attributes(self, writes: Iterable[pb.AttributeWrite]) -> AttributeWrites:
        """Attribute writes; null deletes."""
        return attribute_writes(writes, self.limits, self._index_types)

    def publications(self, messages: Iterable[pb.ChannelMessage]) -> tuple[tuple[str, Value], ...]:
        """Messages to publish."""
        found = []
        for message in messages:
            if fault := name_fault("Channel name", message.channel_name, self.limits, forbidden=""):
                raise BadRequest(fault)
            what = f"a message of Channel {message.channel_name!r}"
            found.append(
                (
                    message.channel_name,
                    encoded_value(what, message.value, self.limits, message.HasField("value")),
                )
            )
        return tuple(found)

    def _deletions(
        self, deletions: Iterable[pb.ChannelMessageDeletion]
    ) -> tuple[tuple[str, str], ...]:
        found = tuple((deletion.channel_name, deletion.message_id) for deletion in deletions)
        if not all(channel and message_id for channel, message_id in found):
            raise BadRequest("a message deletion needs a Channel name and a message id")
        return found

    def _locals(self, values: Iterable[pb.KV]) -> tuple[tuple[str, Value], ...]:
        found = tuple(
            (
                kv.key,
                encoded_value(
                    f"step local {kv.key!r}", kv.value, self.limits, kv.HasField("value")
                ),
            )
            for kv in values
        )
        unique("step locals", [key for key, _ in found])
        return found

    def _movements(
        self, messages: Iterable[pb.StepMovement], is_async_default: bool
    ) -> tuple[Movement, ...]:
        return tuple(
            movement(
                message,
                self.limits,
                is_async_default=is_async_default,
                heartbeat_floor_ms=self._heartbeat_floor_ms,
            )
            for message in messages
        )

    def _output(self, value: pb.Value) -> Value | None:
        encoded = encoded_value("Flow output", value, self.limits)
        return None if encoded == NULL else encoded

    def _check_decision(self, decision: pb.StepDecision, close: str) -> None:
        if close == "none" and not decision.next_steps:
            raise BadRequest("a decision needs next Steps or a close decision")
        if close not in ("none", "conditional") and decision.next_steps:
            raise BadRequest(f"a {close} decision must not have next Steps")
        if close == "conditional":
            names = decision.close_decision.conditional_channel_names
            if not names or not all(names) or not decision.next_steps:
                raise BadRequest("a conditional completion needs Channels and fallback Steps")
            unique("conditional Channels", names)
            for name in names:
                if fault := name_fault("conditional Channel", name, self.limits, forbidden="/"):
                    raise BadRequest(fault)
        if close == "fail" and decision.close_decision.close_input.WhichOneof("kind") not in (
            None,
            "string_value",
        ):
            raise BadRequest("the input of a failing decision must be text")
        unique("cancelled Step types", decision.cancel_step_types)
        unique("cancelled sibling Step types", decision.cancel_sibling_step_types)

    def _sub_flow(
        self, message: pb.SubFlowCondition, flow_id: str, parent_config: bytes
    ) -> SubFlowStart:
        if fault := name_fault("SubFlow id", flow_id, self.limits, forbidden=""):
            raise BadRequest(fault)
        reuse = _REUSES.get(message.options.reuse_policy)
        if reuse is None:
            raise BadRequest(f"unknown SubFlow reuse policy {message.options.reuse_policy}")
        start = flow_start(
            sub_flow_request(message, flow_id, parent_config),
            self.attributes(message.options.attributes),
            self.limits,
            self._heartbeat_floor_ms,
        )
        return SubFlowStart(start, reuse)

    def _condition(self, message: pb.WaitingCondition, flow_ids: Sequence[str]) -> Condition:
        kind = _KINDS.get(message.waiting_condition_type)
        if kind is None:
            raise BadRequest(f"unknown waiting condition type {message.waiting_condition_type}")
        if not (
            message.timer_conditions or message.channel_conditions or message.sub_flow_conditions
        ):
            raise BadRequest("a wait needs at least one condition")
        count = len(message.timer_conditions) + len(message.channel_conditions)
        count += len(message.sub_flow_conditions) + len(message.condition_combinations)
        if count > self.limits.conditions:
            raise BadRequest(
                f"a wait has {count} conditions and combinations, at most {self.limits.conditions} are "
                "allowed. Wait in several Steps"
            )
        timers = tuple(self._timer(timer) for timer in message.timer_conditions)
        channels = tuple(self._channel(channel) for channel in message.channel_conditions)
        sub_flows = tuple(
            SubFlowCondition(sub_flow.condition_id, flow_id)
            for sub_flow, flow_id in zip(message.sub_flow_conditions, flow_ids, strict=True)
        )
        ids = [timer.condition_id for timer in timers if timer.condition_id]
        ids += [channel.condition_id for channel in channels if channel.condition_id]
        ids += [sub_flow.condition_id for sub_flow in sub_flows if sub_flow.condition_id]
        unique("condition ids", ids)
        combinations = tuple(tuple(c.condition_ids) for c in message.condition_combinations)
        if kind == "combination":
            if not combinations or not all(combinations):
                raise BadRequest("a combination wait needs combinations of condition ids")
            unknown = {i for combination in combinations for i in combination} - set(ids)
            if unknown:
                raise BadRequest(f"unknown condition ids: {sorted(unknown)}")
        raw = without_secrets(message).SerializeToString()
        return Condition(kind, timers, channels, combinations, raw, sub_flows)

    def _timer(self, message: pb.TimerCondition) -> TimerCondition:
        if message.duration_seconds < 0:
            raise BadRequest("a timer must not be negative")
        if message.duration_seconds > _LONGEST_TIMER_S:
            raise BadRequest(f"a timer must not be longer than {_LONGEST_TIMER_S} seconds")
        return TimerCondition(message.condition_id, message.duration_seconds * 1_000)

    def _channel(self, message: pb.ChannelCondition) -> ChannelCondition:
        if fault := name_fault("Channel name", message.channel_name, self.limits, forbidden=""):
            raise BadRequest(fault)
        at_least = message.at_least if message.HasField("at_least") else None
        at_most = message.at_most if message.HasField("at_most") else None
        if (at_least or 0) < 0 or (at_most is not None and at_most < (at_least or 0)):
            raise BadRequest(f"bad bounds for Channel {message.channel_name!r}")
        return ChannelCondition(message.condition_id, message.channel_name, at_least, at_most)
