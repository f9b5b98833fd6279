"""What a client changes of a running Flow: its timers, its config, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine import decide
from dex_lite._machine.model import TIMEOUT_HANDLER_STEP, KeptSkip
from dex_lite._wire.errors import invalid
from dex_lite._wire.limits import config_fault, name_fault, reason_fault
from dex_lite._wire.starts import changed_config

if TYPE_CHECKING:
    from dex_lite._engine import Engine

_STOPS: dict[int, Literal["cancel", "terminate", "fail"]] = {
    pb.STOP_TYPE_UNSPECIFIED: "cancel",
    pb.STOP_TYPE_CANCEL: "cancel",
    pb.STOP_TYPE_TERMINATE: "terminate",
    pb.STOP_TYPE_FAIL: "fail",
}


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
