"""Without its workaround a durable run differs from plain ADK, with it it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.workflow import BaseNode, Workflow

from dex_agents import AgentTurnError
from dex_agents._effects import ToolEffect
from dex_agents_google_adk import _session, _turn
from dex_agents_google_adk._adk_workarounds import agent_callbacks, agent_states, task_delegations
from support.adk_oracle import call, text
from support.random_trees import make_llm
from support.tree_oracle import Scripts, TreeWorld, compare_tree

pytestmark = pytest.mark.filterwarnings("ignore")
Off = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Defect:
    """A defect of ADK.

    Attributes:
        off: Takes the workaround away.
        build: The smallest tree that shows the defect.
        symptom: What the run then fails with.
    """

    off: Off
    build: Callable[[TreeWorld], BaseNode]
    scripts: Scripts
    symptom: str


def unguarded(module: Any) -> Off:
    def off(monkeypatch: pytest.MonkeyPatch) -> None:
        for patch in module.PATCHES:
            for owner in patch.owners:
                monkeypatch.setattr(owner, patch.name, patch.original)
        monkeypatch.setattr(module, "apply", lambda: False)

    return off


def replaced(owner: Any, name: str, result: Any = None) -> Off:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, lambda *_: result)


def sequence(world: TreeWorld) -> BaseNode:
    below = SequentialAgent(name="seq", description="seq", sub_agents=[make_llm(world, "one")])
    return make_llm(world, "root", sub_agents=[below])


ONE: Scripts = {"one": [[call("t_one", x="1")], text("done")]}
INTO_SEQUENCE: Scripts = {**ONE, "root": [[call("transfer_to_agent", agent_name="seq")]]}
LOST = "ADK went on without the results"
DEFECTS = {
    "agent_callbacks": Defect(
        unguarded(agent_callbacks), lambda w: make_llm(w, "one"), ONE, "callbacks differ"
    ),
    "agent_states": Defect(replaced(agent_states, "restore"), sequence, INTO_SEQUENCE, LOST),
    "nested_node_paths": Defect(
        replaced(_turn, "forget_misleading_path"), sequence, INTO_SEQUENCE, "requests of one differ"
    ),
    "single_turn_input": Defect(
        replaced(agent_callbacks, "put_back_input"),
        lambda w: make_llm(w, "root", sub_agents=[make_llm(w, "one", mode="single_turn")]),
        {**ONE, "root": [[call("one", request="r")], text("end")]},
        "requests of one differ",
    ),
    "task_delegations": Defect(
        unguarded(task_delegations),
        lambda w: make_llm(w, "root", sub_agents=[make_llm(w, "one", mode="task")]),
        {
            "root": [[call("t_root", x="0"), call("one", request="r")], text("end")],
            "one": [[call("finish_task", result="ok")]],
        },
        LOST,
    ),
    "workflow_markers": Defect(
        replaced(_session, "is_workflow_marker", False),
        lambda w: Workflow(name="wf", edges=[("START", make_llm(w, "one"))]),
        ONE,
        LOST,
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
async def test_the_workaround_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = DEFECTS[name]

    async def run() -> None:
        await compare_tree(defect.build, defect.scripts, default_tool_effect=ToolEffect.READ)

    await run()
    defect.off(monkeypatch)
    with pytest.raises((AssertionError, AgentTurnError), match=defect.symptom):
        await run()
