"""`dex-lite flow watch|stop|skip-timer|reset`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from dex.dexpb import dex_pb2 as pb

from dex_lite._cli import _history, _print
from dex_lite._cli._exits import FAILED, USAGE, CommandFailed
from dex_lite._cli._server import (
    DEFAULT_ADDRESS,
    Address,
    FlowId,
    Json,
    Run,
    Server,
    Token,
    connect,
)
from dex_lite._cli._show_values import status
from dex_lite._cli._tree import NEEDS_WORKER

_POLL_S = 60.0


class StopAs(StrEnum):
    """How a Flow is stopped."""

    cancel = "cancel"
    terminate = "terminate"
    fail = "fail"


class Method(StrEnum):
    """The two methods of a Step."""

    wait_for = "wait-for"
    execute = "execute"


_STOP_TYPES = {
    StopAs.cancel: pb.STOP_TYPE_CANCEL,
    StopAs.terminate: pb.STOP_TYPE_TERMINATE,
    StopAs.fail: pb.STOP_TYPE_FAIL,
}
_METHODS = {
    None: pb.FLOW_RESET_STEP_METHOD_UNSPECIFIED,
    Method.wait_for: pb.FLOW_RESET_STEP_METHOD_WAIT_FOR,
    Method.execute: pb.FLOW_RESET_STEP_METHOD_EXECUTE,
}


def watch(
    flow_id: FlowId,
    run: Run = "",
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """Print history events as they happen, until the run closes or Ctrl-C.

    Exit code 0 if it completed, 1 if it closed in another way.
    """
    with connect(address, token) as server:
        run = server.summary(flow_id, run).flow_execution_id.run_id
        first = 1
        closed = ""
        has_looked = False
        try:
            while not closed:
                for event in server.events(flow_id, run, first):
                    first = event.event_id + 1
                    _print_event(event, is_json)
                    if event.HasField("flow_closed"):
                        closed = status(event.flow_closed.flow_status)
                if not closed:
                    if not has_looked:
                        has_looked = True
                        _note_missing_worker(server, flow_id, run)
                    wait = pb.WaitForHistoryEventRequest(
                        flow_id=flow_id, run_id=run, next_internal_event_id=first
                    )
                    server.poll("WaitForHistoryEvent", wait, _POLL_S)
        except KeyboardInterrupt:
            # The usual end of a live view.
            return
    if closed != "completed":
        raise typer.Exit(FAILED)


def _note_missing_worker(server: Server, flow_id: str, run_id: str) -> None:
    _, step_types = server.live_state(flow_id, run_id)
    if step_types:
        _print.note(f"{flow_id} is {NEEDS_WORKER} that takes {', '.join(step_types)}")


def _print_event(event: pb.FlowHistoryEvent, is_json: bool) -> None:
    if is_json:
        _print.as_json(_history.as_data(event), is_line=True)
    else:
        number, time, kind, details = _history.cells(event)
        _print.line(f"{number:>4}  {time}  {kind}  {details}")


def stop(
    flow_id: FlowId,
    run: Run = "",
    how: Annotated[StopAs, typer.Option("--as", help="How the run ends.")] = StopAs.cancel,
    reason: Annotated[str, typer.Option(help="With --as fail: kept as the error of the run.")] = "",
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """Stop a Flow."""
    request = pb.StopFlowRequest(
        flow_id=flow_id, run_id=run, reason=reason, stop_type=_STOP_TYPES[how]
    )
    with connect(address, token) as server:
        server.call("StopFlow", request)
        summary = server.summary(flow_id, run)
    _done(
        f"{flow_id} is {status(summary.flow_status)}",
        {
            "flow_id": flow_id,
            "run_id": summary.flow_execution_id.run_id,
            "status": status(summary.flow_status),
        },
        is_json,
    )


def skip_timer(
    flow_id: FlowId,
    step: Annotated[str, typer.Argument(help="Step execution id, such as Remind-1.")],
    run: Run = "",
    timer: Annotated[str, typer.Option(help="Condition id of the timer.")] = "",
    index: Annotated[int | None, typer.Option(min=0, help="Or its number, from 0.")] = None,
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """Let a timer that a Step waits for fire now. Without --timer and --index, the first one."""
    if timer and index is not None:
        raise CommandFailed("--timer and --index exclude each other. Leave one out.", USAGE)
    request = pb.SkipTimerRequest(
        flow_id=flow_id, run_id=run, step_execution_id=step, timer_condition_id=timer
    )
    if not timer:
        request.timer_condition_index = index or 0
    with connect(address, token) as server:
        server.call("SkipTimer", request)
    named = timer or index or 0
    _done(
        f"timer {named} of {step} is skipped",
        {"flow_id": flow_id, "step_execution_id": step, "timer": named},
        is_json,
    )


def reset(
    flow_id: FlowId,
    run: Run = "",
    beginning: Annotated[bool, typer.Option("--beginning", help="Back to the start.")] = False,
    time: Annotated[
        str, typer.Option(help="Back to before the first event at or after a time, RFC 3339.")
    ] = "",
    step_type: Annotated[str, typer.Option(help="Back to the latest Step of a type.")] = "",
    step: Annotated[str, typer.Option(help="Back to a Step execution, such as Ship-2.")] = "",
    method: Annotated[
        Method | None, typer.Option(help="With --step: which of its methods runs again.")
    ] = None,
    run_attempt: Annotated[
        int, typer.Option(min=0, help="Attempt of the run that the target is in; 0: the newest.")
    ] = 0,
    skip_writes: Annotated[
        bool, typer.Option("--skip-writes", help="Drop client writes made since, do not reapply.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "",
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """Take a Flow back in time: it goes on from there.

    Name one of --beginning, --time, --step-type and --step.
    """
    if sum((beginning, bool(time), bool(step_type), bool(step))) != 1:
        raise CommandFailed(
            "name exactly one of --beginning, --time, --step-type and --step.", USAGE
        )
    if method is not None and not step:
        raise CommandFailed("--method needs --step.", USAGE)
    request = pb.ResetFlowRequest(
        flow_id=flow_id,
        run_id=run,
        reason=reason,
        skip_writes_reapply=skip_writes,
        step_method=_METHODS[method],
        run_attempt=run_attempt,
    )
    if beginning:
        request.reset_type = pb.FLOW_RESET_TYPE_BEGINNING
    elif time:
        _check_time(time)
        request.reset_type = pb.FLOW_RESET_TYPE_HISTORY_EVENT_TIME
        request.history_event_time = time
    elif step_type:
        request.reset_type = pb.FLOW_RESET_TYPE_STEP_TYPE
        request.step_type = step_type
    else:
        request.reset_type = pb.FLOW_RESET_TYPE_STEP_EXECUTION_ID
        request.step_execution_id = step
    with connect(address, token) as server:
        response = server.call("ResetFlow", request)
        summary = server.summary(flow_id, response.run_id)
    _done(
        f"{flow_id} goes on as attempt {summary.run_attempt}",
        {
            "flow_id": flow_id,
            "run_id": summary.flow_execution_id.run_id,
            "run_attempt": summary.run_attempt,
            "status": status(summary.flow_status),
        },
        is_json,
    )


def _check_time(text: str) -> None:
    try:
        is_good = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        is_good = False
    if not is_good:
        raise CommandFailed(
            f"--time {text!r} is not a time with an offset, such as 2026-01-31T08:00:00Z.", USAGE
        )


def _done(text: str, data: dict[str, Any], is_json: bool) -> None:
    if is_json:
        _print.as_json(data)
    else:
        _print.line(text)
