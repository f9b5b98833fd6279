"""Step options and movements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import (
    TIMEOUT_HANDLER_STEP,
    MethodOptions,
    Movement,
    RetryPolicy,
    StepOptions,
)
from dex_lite._wire.limits import Limits, name_fault, value_fault

NULL = pb.Value(null_value="NULL_VALUE").SerializeToString()
_DEFAULTS = MethodOptions()
_PARSED: dict[tuple[bytes, bool, int, Limits], StepOptions] = {}
_PARSED_LIMIT = 1_000
_WAIT_FOR_POLICIES = pb.WaitForMethodFailurePolicy
_EXECUTE_POLICIES = pb.ExecuteMethodFailurePolicy


class BadRequest(ValueError):
    """Something in a message breaks a rule; the text says what."""


def check_enum(what: str, number: int, enum: Any) -> None:
    """Refuse a number that the enum does not have."""
    if number not in enum.values():
        raise BadRequest(f"unknown {what} {number}")


def unique(what: str, names: Iterable[Any]) -> None:
    """Refuse what is there twice."""
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"{what} repeat {name!r}")
        seen.add(name)


def check_lock_keys(keys: Iterable[str], limits: Limits) -> None:
    """Refuse keys that no Attribute can have."""
    for key in keys:
        if fault := name_fault("Attribute lock key", key, limits, forbidden=""):
            raise BadRequest(fault)


def step_options(
    options: pb.StepOptions, limits: Limits, *, is_async_default: bool, heartbeat_floor_ms: int
) -> StepOptions:
    """Parse options with defaults filled in. Equal options are parsed once."""
    raw = options.SerializeToString(deterministic=True)
    key = (raw, is_async_default, heartbeat_floor_ms, limits)
    parsed = _PARSED.get(key)
    if parsed is None:
        parsed = _parse(options, raw, limits, is_async_default, heartbeat_floor_ms)
        if len(_PARSED) >= _PARSED_LIMIT:
            _PARSED.clear()
        _PARSED[key] = parsed
    return parsed


def _parse(
    options: pb.StepOptions, raw: bytes, limits: Limits, is_async_default: bool, floor_ms: int
) -> StepOptions:
    check_enum("WaitFor failure policy", options.wait_for_failure_policy, _WAIT_FOR_POLICIES)
    check_enum("Execute failure policy", options.execute_failure_policy, _EXECUTE_POLICIES)
    for durability in (options.wait_for_durability_override, options.execute_durability_override):
        check_enum("Step durability", durability, pb.StepDurability)
    for keys in (options.wait_for_lock_attribute_keys, options.execute_lock_attribute_keys):
        check_lock_keys(keys, limits)
    proceeds = (
        options.execute_failure_policy
        == pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP
    )
    if proceeds and not options.execute_failure_proceed_step_type:
        raise BadRequest("a failure route needs a Step type")
    if proceeds:
        fault = name_fault("Step type", options.execute_failure_proceed_step_type, limits)
        if fault:
            raise BadRequest(fault)
    if options.heartbeat_timeout_seconds < 0:
        raise BadRequest("a heartbeat timeout must not be negative")
    heartbeat_ms = options.heartbeat_timeout_seconds * 1_000 or 60_000
    return StepOptions(
        wait_for=MethodOptions(
            timeout_ms=_seconds("timeout", options.wait_for_timeout_seconds, _DEFAULTS.timeout_ms),
            retry=retry_policy(options.wait_for_retry_policy),
            is_async=_is_async(options.wait_for_durability_override, is_async_default),
            locks=tuple(sorted(options.wait_for_lock_attribute_keys)),
            load_maps=tuple(options.wait_for_load_attribute_map_instances),
            load_channels=tuple(options.wait_for_load_channel_names),
            load_channel_maps=tuple(options.wait_for_load_channel_map_instances),
        ),
        execute=MethodOptions(
            timeout_ms=_seconds("timeout", options.execute_timeout_seconds, _DEFAULTS.timeout_ms),
            retry=retry_policy(options.execute_retry_policy),
            is_async=_is_async(options.execute_durability_override, is_async_default),
            locks=tuple(sorted(options.execute_lock_attribute_keys)),
            load_maps=tuple(options.execute_load_attribute_map_instances),
            load_channels=tuple(options.execute_load_channel_names),
            load_channel_maps=tuple(options.execute_load_channel_map_instances),
        ),
        heartbeat_ms=max(heartbeat_ms, floor_ms),
        skip_wait_for=options.skip_wait_for,
        proceed_when_wait_for_fails=(
            options.wait_for_failure_policy == pb.WAIT_FOR_METHOD_FAILURE_POLICY_PROCEED_ON_FAILURE
        ),
        failure_step_type=options.execute_failure_proceed_step_type if proceeds else "",
        failure_options=(
            step_options(
                options.execute_failure_proceed_step_options,
                limits,
                is_async_default=is_async_default,
                heartbeat_floor_ms=floor_ms,
            )
            if proceeds
            else None
        ),
        raw=raw,
    )


def _is_async(override: int, default: bool) -> bool:
    if override == pb.STEP_DURABILITY_UNSPECIFIED:
        return default
    return bool(override == pb.STEP_DURABILITY_ASYNC)


def _seconds(what: str, value: int, default_ms: int) -> int:
    if value < 0:
        raise BadRequest(f"a {what} must not be negative")
    return value * 1_000 or default_ms


def retry_policy(policy: pb.RetryPolicy) -> RetryPolicy:
    """A retry policy with defaults filled in."""
    default = RetryPolicy()
    if policy.maximum_attempts < 0:
        raise BadRequest("a retry policy must not hold negative numbers")
    coefficient = policy.backoff_coefficient
    if coefficient and not 1 <= coefficient < float("inf"):  # NaN is neither
        raise BadRequest("a backoff coefficient must be a number from 1")
    return RetryPolicy(
        initial_ms=_seconds("retry interval", policy.initial_interval_seconds, default.initial_ms),
        coefficient=coefficient or default.coefficient,
        maximum_ms=_seconds("retry interval", policy.maximum_interval_seconds, default.maximum_ms),
        maximum_attempts=policy.maximum_attempts,
        total_ms=_seconds("retry duration", policy.total_duration_seconds, default.total_ms),
    )


def movement(
    message: pb.StepMovement, limits: Limits, *, is_async_default: bool, heartbeat_floor_ms: int
) -> Movement:
    """A Step to schedule."""
    fault = name_fault("Step type", message.step_type, limits)
    if fault or message.step_type == TIMEOUT_HANDLER_STEP:
        raise BadRequest(fault or f"{TIMEOUT_HANDLER_STEP} is reserved")
    return Movement(
        message.step_type,
        encoded_value("Step input", message.step_input, limits, message.HasField("step_input")),
        step_options(
            message.step_options,
            limits,
            is_async_default=is_async_default,
            heartbeat_floor_ms=heartbeat_floor_ms,
        ),
    )


def encoded_value(what: str, value: pb.Value, limits: Limits, is_set: bool = True) -> bytes:
    """A checked value in its stored form; an absent one is null."""
    if not is_set:
        return NULL
    if fault := value_fault(what, value, limits):
        raise BadRequest(fault)
    return value.SerializeToString()
