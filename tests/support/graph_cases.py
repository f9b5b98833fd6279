"""Workflows by hand, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.events.event import Event
from google.adk.workflow import JoinNode, RetryConfig, Workflow, node

from support.adk_oracle import call, text
from support.tree_cases import BODIES, Case, around, ask, inline, llm, move
from support.tree_oracle import TreeWorld


def workflow(*edges: Any, name: str = "wf") -> Workflow:
    return Workflow(name=name, edges=list(edges))


def function(world: TreeWorld, name: str) -> Callable[[Any], str]:
    """A node that notes its execution; it may run again after a crash, so the notes are a set."""

    def run(node_input: Any) -> str:
        return f"{name}[{node_input}]"

    run.__name__ = name
    return run


def _again(agent: LlmAgent) -> LlmAgent:
    """An agent that plain ADK lets run others."""
    agent.rerun_on_resume = True
    return agent


def _route(world: TreeWorld) -> Workflow:
    worker = llm(world, "w1", "t1")

    def judge(node_input: str) -> Any:
        route = "more" if node_input == "again" else "end"
        yield Event(output=node_input, route=route)  # type: ignore[call-arg]

    def end(node_input: str) -> str:
        return "end " + node_input

    return workflow(("START", worker, judge), (judge, {"more": worker, "end": end}))


def chat(world: TreeWorld, name: str, *sub_agents: Any) -> LlmAgent:
    """A node that may hand over to its sub-agents."""
    return llm(world, name, mode="chat", sub_agents=list(sub_agents))


_HANDED_OVER: dict[str, list[Any]] = {
    "router": [[move("inner")]],
    "inner": [[call("t0", x="1")], text("inner done")],
    "beside": [[call("t1", x="2")], text("beside done")],
    "after": [[call("t2", x="3")], text("after done")],
}

GRAPHS: dict[str, Case] = {
    "nodes with single turns and tasks of their own": Case(
        lambda w: workflow(
            (
                "START",
                _again(inline(w, "k", inline(w, "s"), inline(w, "k2", mode="task"), mode="task")),
                _again(inline(w, "z", inline(w, "s2"))),
            )
        ),
        {
            **BODIES,
            "k": [[call("t_k", x="3")], [ask("s"), ask("k2")], [call("finish_task", result="k")]],
            "z": [[call("t_z", x="5")], [ask("s2")], text("z done")],
        },
        any_order=True,
    ),
    "agent, then function": Case(
        lambda w: workflow(("START", llm(w, "w1", "t1"), function(w, "f"))),
        {"w1": [[call("t1", x="1")], [call("t1", x="2"), call("t1", x="3")], text("w1 done")]},
    ),
    "function, agent, function": Case(
        lambda w: workflow(("START", function(w, "f"), llm(w, "w1", "t1"), function(w, "g"))),
        {"w1": [[call("t1", x="1")], [call("t1", x="2")], text("w1 done")]},
    ),
    "two agents in a Workflow": Case(
        lambda w: workflow(("START", llm(w, "w1", "t1"), llm(w, "w2", "t2"))),
        {
            "w1": [[call("t1", x="1")], text("w1 done")],
            "w2": [[call("t2", x="2")], text("w2 done")],
        },
    ),
    "fan-out and join": Case(
        lambda w: workflow(
            (
                "START",
                (llm(w, "w1", "t1"), llm(w, "w2", "t2")),
                JoinNode(name="join"),
                llm(w, "sum", "t3"),
            )
        ),
        {
            "w1": [[call("t1", x="1")], text("w1 done")],
            "w2": [[call("t2", x="2")], [call("t2", x="22")], text("w2 done")],
            "sum": [[call("t3", x="3")], text("summed")],
        },
        any_order=True,
    ),
    "nested Workflow": Case(
        lambda w: workflow(
            (
                "START",
                workflow(("START", llm(w, "w1", "t1")), name="inner"),
                function(w, "mid"),
                llm(w, "w2", "t2"),
            )
        ),
        {
            "w1": [[call("t1", x="1")], text("w1 done")],
            "w2": [[call("t2", x="2")], [call("t2", x="3")], text("w2 done")],
        },
    ),
    "route back in a Workflow": Case(
        _route,
        {"w1": [[call("t1", x="1")], text("again"), [call("t1", x="2")], text("stop")]},
    ),
    "two turns of a Workflow": Case(
        lambda w: workflow(("START", function(w, "f"), llm(w, "w1", "t1"))),
        {"w1": [[call("t1", x="1")], text("one"), [call("t1", x="2")], text("two")]},
        ("go", "again"),
    ),
    "a chat node that has had its say beside one that waits": Case(
        lambda w: workflow(("START", (chat(w, "router", llm(w, "inner")), llm(w, "beside", "t1")))),
        {**_HANDED_OVER, "router": [text("router done")]},
        any_order=True,
    ),
    "a chat node that hands over beside another": Case(
        lambda w: workflow(
            (
                "START",
                (chat(w, "router", llm(w, "inner", "t0")), llm(w, "beside", "t1")),
                JoinNode(name="join"),
                llm(w, "after", "t2"),
            )
        ),
        _HANDED_OVER,
        any_order=True,
    ),
    "a nested chat node and an agent behind it": Case(
        lambda w: workflow(
            (
                "START",
                workflow(("START", chat(w, "router", llm(w, "inner", "t0"))), name="nested"),
                llm(w, "after", "t2"),
            )
        ),
        _HANDED_OVER,
    ),
    "a nested chat node that hands over to a sequence": Case(
        lambda w: workflow(
            (
                "START",
                workflow(
                    (
                        "START",
                        chat(
                            w,
                            "router",
                            around(
                                w,
                                SequentialAgent,
                                "seq",
                                llm(w, "inner", "t0"),
                                llm(w, "beside", "t1"),
                            ),
                        ),
                    ),
                    name="nested",
                ),
                llm(w, "after", "t2"),
            )
        ),
        {**_HANDED_OVER, "router": [[move("seq")]]},
    ),
    "composite agents as nodes": Case(
        lambda w: workflow(
            (
                "START",
                around(w, SequentialAgent, "seq", llm(w, "one", "t0"), llm(w, "two", "t1")),
                around(w, LoopAgent, "loop", llm(w, "three", "t2"), max_iterations=2),
                llm(w, "after", "t2"),
            )
        ),
        {
            "one": _HANDED_OVER["inner"],
            "two": _HANDED_OVER["beside"],
            "three": [[call("t2", x="4")], text("first"), [call("t2", x="5")], text("second")],
            "after": _HANDED_OVER["after"],
        },
    ),
    "an agent that is tried again": Case(
        lambda w: workflow(
            (
                "START",
                node(
                    llm(w, "w1", "t1"),
                    retry_config=RetryConfig(max_attempts=3, initial_delay=0.001),
                ),
                llm(w, "after", "t2"),
            )
        ),
        {
            **_HANDED_OVER,
            "w1": [
                [call("t1", x="1")],
                ValueError("away"),
                [call("t1", x="2")],
                ValueError("away"),
                [call("t1", x="3")],
                text("w1 done"),
            ],
        },
    ),
    "a limit of one node at a time": Case(
        lambda w: Workflow(
            name="wf",
            max_concurrency=1,
            edges=[
                (
                    "START",
                    (llm(w, "inner", "t0"), llm(w, "beside", "t1")),
                    JoinNode(name="join"),
                    llm(w, "after", "t2"),
                )
            ],
        ),
        {**_HANDED_OVER, "inner": [[call("t0", x="1")], [call("t0", x="2")], text("inner done")]},
        any_order=True,
    ),
}
