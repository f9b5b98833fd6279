"""The agents of the differential suite by session id, such as ``tree-17``.

| Id | Agent |
| --- | --- |
| ``tree-<seed>``, ``workflow-<seed>`` | random agents of ``support.random_trees`` with the tools of ``kit`` |
| ``graph-<seed>``, ``session-<seed>`` | those of ``support.random_graphs`` and ``random_sessions``, the same |
| ``script-<seed>`` | the agent of ``support.random_scripts`` with a random script |
| ``case-<name>`` | a hand-written one of ``cases`` |
| ``custom-<name>`` | one of ``support.custom_trees``, its name with hyphens |
| ``waits-<name>-<order>`` | one of ``support.waiting_trees``; ``test_waits_in_branches`` has the orders |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.workflow import BaseNode

from dex_agents import PendingInterrupt, ToolPolicy
from dex_agents._contract import Json
from dex_agents.testing import UserAnswer, approve_all
from differential import kit
from differential.cases import CASES
from differential.worlds import SideWorld
from support import custom_trees, random_scripts, waiting_trees
from support.custom_trees import CustomTree
from support.random_graphs import random_graph
from support.random_sessions import HABITS, random_session
from support.random_trees import Plan as RandomPlan
from support.random_trees import leaks_branch, random_tree, random_workflow
from support.tree_oracle import Scripts, TreeLlm

_IDS_OF_ADK = 5


@dataclass(frozen=True)
class Plan:
    """What a session id stands for. Tools without a policy only read.

    Attributes:
        build: Makes the agent in a world.
        scripts: What each agent's model answers, over and over.
        shown: For a person who reads a failure.
        executions: How often a call (tool, arguments) runs when nothing disturbs it.
        has_ids: Whether calls have ids that plain ADK and session agree on.
        any_order: Whether branches run side by side somewhere.
        dynamic: Agents that only dynamic nodes know, filled by ``build``.
        resumable: Agents with a run loop of their own that have to be named.
        depends_on_chance: Whether what plain ADK did, by its events, is another thing every time.
    """

    build: Callable[[SideWorld], BaseNode | App]
    scripts: Scripts
    messages: Sequence[str]
    shown: str = ""
    policies: Mapping[str, ToolPolicy] = field(default_factory=dict)
    answer: Callable[[PendingInterrupt], UserAnswer] = approve_all
    executions: Callable[[str, Mapping[str, Json]], int] = lambda tool, arguments: 1
    run_config: RunConfig | None = None
    has_ids: bool = False
    any_order: bool = False
    dynamic: Collection[BaseAgent] = ()
    resumable: Collection[str] = ()
    depends_on_chance: Callable[[Sequence[Json]], bool] = lambda events: False


def plan_of(session_id: str) -> Plan:
    """The agent and what it is asked and answered."""
    kind, _, name = session_id.partition("-")
    if kind == "case":
        return _case(name)
    if kind == "custom":
        return _named(custom_trees.TREES[name.replace("-", " ")])
    if kind == "waits":
        return _named(waiting_trees.TREES[name.partition("-")[0]])
    return _script(int(name)) if kind == "script" else _tree(kind, int(name))


def _random_session(seed: int, kinds: Sequence[str]) -> RandomPlan:
    return random_session(seed, kinds, HABITS)


_RANDOM: Mapping[str, Callable[[int, Sequence[str]], RandomPlan]] = {
    "tree": random_tree,
    "workflow": random_workflow,
    "graph": random_graph,
    "session": _random_session,
}


def _tree(kind: str, seed: int) -> Plan:
    """Every fifth seed has ADK's ids of calls, the others have the models' own."""
    made = _RANDOM[kind](seed, kit.KINDS)
    return Plan(
        build=made.build,
        scripts=made.scripts,
        messages=("go", "again"),
        shown=json.dumps(made.tree),
        policies=kit.policies_of(made.scripts),
        answer=kit.answer,
        executions=lambda tool, arguments: kit.executions(tool.partition("_")[0], arguments["x"]),
        has_ids=seed % _IDS_OF_ADK != 0,
        any_order=made.any_order,
        dynamic=made.dynamic,
        depends_on_chance=lambda events: leaks_branch(made, events),
    )


def _named(made: CustomTree) -> Plan:
    return Plan(
        build=made.build,
        scripts=made.scripts,
        messages=made.messages,
        policies=kit.policies_of(made.scripts),
        answer=kit.answer,
        has_ids=True,
        any_order=made.any_order,
        resumable=made.resumable,
    )


def _script(seed: int) -> Plan:
    script, messages = random_scripts.random_script(seed)
    return Plan(
        build=lambda world: random_scripts.build(world, TreeLlm),
        scripts={"root": script},
        messages=messages,
        has_ids=seed % _IDS_OF_ADK != 0,
    )


def _case(name: str) -> Plan:
    case = CASES[name]()
    return Plan(
        build=case.build,
        scripts={"root": case.script},
        messages=case.messages,
        policies=case.policies,
        answer=case.answer,
        executions=lambda tool, arguments: case.executions.get(tool, 1),
        run_config=case.run_config,
    )
