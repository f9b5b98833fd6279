"""How a Flow starts, from a client's request or a SubFlow condition."""

from __future__ import annotations

import functools
from typing import Literal

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import (
    FlowStart,
    FlowTimeout,
    Movement,
    RetryPolicy,
    StepOptions,
)
from dex_lite._wire.attributes import AttributeWrites
from dex_lite._wire.limits import Limits, config_fault, name_fault
from dex_lite._wire.options import BadRequest, check_enum, movement, retry_policy, step_options

_LONGEST_ADDRESS = 1_000
_POLICIES: dict[int, Literal["fail", "cancel", "handler"]] = {
    pb.FLOW_TIMEOUT_POLICY_UNSPECIFIED: "fail",
    pb.FLOW_TIMEOUT_POLICY_FAIL: "fail",
    pb.FLOW_TIMEOUT_POLICY_CANCEL: "cancel",
    pb.FLOW_TIMEOUT_POLICY_HANDLER: "handler",
}


def flow_start(
    request: pb.StartFlowRequest,
    written: AttributeWrites,
    limits: Limits,
    heartbeat_floor_ms: int,
) -> FlowStart:
    """What the run begins with. ``written`` are the request's Attributes, already checked.

    Raises:
        BadRequest: Something breaks a rule.
    """
    options = request.flow_start_options
    if fault := name_fault("Flow type", request.flow_type, limits):
        raise BadRequest(fault)
    if len(written.values) + len(written.secrets) > limits.attributes:
        raise BadRequest(
            f"a Flow may have at most {limits.attributes} Attributes, map instances included. Put "
            "several values into one"
        )
    if options.flow_start_delay_seconds < 0:
        raise BadRequest("a start delay must not be negative")
    config = options.flow_config_override
    check_config(config)
    if fault := config_fault(config, limits):
        raise BadRequest(fault)
    is_async = config.step_durability == pb.STEP_DURABILITY_ASYNC
    step: Movement | None = None
    if request.start_step_type:
        message = pb.StepMovement(step_type=request.start_step_type)
        message.step_options.CopyFrom(request.step_options)
        if request.HasField("step_input"):
            message.step_input.CopyFrom(request.step_input)
        step = movement(
            message, limits, is_async_default=is_async, heartbeat_floor_ms=heartbeat_floor_ms
        )
    return FlowStart(
        flow_type=request.flow_type,
        step=step,
        attributes=tuple((key, value) for key, value in written.values if value is not None),
        indexes=written.indexes,
        secrets=tuple((key, value) for key, value in written.secrets if value is not None),
        config=config.SerializeToString(),
        is_async_default=is_async,
        delay_ms=options.flow_start_delay_seconds * 1_000,
        timeout=_timeout(request, limits, is_async, heartbeat_floor_ms),
        retry=_flow_retry(options.retry_policy) if options.HasField("retry_policy") else None,
    )


def check_config(config: pb.FlowConfig) -> None:
    """Refuse a config that names what does not exist."""
    check_enum("Step durability", config.step_durability, pb.StepDurability)
    check_enum(
        "search mode of active Steps", config.active_step_search_mode, pb.ActiveStepSearchMode
    )
    if config.worker_target.address and config.worker_target.is_pull_mode:
        raise BadRequest("a Worker target is either an address or pull mode")
    if len(config.worker_target.address) > _LONGEST_ADDRESS:
        raise BadRequest(f"a Worker's address has at most {_LONGEST_ADDRESS} characters")


@functools.lru_cache(maxsize=1_000)
def worker_address(config: bytes) -> str:
    """Where the Workers of a Flow listen; empty if they pull."""
    return pb.FlowConfig.FromString(config).worker_target.address


def _flow_retry(policy: pb.FlowRetryPolicy) -> RetryPolicy:
    return retry_policy(
        pb.RetryPolicy(
            initial_interval_seconds=policy.initial_interval_seconds,
            backoff_coefficient=policy.backoff_coefficient,
            maximum_interval_seconds=policy.maximum_interval_seconds,
            maximum_attempts=policy.maximum_attempts,
        )
    )


