"""The graph of the session Flow names what the Flow has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dex import Registry

from core.scripted_runner import ScriptedRunner
from dex_agents import AgentSessionFlow
from dex_agents.session_graph import (
    Box,
    SessionHistory,
    TurnHistory,
    flow_mermaid,
    history_mermaid,
    render_session_flow_graph,
)
from dex_agents.session_graph._cli import main


def test_the_graph_has_every_step_and_rpc_of_the_flow() -> None:
    flow = AgentSessionFlow(ScriptedRunner([]), flow_type="Support")
    graph = json.loads(render_session_flow_graph("Support"))
    names = {
        kind: {n["name"] for n in graph["nodes"] if n["kind"] == kind} for kind in ("step", "rpc")
    }
    assert names["step"] == {type(given.step).__name__ for given in flow.get_steps()}
    (registered,) = Registry([flow], allow_async_handlers=True)._registered_flows.values()
    assert names["rpc"] == set(registered.rpcs)
    ids = {node["id"] for node in graph["nodes"]}
    assert len(ids) == len(graph["nodes"])
    assert {edge[end] for edge in graph["edges"] for end in ("from", "to")} <= ids
    assert len({edge["id"] for edge in graph["edges"]}) == len(graph["edges"])
    assert graph["flow"] == {"name": "Support", "startStepId": "step:AwaitUserMessage"}


def test_a_hostile_flow_type_stays_a_name() -> None:
    hostile = 'a"]; click b "javascript" --> <b>'
    assert json.loads(render_session_flow_graph(hostile))["flow"]["name"] == hostile
    second = flow_mermaid(hostile).splitlines()[1]
    label = second.removeprefix('  session(["').removesuffix('"]) --> AwaitUserMessage')
    assert len(second) - len(label) == len('  session([""]) --> AwaitUserMessage')
    assert not set(label) & set('"<>[]')


def test_the_command_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["flow", "Support"]) == 0
    assert capsys.readouterr().out == render_session_flow_graph("Support")
    target = tmp_path / "flow.mmd"
    for option in ("--out", "--output"):
        assert main(["flow", "Support", "--format", "mermaid", option, str(target)]) == 0
        assert target.read_text() == flow_mermaid("Support")
        target.unlink()
    assert main(["flow", "Support", "--out", str(tmp_path / "no" / "x")]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["flow", "a/b"], "flow_type must have at most 200 characters"),
        (["flow", ""], "flow_type must be a printable text"),
        (
            ["history", "s", "--address", "http://h:1"],
            "--address (DEX_SERVER_ADDRESS) must be host:port",
        ),
        (["flow", "S", "--server", "http://h:1"], "--address must be host:port without a scheme"),
        (["history", " ", "--server", "127.0.0.1:1"], "session_id must be a printable text"),
    ],
)
def test_a_wrong_argument_of_the_command_is_said_in_one_line(
    line: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"dex-agents-session-graph: {text}")
    assert printed.err.count("\n") == 1 and printed.out == ""


def test_what_mermaid_would_draw_as_something_else_stays_text() -> None:
    odd = ["C:\\new", "$$x$$", "fa:fa-car"]
    history = SessionHistory("s", "F", "running", [TurnHistory("t1", [[Box("t", "failed", odd)]])])
    labels = "C:#92;#8288;new", "$#8288;$x$#8288;$", "fa:#8288;fa-car"
    assert "<br/>".join(labels) in history_mermaid(history)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("history s --out {0}/s.png", "format svg; let it end in .svg"),
        ("history s --out {0}/s.md", "let it end in .svg, or give --format mermaid"),
        ("history s --format mermaid --out {0}/s.SVG", ".md or .txt, or give --format svg"),
        ("flow F --out {0}/f.svg", "format json; let it end in .json"),
        ("flow F --out {0}/f.mmd", "let it end in .json, or give --format mermaid"),
        ("flow F --out {0}/none/f.json", "there is no folder {0}/none"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    assert main(line.format(tmp_path).split()) == 1
    printed = capsys.readouterr()
    assert printed.err.endswith(told.format(tmp_path) + "\n"), printed.err
    assert printed.err.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line", ["--out {0}/f", "--out {0}/f.JSON", "--format mermaid --out {0}/f.md"]
)
def test_a_file_that_fits_is_written(tmp_path: Path, line: str) -> None:
    assert main(["flow", "F", *line.format(tmp_path).split()]) == 0
    (written,) = tmp_path.iterdir()
    assert "F" in written.read_text()
