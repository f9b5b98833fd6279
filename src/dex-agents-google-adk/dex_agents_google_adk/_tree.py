"""What can be read off an agent tree or Workflow before it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.workflow import Workflow
from google.adk.workflow._base_node import BaseNode

from dex_agents._errors import AgentTurnError
from dex_agents_google_adk._node_path import parse_node_path

COMPOSITES = (SequentialAgent, LoopAgent, ParallelAgent)
"""ADK's own agents that run their sub-agents."""


@dataclass(frozen=True)
class AgentTree:
    """A root and the agents that only its dynamic nodes know.

    Attributes:
        root: What ADK runs.
        dynamic_agents: Agents that nodes run by ``ctx.run_node`` and that stand nowhere in the tree.
    """

    root: BaseNode
    dynamic_agents: Sequence[BaseAgent] = field(default=())

    def nodes(self) -> Iterator[BaseNode]:
        """Every node once, the root first."""
        return _walk(self.root, *self.dynamic_agents)

    def freeze(self) -> None:
        """Count only agents that are there now; others that an application adds later do not run."""
        self._agents_by_name  # noqa: B018  computed once

    def llm_agents(self) -> Iterator[LlmAgent]:
        """Every agent with a model."""
        for node in self.nodes():
            if isinstance(node, LlmAgent):
                yield node

    @cached_property
    def agent_names(self) -> Collection[str]:
        """Names of all agents."""
        return frozenset(node.name for node in self.nodes() if isinstance(node, BaseAgent))

    @cached_property
    def workflow_names(self) -> Collection[str]:
        """Names of all Workflows."""
        return frozenset(node.name for node in self.nodes() if isinstance(node, Workflow))

    @cached_property
    def task_names(self) -> Collection[str]:
        """Names of the agents in mode ``task``."""
        return frozenset(n.name for n in self.nodes() if getattr(n, "mode", None) == "task")

    @cached_property
    def own_loop_agents(self) -> Sequence[BaseAgent]:
        """Agents whose class has a run loop that is not ADK's."""
        return [
            node
            for node in self.nodes()
            if isinstance(node, BaseAgent) and not isinstance(node, (LlmAgent, *COMPOSITES))
        ]

    @cached_property
    def parallel_agents(self) -> Sequence[ParallelAgent]:
        """Those that run their sub-agents side by side."""
        return [node for node in self.nodes() if isinstance(node, ParallelAgent)]

    @cached_property
    def descendants(self) -> dict[str, Collection[str]]:
        """Names of the nodes below each node, by its name."""
        found: dict[str, set[str]] = {}
        for node in self.nodes():
            below = {inner.name for inner in _walk(node)} - {node.name}
            found.setdefault(node.name, set()).update(below)
        return dict(found)

    @cached_property
    def shape(self) -> str:
        """Another text for another tree: other nodes, kinds of nodes, edges or another order."""
        lines = [f"{type(node).__name__} {node.name!r} {_below(node)}" for node in self.nodes()]
        return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "replace")).hexdigest()[:16]

    def find_llm_agent(self, name: str, node_path: str = "") -> LlmAgent | None:
        """The agent of that name.

        Args:
            node_path: ADK's path of the run, such as ``outer@1/inner@1/review@1``; decides between
                agents of one name in different Workflows.

        Raises:
            AgentTurnError: The path is none, or several agents of the name fit it equally well.
        """
        names = [visit.name for visit in parse_node_path(node_path)]
        candidates = self._llm_agents_by_name.get(name, ())
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        likeness = {
            number: _likeness(self._static_path(agent), names)
            for number, agent in enumerate(candidates)
        }
        best = [number for number, value in likeness.items() if value == max(likeness.values())]
        if len(best) > 1:
            raise AgentTurnError(
                f"{len(best)} agents are named {name!r}, and the node path {node_path!r} does not say "
                "which one this is; give them names of their own"
            )
        return candidates[best[0]]

    def shown_path(self, name: str, node_path: str) -> str:
        """Where an agent runs, for people: ADK's path, or the agents from the root down by name.

        ADK gives agents below a composite agent no path; their names are unique in such a tree.
        """
        if node_path:
            return node_path
        agents = self._llm_agents_by_name.get(name)
        return "/".join(self._static_path(agents[0])) if agents else name

    def knows(self, agent: BaseAgent) -> bool:
        """Whether an agent that runs is one of the tree, or a copy that ADK made of it.

        A copy has the very same tools, model and so on; one that was made by hand and changed has
        not, and its Steps would find those of its namesake.
        """
        return any(
            type(known) is type(agent) and _definition(known) == _definition(agent)
            for known in self._agents_by_name.get(agent.name, ())
        )

    @cached_property
    def _agents_by_name(self) -> dict[str, Sequence[BaseAgent]]:
        found: dict[str, list[BaseAgent]] = {}
        for node in self.nodes():
            if isinstance(node, BaseAgent):
                found.setdefault(node.name, []).append(node)
        return dict(found)

    @cached_property
    def _llm_agents_by_name(self) -> dict[str, Sequence[LlmAgent]]:
        found: dict[str, list[LlmAgent]] = {}
        for agent in self.llm_agents():
            found.setdefault(agent.name, []).append(agent)
        return dict(found)

    def _static_path(self, agent: LlmAgent) -> list[str]:
        return _path_to(self.root, agent, set()) or [agent.name]


def _definition(agent: BaseAgent) -> tuple[int, ...]:
    """What makes an agent what it does, by identity."""
    # Each callback, as a copy has lists of its own.
    before, after = agent.canonical_before_agent_callbacks, agent.canonical_after_agent_callbacks
    parts: list[Any] = [*before, None, *after, None]
    if isinstance(agent, LlmAgent):
        parts += [agent.model, agent.instruction, agent.output_schema, *agent.tools]
    return tuple(map(id, parts))


def _children(node: BaseNode) -> Iterator[BaseNode]:
    """The nodes that ADK runs for a node; those that are tools of an agent run in its Steps."""
    if isinstance(node, LlmAgent):
        return BaseAgent._iter_static_children(node)
    return node._iter_static_children()


def _below(node: BaseNode) -> list[str]:
    """What a node runs, in its order if it has one."""
    if isinstance(node, Workflow) and node.graph is not None:
        edges = node.graph.edges
        return sorted(f"{edge.from_node.name}>{edge.to_node.name}" for edge in edges)
    return [child.name for child in _children(node)]


def _walk(*roots: BaseNode) -> Iterator[BaseNode]:
    """The nodes and all below them, each once, the first of its children first."""
    seen: set[int] = set()
    waiting = list(reversed(roots))
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(reversed(list(_children(node))))


def _path_to(node: BaseNode, target: BaseNode, seen: set[int]) -> list[str] | None:
    if node is target:
        return [node.name]
    if id(node) in seen:
        return None
    seen.add(id(node))
    for child in _children(node):
        if (path := _path_to(child, target, seen)) is not None:
            return [node.name, *path]
    return None


def _likeness(path: list[str], names: list[str]) -> int:
    """How many of the path's names the run went through, in order."""
    rest = iter(names)
    return sum(1 for name in path if name in rest)
