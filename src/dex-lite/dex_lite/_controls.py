"""What a client changes of a running Flow: its Attributes, messages, timers and config, and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine import decide
from dex_lite._machine.commands import RpcResult, Writes
from dex_lite._machine.model import TIMEOUT_HANDLER_STEP, KeptSkip
from dex_lite._room import check_room
from dex_lite._wire.errors import invalid, message_missing
from dex_lite._wire.limits import config_fault, name_fault, reason_fault, request_id_fault
from dex_lite._wire.starts import changed_config

if TYPE_CHECKING:
    from dex_lite._engine import Engine

_STOPS: dict[int, Literal["cancel", "terminate", "fail"]] = {
    pb.STOP_TYPE_UNSPECIFIED: "cancel",
    pb.STOP_TYPE_CANCEL: "cancel",
    pb.STOP_TYPE_TERMINATE: "terminate",
    pb.STOP_TYPE_FAIL: "fail",
}


async def set_attributes(engine: Engine, request: pb.SetAttributesRequest) -> None:
    """Write Attributes; a repeated request acts once."""
    run = engine.find_open(request.flow_id, request.run_id)
    if fault := request_id_fault(request.request_id, engine.options.limits):
        raise invalid(fault)
    written = engine.reader.attributes(request.attributes)
    result = RpcResult(attributes=written.values, indexes=written.indexes, secrets=written.secrets)
    fingerprint = _fingerprint(request.attributes)
    known = run.state.rpc_answers.get(request.request_id)
    if known is None:
        check_room(run.state, engine.options.limits, result)
        turn = engine.turn(run)
        decide.apply_rpc(
            turn,
            "",
            result,
            rpc_input=b"",
            worker_id="",
            request_id=request.request_id,
            fingerprint=fingerprint,
            is_set_attributes=True,
        )
        engine.store(run, turn)
    elif known.fingerprint not in ("", fingerprint):  # earlier releases kept none
        raise invalid(
            f"request id {request.request_id!r} was used for another call or other values"
        )
    await engine.settled(run)


def _fingerprint(writes: Iterable[pb.AttributeWrite]) -> str:
    """What tells one call from another. Of a hard-delete value nothing is kept, so also no hash."""
    digest = hashlib.sha256(b"SetAttributes")
    for write in writes:
        kept = pb.AttributeWrite()
        kept.CopyFrom(write)
        if write.is_hard_delete_on_null:
            kept.ClearField("value")
        data = kept.SerializeToString(deterministic=True)
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()


async def publish(engine: Engine, request: pb.PublishToChannelRequest) -> None:
    """Publish messages, all or none."""
    run = engine.find_open(request.flow_id, request.run_id)
    published = engine.reader.publications(request.messages)
    check_room(run.state, engine.options.limits, Writes(published=published))
    turn = engine.turn(run)
    decide.publish(turn, published)
    await engine.durable(engine.store(run, turn))


async def delete_message(engine: Engine, request: pb.DeleteChannelMessageRequest) -> None:
    """Delete a message; a repeated request acts once."""
    run = engine.find_open(request.flow_id, request.run_id)
    if fault := request_id_fault(request.request_id, engine.options.limits):
        raise invalid(fault)
    if run.state.deleted_by(request.request_id) not in (None, True, request.message_id):
        raise invalid(f"request id {request.request_id!r} was used for another message")
    turn = engine.turn(run)
    if not decide.delete_message(
        turn, request.channel_name, request.message_id, request.request_id
    ):
        raise message_missing(request.channel_name, request.message_id)
    engine.store(run, turn)
    await engine.settled(run)


async def stop(engine: Engine, request: pb.StopFlowRequest) -> None:
    """End a running Flow."""
    run = engine.find_open(request.flow_id, request.run_id)
    if request.stop_type not in _STOPS:
        raise invalid(f"unknown stop type {request.stop_type}")
    if fault := reason_fault(request.reason, engine.options.limits):
        raise invalid(fault)
    turn = engine.turn(run)
    decide.stop(turn, _STOPS[request.stop_type], request.reason)
    await engine.durable(engine.store(run, turn))


async def skip_timer(engine: Engine, request: pb.SkipTimerRequest) -> None:
    """Fire a timer of a wait before its time, also one of a wait that has not begun."""
    run = engine.find_open(request.flow_id, request.run_id)
    skip = _skip(engine, request)
    turn = engine.turn(run)
    fault = decide.skip_timer(turn, skip)
    if fault is not None:
        raise invalid(fault)
    engine.store(run, turn)
    await engine.settled(run)


def _skip(engine: Engine, request: pb.SkipTimerRequest) -> KeptSkip:
    step_type, _, number = request.step_execution_id.rpartition("-")
    fault = name_fault("Step type", step_type, engine.options.limits)
    if fault and step_type != TIMEOUT_HANDLER_STEP:
        raise invalid(fault)
    if not number.isascii() or not number.isdigit() or number.startswith("0") or len(number) > 18:
        raise invalid(f"Step execution {request.step_execution_id!r} has no number from 1")
    has_index = request.HasField("timer_condition_index")
    if bool(request.timer_condition_id) is has_index:
        raise invalid("a timer is named by its condition id or by its index")
    if has_index and request.timer_condition_index < 0:
        raise invalid("a timer's index must not be negative")
    if has_index:
        return KeptSkip(request.step_execution_id, "", request.timer_condition_index)
    if fault := name_fault(
        "condition id", request.timer_condition_id, engine.options.limits, forbidden=""
    ):
        raise invalid(fault)
    return KeptSkip(request.step_execution_id, request.timer_condition_id)


async def update_config(engine: Engine, request: pb.UpdateFlowConfigRequest) -> None:
    """Change the config of a running Flow for what it decides from now on."""
    run = engine.find_open(request.flow_id, request.run_id)
    if fault := config_fault(request.flow_config, engine.options.limits):
        raise invalid(fault)
    config, is_async = changed_config(run.state.config, request.flow_config)
    turn = engine.turn(run)
    decide.change_config(turn, config, is_async_default=is_async)
    engine.store(run, turn)
    await engine.settled(run)
