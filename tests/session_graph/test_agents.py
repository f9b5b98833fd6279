"""Which agent each model call, tool and wait of a session belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.workflow import Workflow

from dex_agents import AgentSessionClient, PendingInterrupt, ToolEffect, ToolPolicy
from dex_agents.session_graph import history_mermaid, history_svg, read_session_history
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel, tool_call
from support.serving import serve
from support.waiting import TURN_S

GATE = {"pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=True)}


def pay(x: str) -> str:
    """Pay."""
    return f"paid {x}"


def look(x: str) -> str:
    """Look."""
    return f"saw {x}"


def agent(name: str, *script: Any) -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedModel([*script, f"{name} end"]), tools=[pay, look])


def payer(name: str) -> LlmAgent:
    return agent(name, tool_call("pay", {"x": name}))


async def approve_all(sessions: AgentSessionClient) -> list[PendingInterrupt]:
    """Approve whatever the session asks until its first turn ends; what it asked."""
    asked: dict[str, PendingInterrupt] = {}
    while True:
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        if snapshot.turns_done:
            assert snapshot.last_turn is not None and not snapshot.last_turn.error
            return list(asked.values())
        for pending in snapshot.pending_interrupts:
            asked[pending.interrupt_id] = pending
            await sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)


def tree() -> BaseAgent:
    """A tool call first, then two branches side by side, then the same in a loop of one round."""
    lanes = ParallelAgent(name="lanes", sub_agents=[payer("left"), payer("right")])
    loop = LoopAgent(name="loop", sub_agents=[payer("again")], max_iterations=1)
    first = agent("first", tool_call("look", {"x": "1"}))
    return SequentialAgent(name="steps", sub_agents=[first, lanes, loop])


async def test_every_box_and_every_wait_names_its_agent(tmp_path: Path) -> None:
    flow = adk_agent_session_flow(
        tree(), flow_type="Boxes", tool_policies=GATE, default_tool_effect=ToolEffect.READ
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "go")
        asked = await approve_all(sessions)
        history = await read_session_history(engine.address, "s")
    assert sorted((item.agent_name, item.node_path) for item in asked) == [
        ("again", "steps/loop/again"),
        ("left", "steps/lanes/left"),
        ("right", "steps/lanes/right"),
    ]
    (turn,) = history.turns
    shown = [
        [(box.title, fact) for box in row for fact in box.facts if fact.startswith("called by ")]
        for row in turn.rows
    ]
    of = "called by {}".format
    assert shown == [
        [("model call", of("first"))],
        [("look", of("first"))],
        [("model call", of("first"))],
        [("model call", of("left, right"))],
        [("pay", of("left")), ("pay", of("right"))],
        [("model call", of("left, right"))],
        [("model call", of("again"))],
        [("pay", of("again"))],
        [("model call", of("again"))],
    ]
    for text in (history_mermaid(history), history_svg(history)):
        assert text.count("called by left, right") == 2


async def test_an_agent_of_a_workflow_has_adks_path(tmp_path: Path) -> None:
    inner = Workflow(name="inner", edges=[("START", payer("second"))])
    root = Workflow(name="flow", edges=[("START", agent("first"), inner)])
    flow = adk_agent_session_flow(root, flow_type="Paths", tool_policies=GATE)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "go")
        (asked,) = await approve_all(sessions)
    assert (asked.agent_name, asked.node_path) == ("second", "flow@1/inner@1/second@1")
