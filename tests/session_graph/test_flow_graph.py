"""The graph of the session Flow names what the Flow has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dex import Registry

from core.scripted_runner import ScriptedRunner
from dex_agents import AgentSessionFlow
from dex_agents.session_graph import flow_mermaid, render_session_flow_graph
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
    hostile = 'a"]; click b "javascript:x" --> <b>'
    assert json.loads(render_session_flow_graph(hostile))["flow"]["name"] == hostile
    second = flow_mermaid(hostile).splitlines()[1]
    label = second.removeprefix('  session(["').removesuffix('"]) --> AwaitUserMessage')
    assert len(second) - len(label) == len('  session([""]) --> AwaitUserMessage')
    assert not set(label) & set('"<>[]')


def test_the_command_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["flow", "Support"]) == 0
    assert capsys.readouterr().out == render_session_flow_graph("Support")
    target = tmp_path / "flow.mmd"
    assert main(["flow", "Support", "--format", "mermaid", "--output", str(target)]) == 0
    assert target.read_text() == flow_mermaid("Support")
    assert main(["flow", "Support", "--output", str(tmp_path / "no" / "x")]) == 1
    assert "No such file" in capsys.readouterr().err
