"""The command ``dex-agents-session-graph``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc.aio

from dex_agents.session_graph._flow_graph import flow_mermaid, render_session_flow_graph
from dex_agents.session_graph._history import SessionHistory
from dex_agents.session_graph._mermaid import history_mermaid
from dex_agents.session_graph._read import read_session_history
from dex_agents.session_graph._svg import history_svg

_FLOW_FORMATS = {"json": render_session_flow_graph, "mermaid": flow_mermaid}
_HISTORY_FORMATS: dict[str, Callable[[SessionHistory], str]] = {
    "mermaid": history_mermaid,
    "svg": history_svg,
}


_HINTS = {
    grpc.StatusCode.NOT_FOUND: "; is --server the engine of that session?",
    grpc.StatusCode.UNAVAILABLE: "; start the engine, or name another one with --server",
    grpc.StatusCode.UNAUTHENTICATED: "; set DEX_TOKEN to the engine's token",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a graph, or write it to a file; the exit code says whether that worked."""
    given = _parser().parse_args(arguments)
    try:
        text = _render(given)
        if given.output:
            Path(given.output).write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    except grpc.aio.AioRpcError as error:
        hint = _HINTS.get(error.code(), "")
        print(f"dex-agents-session-graph: {error.details()}{hint}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"dex-agents-session-graph: {error}", file=sys.stderr)
        return 1
    return 0


def _render(given: argparse.Namespace) -> str:
    if given.command == "flow":
        return _FLOW_FORMATS[given.format](given.flow_type)
    token = os.environ.get("DEX_TOKEN", "")
    history = asyncio.run(read_session_history(given.server, given.session_id, token=token))
    return _HISTORY_FORMATS[given.format](history)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dex-agents-session-graph", description="Draws agent sessions."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    flow = commands.add_parser("flow", help="the Flow of the sessions of a Flow type")
    flow.add_argument("flow_type")
    flow.add_argument("--format", choices=sorted(_FLOW_FORMATS), default="json")
    history = commands.add_parser("history", help="what a session did, turn by turn")
    history.add_argument("session_id")
    history.add_argument(
        "--server", default="localhost:8801", help="host:port of the engine; DEX_TOKEN is its token"
    )
    history.add_argument("--format", choices=sorted(_HISTORY_FORMATS), default="svg")
    for command in (flow, history):
        command.add_argument("--output", help="a file instead of standard output")
    return parser
