"""What can be read off an agent tree or Workflow before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.workflow import Workflow
from google.adk.workflow._base_node import BaseNode, _walk_static_nodes


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
        seen: set[int] = set()
        for top in (self.root, *self.dynamic_agents):
            for node in _walk_static_nodes(top):
                if id(node) not in seen:
                    seen.add(id(node))
                    yield node

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
    def has_parallel_agent(self) -> bool:
        """Whether agents may run side by side."""
        return any(isinstance(node, ParallelAgent) for node in self.nodes())

    @cached_property
    def descendants(self) -> dict[str, Collection[str]]:
        """Names of the nodes below each node, by its name."""
        found: dict[str, set[str]] = {}
        for node in self.nodes():
            below = {inner.name for inner in _walk_static_nodes(node)} - {node.name}
            found.setdefault(node.name, set()).update(below)
        return dict(found)

    def find_llm_agent(self, name: str, node_path: str = "") -> LlmAgent | None:
        """The agent of that name.

        Args:
            node_path: ADK's path of the run, such as ``outer@1/inner@1/review@1``; decides between
                agents of one name in different Workflows.
        """
        candidates = self._llm_agents_by_name.get(name, ())
        if len(candidates) < 2 or not node_path:
            return candidates[0] if candidates else None
        names = [segment.split("@")[0] for segment in node_path.split("/")]
        return max(candidates, key=lambda agent: _likeness(self._static_path(agent), names))

    @cached_property
    def _llm_agents_by_name(self) -> dict[str, Sequence[LlmAgent]]:
        found: dict[str, list[LlmAgent]] = {}
        for agent in self.llm_agents():
            found.setdefault(agent.name, []).append(agent)
        return dict(found)

    def _static_path(self, agent: LlmAgent) -> list[str]:
        return _path_to(self.root, agent, set()) or [agent.name]


def _path_to(node: BaseNode, target: BaseNode, seen: set[int]) -> list[str] | None:
    if node is target:
        return [node.name]
    if id(node) in seen:
        return None
    seen.add(id(node))
    for child in node._iter_static_children():
        if (path := _path_to(child, target, seen)) is not None:
            return [node.name, *path]
    return None


def _likeness(path: list[str], names: list[str]) -> int:
    """How many of the path's names the run went through, in order."""
    rest = iter(names)
    return sum(1 for name in path if name in rest)
