"""Random Workflows of everything that a graph may hold, with their scripts, from a seed.

Nodes that are tried again, rounds that the state counts, several routes at once, joins, workers side by
side, dynamic nodes one after another and side by side, nested Workflows and limits of how many run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.workflow import BaseNode, JoinNode, RetryConfig, Workflow, node

from support.adk_oracle import text
from support.random_trees import Maker, Plan, make_llm
from support.tree_oracle import TreeWorld

_KINDS = ("agent", "tried", "rounds", "routes", "fan", "workers", "dynamic", "beside", "nested")
_ATTEMPTS = RetryConfig(max_attempts=4, initial_delay=0.001, max_delay=0.001, jitter=0)


class Graphs(Maker):
    def parts(self, depth: int) -> list[Any]:
        return [self.part(depth) for _ in range(self.rng.randint(1, 3))]

    def part(self, depth: int) -> Any:
        kind = self.rng.choice(_KINDS if depth else _KINDS[:3])
        name = self.name("n")
        if kind == "nested":
            return [kind, name, self.parts(depth - 1)]
        if kind == "tried":
            return [kind, name, [self.failing()]]
        if kind == "workers":
            return [kind, name, [self.alike()]]
        several = kind in ("routes", "fan", "dynamic", "beside")
        return [kind, name, [self.leaf() for _ in range(2 if several else 1)]]

    def failing(self) -> str:
        """An agent whose model fails in the middle, in at most two runs one after another."""
        name = self.leaf()
        for _ in range(self.rng.randint(1, 2)):
            place = self.rng.randint(0, len(self.scripts[name]) - 1)
            self.scripts[name].insert(place, ValueError("the model is away"))
        return name

    def alike(self) -> str:
        """An agent that says the same in every run, whichever of them comes first."""
        name = self.leaf()
        self.scripts[name] = [text(f"{name} end")]
        return name


def random_graph(seed: int, kinds: Sequence[str] = ("t",)) -> Plan:
    """A Workflow root whose agents have a tool of each kind, named ``<kind>_<agent>``."""
    maker = Graphs(seed, kinds)
    parts = maker.parts(maker.rng.randint(0, 2))
    limit = maker.rng.choice((None, None, 1, 2))
    plan = Plan(
        [parts, limit],
        lambda _: Workflow(name="unset"),
        maker.scripts,
        True,
        leaks=lambda _: False,
    )

    def build(world: TreeWorld) -> BaseNode:
        plan.dynamic.clear()
        return Building(world, plan.dynamic).graph("w", parts, limit)

    plan.build = build
    return plan


class Building:
    def __init__(self, world: TreeWorld, dynamic: list[BaseAgent]) -> None:
        self._world = world
        self._dynamic = dynamic

    def graph(self, name: str, parts: list[Any], limit: int | None = None) -> Workflow:
        edges: list[Any] = []
        before: Any = "START"
        for part in parts:
            more, before = self._part(before, *part)
            edges += more
        return Workflow(name=name, edges=edges, max_concurrency=limit)

    def llm(self, name: str) -> LlmAgent:
        """An agent of the graph."""
        return make_llm(self._world, name)

    def _part(self, before: Any, kind: str, name: str, inside: list[Any]) -> tuple[list[Any], Any]:
        """The edges of a part, and the node behind which the next one stands."""
        if kind == "nested":
            made: Any = self.graph(name, inside)
            return [(before, made)], made
        agents = [self.llm(agent) for agent in inside]
        if kind == "tried":
            made = node(agents[0], retry_config=_ATTEMPTS)
            return [(before, made)], made
        if kind == "rounds":
            judge, end = _judge(name), named(f"{name}_end", lambda node_input: node_input)
            return [(before, agents[0], judge), (judge, {"more": agents[0], "end": end})], end
        if kind == "routes":
            both = named(f"{name}_both", lambda node_input: Event(output="both", route=["a", "b"]))  # type: ignore[call-arg]
            join = JoinNode(name=name)
            edges = [(before, both), (both, {"a": agents[0], "b": agents[1]})]
            return [*edges, *((agent, join) for agent in agents)], join
        if kind == "fan":
            join = JoinNode(name=name)
            return [(before, tuple(agents), join)], join
        if kind == "workers":
            items = named(f"{name}_items", lambda node_input: ["x", "y", "z"])
            made = node(agents[0], parallel_worker=True)
            return [(before, items, made)], made
        if kind in ("dynamic", "beside"):
            self._dynamic += agents
            made = _running(name, agents, side_by_side=kind == "beside")
            return [(before, made)], made
        return [(before, agents[0])], agents[0]


def named(name: str, decide: Callable[[Any], Any]) -> Any:
    def function(node_input: Any) -> Any:
        return decide(node_input)

    function.__name__ = name
    return function


def _judge(name: str) -> Any:
    def judge(node_input: Any, ctx: Any) -> Any:
        rounds = ctx.state.get(name, 0) + 1
        ctx.state[name] = rounds
        yield Event(output=f"round {rounds}", route="end" if rounds % 2 == 0 else "more")  # type: ignore[call-arg]

    judge.__name__ = name
    return judge


def _running(name: str, agents: list[Any], *, side_by_side: bool) -> Any:
    async def run(node_input: Any, ctx: Any) -> str:
        if side_by_side:
            runs = [ctx.run_node(a, node_input=name, use_sub_branch=True) for a in agents]
            return " ".join(map(str, await asyncio.gather(*runs)))
        return " ".join([str(await ctx.run_node(agent, node_input=name)) for agent in agents])

    run.__name__ = name
    return node(rerun_on_resume=True)(run)
