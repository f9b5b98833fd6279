"""The command ``dex-agents-session-graph``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc.aio

from dex_agents._arguments import check_server_address
from dex_agents.session_graph._flow_graph import flow_mermaid, render_session_flow_graph
from dex_agents.session_graph._history import SessionHistory
from dex_agents.session_graph._mermaid import history_mermaid
from dex_agents.session_graph._read import check_flow_type_is_known, read_session_history
from dex_agents.session_graph._svg import history_svg

_FLOW_FORMATS = {"json": render_session_flow_graph, "mermaid": flow_mermaid}
_HISTORY_FORMATS: dict[str, Callable[[SessionHistory], str]] = {
    "mermaid": history_mermaid,
    "svg": history_svg,
}
_ENDINGS = {
    "json": (".json",),
    "mermaid": (".mmd", ".mermaid", ".md", ".txt"),
    "svg": (".svg",),
}

_DEFAULT_ADDRESS = "localhost:8801"
_HINTS = {
    grpc.StatusCode.NOT_FOUND: "; is --address the engine of that session?",
    grpc.StatusCode.UNAVAILABLE: (
        "; start the engine, or name another one with --address or DEX_SERVER_ADDRESS"
    ),
    grpc.StatusCode.UNAUTHENTICATED: "; give the engine's token with --token or DEX_TOKEN",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a graph, or write it to a file; the exit code says whether that worked."""
    given = _parser().parse_args(arguments)
    try:
        if given.out:
            _check_file(Path(given.out), given.format, given.command)
        text = _render(given)
        if given.out:
            Path(given.out).write_text(text, encoding="utf-8")
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


def _check_file(path: Path, form: str, command: str) -> None:
    """Refuse a file that nobody could open afterwards, before an engine is asked."""
    ending = path.suffix.lower()
    if ending and ending not in _ENDINGS[form]:
        formats = _FLOW_FORMATS if command == "flow" else _HISTORY_FORMATS
        fits = [other for other in formats if ending in _ENDINGS[other]]
        way_out = f", or give --format {fits[0]}" if fits else ""
        raise ValueError(
            f"--out {path} does not end like a file of the format {form}; let it end in "
            f"{' or '.join(_ENDINGS[form])}{way_out}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"--out {path} cannot be written: there is no folder {path.parent}")


def _render(given: argparse.Namespace) -> str:
    token = given.token if given.token is not None else os.environ.get("DEX_TOKEN", "")
    address = given.address
    if given.command == "flow":
        text = _FLOW_FORMATS[given.format](given.flow_type)
        # The graph is the same for every Flow type, so no engine is asked unless one is named.
        if address is not None:
            check_server_address(address, "--address")
            asyncio.run(check_flow_type_is_known(address, given.flow_type, token=token))
        return text
    if address is None:
        address = os.environ.get("DEX_SERVER_ADDRESS") or _DEFAULT_ADDRESS
    check_server_address(address, "--address (DEX_SERVER_ADDRESS)")
    history = asyncio.run(read_session_history(address, given.session_id, token=token))
    return _HISTORY_FORMATS[given.format](history)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dex-agents-session-graph", description="Draws agent sessions."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    flow = commands.add_parser(
        "flow",
        help="the Flow of the sessions of a Flow type",
        description="The Flow of agent sessions, under the name of a Flow type.",
    )
    flow.add_argument("flow_type")
    flow.add_argument("--format", choices=sorted(_FLOW_FORMATS), default="json")
    history = commands.add_parser("history", help="what a session did, turn by turn")
    history.add_argument("session_id")
    history.add_argument("--format", choices=sorted(_HISTORY_FORMATS), default="svg")
    _add_option(
        flow, "--address", "--server", "HOST:PORT of an engine: only if it has such sessions"
    )
    default = f"DEX_SERVER_ADDRESS or {_DEFAULT_ADDRESS}"
    _add_option(history, "--address", "--server", f"HOST:PORT of the engine; without it {default}")
    for command in (flow, history):
        command.add_argument("--token", help="sent as bearer token; without it DEX_TOKEN")
        _add_option(command, "--out", "--output", "a file instead of standard output")
    return parser


def _add_option(parser: argparse.ArgumentParser, name: str, old_name: str, text: str) -> None:
    """An option that goes by its old name too."""
    parser.add_argument(name, help=text)
    parser.add_argument(
        old_name, dest=name.removeprefix("--"), help=argparse.SUPPRESS, default=argparse.SUPPRESS
    )
