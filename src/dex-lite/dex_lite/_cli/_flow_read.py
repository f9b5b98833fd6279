"""`dex-lite flow list|show|state|history`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from dex.dexpb import dex_pb2 as pb
from rich.console import Group

from dex_lite._cli import _history, _print, _run_view, _tree
from dex_lite._cli._exits import USAGE, CommandFailed
from dex_lite._cli._graph import mermaid
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
from dex_lite._cli._show_values import clock, iso, milliseconds, plain, short, span, status
from dex_lite._cli._svg import svg
from dex_lite._wire.hints import FLOWS_WITHOUT_WORKER

_PAGE = 200


class GraphFormat(StrEnum):
    """How a run is written as a graph."""

    mermaid = "mermaid"
    svg = "svg"


def list_flows(
    query: Annotated[
        str, typer.Option(help="Such as \"ExecutionStatus = 'Running'\"; without it, all Flows.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """List Flows, those that the server names first on top."""
    rows: list[pb.SearchFlowsResponseEntry] = []
    without_worker: set[int] = set()
    with connect(address, token) as server:
        request = pb.SearchFlowsRequest(query=query, page_size=min(limit, _PAGE))
        while len(rows) < limit:
            page, places = server.call_with_hints("SearchFlows", request, FLOWS_WITHOUT_WORKER)
            without_worker |= {len(rows) + place for place in places}
            rows += page.flow_runs
            if not page.next_page_token:
                break
            request.next_page_token = page.next_page_token
    del rows[limit:]
    if is_json:
        _print.as_json([_entry(row, place in without_worker) for place, row in enumerate(rows)])
        return
    table = _print.table("Flow id", "Type", "Status", "Started", "Took", "Attributes")
    for place, row in enumerate(rows):
        start, close = milliseconds(row.start_time), milliseconds(row.close_time)
        shown = _print.styled(status(row.flow_status))
        if place in without_worker:
            shown.append(f", {_tree.NEEDS_WORKER}", style="yellow")
        table.add_row(
            row.flow_id,
            row.flow_type,
            shown,
            clock(start),
            span(close - start) if start is not None and close is not None else "",
            " ".join(f"{pair.key}={short(pair.value, 40)}" for pair in row.indexed_attributes),
        )
    _print.show(table if rows else "no Flows")


def _entry(row: pb.SearchFlowsResponseEntry, needs_worker: bool) -> dict[str, Any]:
    return {
        "flow_id": row.flow_id,
        "run_id": row.run_id,
        "flow_type": row.flow_type,
        "status": status(row.flow_status),
        "needs_worker": needs_worker,
        "start_time": iso(milliseconds(row.start_time)),
        "close_time": iso(milliseconds(row.close_time)),
        "attributes": {pair.key: plain(pair.value) for pair in row.indexed_attributes},
    }


def load_view(server: Server, flow_id: str, run_id: str) -> _run_view.RunView:
    """The view of a run as it is now."""
    summary = server.summary(flow_id, run_id)
    run_id = summary.flow_execution_id.run_id
    live, without_worker = None, list[str]()
    if summary.flow_status == pb.FLOW_STATUS_RUNNING:
        live, without_worker = server.live_state(flow_id, run_id)
    # The events last: what ended since the state was read is in them, and they win.
    events = server.events(flow_id, run_id)
    return _run_view.build(summary, events, live, without_worker)


def show(
    flow_id: FlowId,
    run: Run = "",
    graph: Annotated[
        GraphFormat | None, typer.Option(help="Write the run as a graph instead.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the graph; without it, stdout.")
    ] = None,
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """Draw the Steps of a run as a tree, with attempts, waits and durations."""
    if out is not None and graph is None:
        raise CommandFailed("--out is for graphs. Add --graph svg or --graph mermaid.", USAGE)
    if graph is not None and is_json:
        raise CommandFailed("--json and --graph exclude each other. Leave one out.", USAGE)
    with connect(address, token) as server:
        view = load_view(server, flow_id, run)
    if graph is not None:
        text = mermaid(view) if graph is GraphFormat.mermaid else svg(view)
        _write(text, out)
    elif is_json:
        _print.as_json(_tree.as_data(view))
    else:
        _print.show(_tree.draw(view))


def _write(text: str, out: Path | None) -> None:
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        is_lost = not out.parent.is_dir()
        why = f"there is no folder {out.parent}" if is_lost else error.strerror
        raise CommandFailed(f"cannot write {out}: {why}. Choose another file with --out.") from None


def state(
    flow_id: FlowId,
    run: Run = "",
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """Show Attributes, pending Channel messages, and active and queued Steps."""
    with connect(address, token) as server:
        summary = server.summary(flow_id, run)
        run = summary.flow_execution_id.run_id
        live, without_worker = server.live_state(flow_id, run)
    view = _run_view.build(summary, [], live, without_worker)
    if is_json:
        _print.as_json(_state_data(view, live))
        return
    attributes = _print.table("Attribute", "Value")
    for pair in live.attributes:
        attributes.add_row(pair.key, short(pair.value))
    channels = _print.table("Channel", "Message id", "Value")
    for name, messages in sorted(live.pending_channel_messages.items()):
        for message in messages.messages:
            channels.add_row(name, message.message_id, short(message.value))
    steps = _print.table("Step", "State", "Details")
    for step in view.steps():
        steps.add_row(step.execution_id or step.step_type, _print.styled(step.state), _detail(step))
    heading = f"{flow_id}  {view.flow_type}  {view.status}"
    if view.needs_worker:
        heading += f"  {_tree.NEEDS_WORKER}"
    tables = [table for table in (attributes, channels, steps) if table.row_count]
    _print.show(Group(heading, *[part for table in tables for part in ("", table)]))


def _detail(step: _run_view.StepView) -> str:
    parts = [step.error or step.wait_text, _tree.NEEDS_WORKER * step.needs_worker]
    return "; ".join(filter(None, parts))


def _state_data(view: _run_view.RunView, live: pb.GetFlowStateResponse) -> dict[str, Any]:
    return {
        "flow_id": view.flow_id,
        "run_id": view.run_id,
        "flow_type": view.flow_type,
        "status": view.status,
        "needs_worker": view.needs_worker,
        "worker": live.sticky_app_worker_id or None,
        "attributes": {pair.key: plain(pair.value) for pair in live.attributes},
        "channels": {
            name: [
                {"message_id": message.message_id, "value": plain(message.value)}
                for message in messages.messages
            ]
            for name, messages in sorted(live.pending_channel_messages.items())
        },
        "steps": [
            {
                "step_execution_id": step.execution_id or None,
                "step_type": step.step_type,
                "state": step.state,
                "waits_for": step.waits_for,
                "waits_for_text": step.wait_text or None,
                "error": step.error or None,
                "needs_worker": step.needs_worker,
            }
            for step in view.steps()
        ],
        "outputs": [
            {
                "step_execution_id": output.completed_step_execution_id,
                "value": plain(output.completed_step_output),
            }
            for output in live.completed_steps
        ],
    }


def history(
    flow_id: FlowId,
    run: Run = "",
    first: Annotated[int, typer.Option(min=0, help="Begin at this event id.")] = 0,
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """List the history events of a run."""
    with connect(address, token) as server:
        run = server.summary(flow_id, run).flow_execution_id.run_id
        events = server.events(flow_id, run, first)
    if is_json:
        _print.as_json([_history.as_data(event) for event in events])
        return
    table = _print.table("Event", "Time", "What", "Details")
    for event in events:
        table.add_row(*_history.cells(event))
    _print.show(table)
