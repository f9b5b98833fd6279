"""Workflows whose nodes run other nodes, claim their outputs and say things meanwhile, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.events.event import Event
from google.adk.workflow import BaseNode, JoinNode, RetryConfig, Workflow, node

from support.adk_oracle import call, text
from support.graph_cases import function, workflow
from support.tree_cases import Case, llm
from support.tree_oracle import TreeLlm, TreeWorld

_SCRIPTS: dict[str, list[Any]] = {
    "child": [[call("t_child", x="1")], text("child done")] * 2,
    "other": [[call("t_other", x="2")], text("other done")],
    "beside": [[call("t_beside", x="3")], [call("t_beside", x="4")], text("beside done")],
    "after": [[call("t_after", x="5")], [call("t_after", x="6")], text("after done")],
}

Agents = Callable[..., Any]
"""Makes the agent of a name with a tool of its own, known to the session."""


def _case(build: Callable[[TreeWorld, Agents], BaseNode], *used: str) -> Case:
    dynamic: list[BaseAgent] = []

    def building(world: TreeWorld) -> BaseNode:
        dynamic.clear()

        def agent(name: str, **fields: Any) -> Any:
            dynamic.append(llm(world, name, f"t_{name}", **fields))
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


def _telling(agent: Any) -> Any:
    """A node that says something and counts before and behind its child."""

    async def tells(node_input: Any, ctx: Any) -> Any:
        ctx.state["told"] = ctx.state.get("told", 0) + 1
        yield Event(message="starting", state={"started": True})  # type: ignore[call-arg]
        ctx.state["list"] = [*ctx.state.get("list", []), "before"]
        said = await ctx.run_node(agent, node_input="inside")
        yield Event(message="half way")  # type: ignore[call-arg]
        ctx.state["list"] = [*ctx.state["list"], "behind"]
        yield said

    return node(rerun_on_resume=True)(tells)


def _counting(agent: Any) -> Any:
    """A node that counts and has no output."""

    async def counts(node_input: Any, ctx: Any) -> None:
        ctx.state["told"] = ctx.state.get("told", 0) + 1
        await ctx.run_node(agent, node_input="inside")

    return node(rerun_on_resume=True)(counts)


def _tried(agents: list[Any]) -> Any:
    """A node whose first attempt says something and fails in its child."""

    async def tried(node_input: Any, ctx: Any) -> Any:
        ctx.state["tries"] = [*ctx.state.get("tries", []), ctx.attempt_count]
        yield Event(message=f"attempt {ctx.attempt_count}")  # type: ignore[call-arg]
        await ctx.run_node(agents[0], node_input="first")
        if ctx.attempt_count < 2:
            raise ValueError("not yet")
        yield Event(message="between")  # type: ignore[call-arg]
        yield await ctx.run_node(agents[1], node_input="second")

    retry = RetryConfig(max_attempts=3, initial_delay=0.001, max_delay=0.001, jitter=0)
    return node(rerun_on_resume=True, retry_config=retry)(tried)


class _SlowLlm(TreeLlm):
    """Answers when others have paused."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        for _ in range(200):
            await asyncio.sleep(0)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


def _side_by_side(*agents: Any) -> Any:
    async def both(node_input: Any, ctx: Any) -> str:
        runs = (ctx.run_node(a, node_input="in", use_sub_branch=True) for a in agents)
        return " ".join(await asyncio.gather(*runs))

    return node(rerun_on_resume=True)(both)


def _noting(agent: Any) -> Any:
    """The agent, whose callback writes state before its model is asked."""

    def note(callback_context: Any) -> None:
        callback_context.state["noted"] = callback_context.state.get("noted", 0) + 1

    agent.before_agent_callback = note
    return agent


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
    "a node that runs a quick and a slow agent side by side": _case(
        lambda w, agent: workflow(
            ("START", _side_by_side(agent("other"), agent("beside", model=_SlowLlm)), _after(w))
        ),
        "beside",
        "other",
        "after",
    ),
    "agents whose callbacks write state": _case(
        lambda w, agent: workflow(
            (
                "START",
                _noting(llm(w, "child", "t_child")),
                _noting(llm(w, "other", "t_other")),
                _noting(_after(w)),
            )
        ),
        "child",
        "other",
        "after",
    ),
    "a node that says something around its child": _case(
        lambda w, agent: workflow(("START", _telling(agent("child")), _after(w))),
        "child",
        "after",
    ),
    "a node that counts and has no output": _case(
        lambda w, agent: workflow(("START", _counting(agent("child")), _after(w))),
        "child",
        "after",
    ),
    "a node that says something and is tried again": _case(
        lambda w, agent: workflow(("START", _tried([agent("child"), agent("other")]), _after(w))),
        "child",
        "other",
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
