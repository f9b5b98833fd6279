"""Workflows whose nodes run other nodes and claim their outputs, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.workflow import BaseNode, JoinNode, Workflow, node

from support.adk_oracle import call, text
from support.graph_cases import function, workflow
from support.tree_cases import Case, llm
from support.tree_oracle import TreeWorld

_SCRIPTS: dict[str, list[Any]] = {
    "child": [[call("t_child", x="1")], text("child done")],
    "other": [[call("t_other", x="2")], text("other done")],
    "beside": [[call("t_beside", x="3")], [call("t_beside", x="4")], text("beside done")],
    "after": [[call("t_after", x="5")], [call("t_after", x="6")], text("after done")],
}

Agents = Callable[[str], Any]
"""Makes the agent of a name with a tool of its own, known to the session."""


def _case(build: Callable[[TreeWorld, Agents], BaseNode], *used: str) -> Case:
    dynamic: list[BaseAgent] = []

    def building(world: TreeWorld) -> BaseNode:
        dynamic.clear()

        def agent(name: str) -> Any:
            dynamic.append(llm(world, name, f"t_{name}"))
            return dynamic[-1]

        return build(world, agent)

    scripts = {name: _SCRIPTS[name] for name in used}
    return Case(building, scripts, any_order="beside" in used, dynamic=dynamic)


def _claiming(child: Any, returned: Any = None, *, name: str = "claim", behind: Any = None) -> Any:
    """A node that claims the output of ``child``, runs ``behind`` and returns something else."""

    async def claim(node_input: Any, ctx: Any) -> Any:
        await ctx.run_node(child, node_input="inside", use_as_output=True)
        if behind is not None:
            await ctx.run_node(behind, node_input="behind")
        return returned

    claim.__name__ = name
    return node(rerun_on_resume=True)(claim)


def _after(world: TreeWorld) -> Any:
    return llm(world, "after", "t_after")


DYNAMIC: dict[str, Case] = {
    "a claimed output and nothing returned": _case(
        lambda w, agent: workflow(("START", _claiming(agent("child")), _after(w))),
        "child",
        "after",
    ),
    "a claimed output and another one returned": _case(
        lambda w, agent: workflow(("START", _claiming(agent("child"), "mine"), _after(w))),
        "child",
        "after",
    ),
    "a claimed output of a function": _case(
        lambda w, agent: workflow(
            ("START", _claiming(function(w, "f"), {"mine": 1}), function(w, "g"), _after(w))
        ),
        "after",
    ),
    "a claimed output while another child waits": _case(
        lambda w, agent: workflow(
            ("START", _claiming(agent("child"), behind=agent("other")), _after(w))
        ),
        "child",
        "other",
        "after",
    ),
    "a claim of a claim in a nested Workflow": _case(
        lambda w, agent: workflow(
            (
                "START",
                workflow(
                    ("START", _claiming(_claiming(agent("child"), "inner", name="inner"), "outer")),
                    name="nested",
                ),
                _after(w),
            )
        ),
        "child",
        "after",
    ),
    "a claim beside an agent": _case(
        lambda w, agent: Workflow(
            name="wf",
            edges=[
                (
                    "START",
                    (_claiming(agent("child"), "mine"), llm(w, "beside", "t_beside")),
                    JoinNode(name="join"),
                    _after(w),
                )
            ],
        ),
        "child",
        "beside",
        "after",
    ),
}
