"""ADK's path of a node's run, such as ``outer@1/inner@1/review@2``.

ADK gives every node that runs below a Workflow or a root ``LlmAgent`` a path before it does any work,
and stamps it on its events. Agents below a ``SequentialAgent``, ``LoopAgent`` or ``ParallelAgent`` have
none of their own: there the name of the agent, unique in such a tree, and its branch tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from dex_agents._errors import AgentTurnError


@dataclass(frozen=True)
class NodeVisit:
    """One run of a node.

    Attributes:
        name: The node.
        run: ADK's id of the run; those of nodes that a Workflow runs count from 1.
        occurrence: The path up to here, which no other run has.
    """

    name: str
    run: str
    occurrence: str


def parse_node_path(path: str) -> tuple[NodeVisit, ...]:
    """The runs that a path goes through, the root first; an empty path has none.

    Raises:
        AgentTurnError: It is no path of ADK.
    """
    visits: list[NodeVisit] = []
    for segment in path.split("/") if path else ():
        name, at, run = segment.rpartition("@")
        if not at or not name.strip() or not run.strip():
            raise AgentTurnError(
                f"ADK gave the node path {path!r}, whose part {segment!r} is not like 'name@run'; the "
                "turn cannot tell which node it is"
            )
        before = f"{visits[-1].occurrence}/" if visits else ""
        visits.append(NodeVisit(name, run, f"{before}{segment}"))
    return tuple(visits)