def _timeout(
    request: pb.StartFlowRequest, limits: Limits, is_async: bool, floor_ms: int
) -> FlowTimeout | None:
    policy = request.flow_timeout_policy
    check_enum("Flow timeout policy", policy, pb.FlowTimeoutPolicy)
    options = request.flow_start_options
    has_options = options.HasField("timeout_handler_options")
    if request.flow_timeout_seconds < 0:
        raise BadRequest("a Flow timeout must not be negative")
    if not request.flow_timeout_seconds:
        if policy != pb.FLOW_TIMEOUT_POLICY_UNSPECIFIED or has_options:
            raise BadRequest("a Flow timeout policy needs a timeout of at least a second")
        return None
    is_handled = policy == pb.FLOW_TIMEOUT_POLICY_HANDLER
    if has_options and not is_handled:
        raise BadRequest("timeout handler options need the timeout policy HANDLER")
    handler = StepOptions()
    if is_handled:
        handler = step_options(
            _handler_options(options.timeout_handler_options),
            limits,
            is_async_default=is_async,
            heartbeat_floor_ms=floor_ms,
        )
    return FlowTimeout(
        after_ms=request.flow_timeout_seconds * 1_000,
        policy=_POLICIES[policy],
        handler=handler,
        raw=options.timeout_handler_options.SerializeToString() if has_options else b"",
    )


def _handler_options(options: pb.FlowTimeoutHandlerOptions) -> pb.StepOptions:
    """The handler is an Execute without a WaitFor."""
    mapped = pb.StepOptions(
        skip_wait_for=True,
        execute_timeout_seconds=options.method_timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        execute_failure_policy=options.failure_policy,
        execute_failure_proceed_step_type=options.failure_proceed_step_type,
        execute_durability_override=options.durability_override,
        execute_lock_attribute_keys=options.lock_attribute_keys,
        execute_load_attribute_map_instances=options.load_attribute_map_instances,
        execute_load_channel_names=options.load_channel_names,
        execute_load_channel_map_instances=options.load_channel_map_instances,
    )
    if options.HasField("retry_policy"):
        mapped.execute_retry_policy.CopyFrom(options.retry_policy)
    if options.HasField("failure_proceed_step_options"):
        mapped.execute_failure_proceed_step_options.CopyFrom(options.failure_proceed_step_options)
    return mapped


def changed_config(config: bytes, change: pb.FlowConfig) -> tuple[bytes, bool]:
    """A config with the fields of the change put over it, and whether Steps are ASYNC by default.

    Raises:
        BadRequest: The change names what does not exist.
    """
    check_config(change)
    merged = pb.FlowConfig.FromString(config)
    for field in ("worker_target", "attribute_store_names"):
        if change.HasField(field):
            merged.ClearField(field)
    merged.MergeFrom(change)
    check_config(merged)
    return merged.SerializeToString(), merged.step_durability == pb.STEP_DURABILITY_ASYNC


def sub_flow_request(
    condition: pb.SubFlowCondition, flow_id: str, parent_config: bytes
) -> pb.StartFlowRequest:
    """A SubFlow's start as a client would ask for it; its config is put over the parent's.

    Raises:
        BadRequest: The config names what does not exist.
    """
    options = condition.options
    request = pb.StartFlowRequest(
        flow_id=flow_id,
        flow_type=condition.sub_flow_type,
        start_step_type=condition.start_step_type,
        flow_timeout_seconds=options.flow_timeout_seconds,
        flow_timeout_policy=options.flow_timeout_policy,
    )
    request.step_options.CopyFrom(condition.step_options)
    if condition.HasField("step_input"):
        request.step_input.CopyFrom(condition.step_input)
    started = request.flow_start_options
    started.flow_start_delay_seconds = options.flow_start_delay_seconds
    if options.HasField("retry_policy"):
        started.retry_policy.CopyFrom(options.retry_policy)
    if options.HasField("timeout_handler_options"):
        started.timeout_handler_options.CopyFrom(options.timeout_handler_options)
    config, _ = changed_config(parent_config, options.flow_config_override)
    started.flow_config_override.ParseFromString(config)
    return request


def without_secrets(condition: pb.WaitingCondition) -> pb.WaitingCondition:
    """A condition as the history may keep it: SubFlows' hard-delete Attributes have no values in it."""
    writes = (w for sub_flow in condition.sub_flow_conditions for w in sub_flow.options.attributes)
    if not any(write.is_hard_delete_on_null for write in writes):
        return condition
    kept = pb.WaitingCondition()
    kept.CopyFrom(condition)
    for sub_flow in kept.sub_flow_conditions:
        for write in sub_flow.options.attributes:
            if write.is_hard_delete_on_null:
                write.value.null_value = "NULL_VALUE"  # type: ignore[assignment]
    return kept
