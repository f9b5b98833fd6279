"""Trees around agents with run loops of their own, by name.

An agent's tools are named ``<kind>_<agent>``; what kinds there are, and which of them wait for a
person, is ``differential.kit``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.workflow import BaseNode, JoinNode, Workflow

from support.adk_oracle import call, text
from support.custom_agents import (
    Countdown,
    InOrder,
    Judge,
    Rounds,
    Router,
    Stamp,
    Wrapper,
    described,
)
from support.random_trees import make_llm
from support.tree_cases import move
from support.tree_oracle import Scripts, TreeWorld


@dataclass(frozen=True)
class CustomTree:
    """One tree.

    Attributes:
        build: Makes the agents in a world.
        scripts: What each agent's model answers, over and over.
        resumable: Agents that have to be named as such.
        any_order: Whether branches run side by side somewhere.
    """

    build: Callable[[TreeWorld], BaseNode]
    scripts: Scripts
    messages: Sequence[str] = ("go", "again")
    resumable: Sequence[str] = ()
    any_order: bool = False


A: Sequence[Any] = [[call("ask_a", x="1"), call("read_a", x="2")], text("a done")]
B: Sequence[Any] = [[call("job_b", x="1")], [call("ask_b", x="2")], text("b done")]
C: Sequence[Any] = [[call("confirm_c", x="1")], text("c done")]
A_TWICE: Sequence[Any] = [
    [call("ask_a", x="1")],
    text("a 1"),
    [call("ask_a", x="2")],
    text("a 2"),
]


def llms(world: TreeWorld, *names: str) -> list[Any]:
    return [make_llm(world, name) for name in names]


TREES: dict[str, CustomTree] = {
    "in order": CustomTree(
        lambda w: described(InOrder, "root", *llms(w, "a", "b")), {"a": A, "b": B}
    ),
    "in order in a sequence": CustomTree(
        lambda w: described(
            SequentialAgent,
            "root",
            Stamp(name="first"),
            described(InOrder, "mine", *llms(w, "a", "b")),
            Stamp(name="last"),
            make_llm(w, "c"),
        ),
        {"a": A, "b": B, "c": C},
    ),
    "in order in a loop": CustomTree(
        lambda w: described(
            LoopAgent,
            "root",
            described(InOrder, "mine", make_llm(w, "a"), Stamp(name="stamp"), make_llm(w, "c")),
            max_iterations=2,
        ),
        {"a": A, "c": C},
        messages=("go",),
    ),
    "in order in parallel": CustomTree(
        lambda w: described(
            ParallelAgent,
            "root",
            described(InOrder, "mine", *llms(w, "a", "c")),
            make_llm(w, "b"),
        ),
        {"a": A, "b": B, "c": C},
        resumable=["mine"],
        any_order=True,
    ),
    "in order that escalates": CustomTree(
        lambda w: described(
            LoopAgent, "root", described(InOrder, "mine", *llms(w, "a", "b")), max_iterations=3
        ),
        {"a": [[call("exit_loop"), call("ask_a", x="1")], text("not reached")], "b": B},
    ),
    "in order with a transfer": CustomTree(
        lambda w: described(
            InOrder,
            "root",
            make_llm(w, "a", sub_agents=[make_llm(w, "x", disallow_transfer_to_parent=True)]),
            make_llm(w, "b"),
        ),
        {
            "a": [[call("ask_a", x="1")], [move("x")]],
            "x": [[call("job_x", x="1")], text("x done")],
            "b": B,
        },
    ),
    "in order behind a transfer": CustomTree(
        lambda w: make_llm(w, "root", sub_agents=[described(InOrder, "mine", *llms(w, "a", "b"))]),
        {"root": [[call("ask_root", x="1")], [move("mine")]], "a": A, "b": B},
    ),
    "router": CustomTree(
        # a's own tool sets the key: the choice of a turn stays, the next turn makes another.
        lambda w: described(Router, "root", *llms(w, "a", "b"), key="ask_a_state"),
        {"a": [[call("ask_a", x="1")], [call("job_a", x="2")], text("a done")], "b": B},
    ),
    "router behind a transfer": CustomTree(
        lambda w: make_llm(
            w,
            "root",
            sub_agents=[
                described(
                    SequentialAgent,
                    "seq",
                    described(Router, "pick", *llms(w, "a", "b"), key="none"),
                    make_llm(w, "c"),
                )
            ],
        ),
        {"root": [[call("ask_root", x="1")], [move("seq")]], "a": A, "b": B, "c": C},
    ),
    "rounds": CustomTree(
        lambda w: described(Rounds, "root", *llms(w, "a", "b"), key="ask_a_state", value="2!"),
        {
            "a": A_TWICE,
            "b": [[call("job_b", x="1")], text("b 1"), [call("confirm_b", x="2")], text("b 2")],
        },
        messages=("go",),
    ),
    "rounds in parallel": CustomTree(
        lambda w: described(
            ParallelAgent,
            "root",
            described(Rounds, "mine", make_llm(w, "a"), key="ask_a_state", value="2!"),
            described(LoopAgent, "theirs", make_llm(w, "b"), max_iterations=2),
        ),
        {
            "a": A_TWICE,
            "b": B,
        },
        messages=("go",),
        resumable=["mine"],
        any_order=True,
    ),
    "rounds around parallel agents": CustomTree(
        lambda w: described(
            Rounds,
            "root",
            described(ParallelAgent, "par", *llms(w, "a", "b")),
            key="ask_a_state",
            value="2!",
        ),
        {
            "a": A_TWICE,
            "b": [[call("job_b", x="1")], text("b 1"), text("b 2")],
        },
        messages=("go",),
        any_order=True,
    ),
    "rounds that reset nothing": CustomTree(
        lambda w: described(
            Rounds,
            "root",
            described(
                ParallelAgent,
                "par",
                described(SequentialAgent, "seq", make_llm(w, "a"), Stamp(name="stamp")),
                make_llm(w, "b"),
            ),
            make_llm(w, "c"),
            key="ask_a_state",
            value="2!",
            resets=False,
        ),
        {
            "a": A_TWICE,
            "b": [[call("job_b", x="1")], text("b 1"), [call("job_b", x="2")], text("b 2")],
            "c": C,
        },
        messages=("go",),
        any_order=True,
    ),
    "judge in a loop": CustomTree(
        lambda w: described(
            LoopAgent,
            "root",
            make_llm(w, "a"),
            Judge(name="judge", key="ask_a_state", value="2!"),
            max_iterations=5,
        ),
        {"a": A_TWICE},
        messages=("go",),
    ),
    "wrapper": CustomTree(lambda w: described(Wrapper, "root", make_llm(w, "a")), {"a": A}),
    "wrapper around parallel agents": CustomTree(
        lambda w: described(
            SequentialAgent,
            "root",
            described(Wrapper, "wrap", described(ParallelAgent, "par", *llms(w, "a", "b"))),
            make_llm(w, "c"),
        ),
        {"a": A, "b": B, "c": C},
        any_order=True,
    ),
    "wrapper behind a transfer": CustomTree(
        lambda w: make_llm(w, "root", sub_agents=[described(Wrapper, "wrap", make_llm(w, "a"))]),
        {"root": [[move("wrap")]], "a": A},
    ),
    "all of them": CustomTree(
        lambda w: described(
            InOrder,
            "root",
            described(
                LoopAgent,
                "loop",
                described(Wrapper, "wrap", described(InOrder, "inner", make_llm(w, "a"))),
                Judge(name="judge", key="ask_a_state", value="2!"),
                max_iterations=4,
            ),
            described(Router, "pick", *llms(w, "b", "c"), key="none"),
        ),
        {
            "a": A_TWICE,
            "b": B,
            "c": C,
        },
        messages=("go",),
    ),
    "leaves beside waits": CustomTree(
        lambda w: described(
            ParallelAgent,
            "root",
            described(SequentialAgent, "seq", Stamp(name="stamp"), make_llm(w, "a")),
            make_llm(w, "b"),
        ),
        {"a": A, "b": B},
        any_order=True,
    ),
    "a leaf that resumes beside waits": CustomTree(
        lambda w: described(ParallelAgent, "root", Countdown(name="count"), *llms(w, "a", "b")),
        {"a": A, "b": B},
        resumable=["count"],
        any_order=True,
    ),
    "a leaf that is handed over to": CustomTree(
        lambda w: make_llm(w, "root", sub_agents=[described(Stamp, "stamp")]),
        {"root": [[call("ask_root", x="1"), move("stamp")]]},
        messages=("go",),
    ),
    "leaves in a Workflow": CustomTree(
        lambda w: Workflow(
            name="root",
            edges=[
                (
                    "START",
                    make_llm(w, "a"),
                    Stamp(name="stamp"),
                    (make_llm(w, "b"), Stamp(name="beside")),
                    JoinNode(name="join"),
                    make_llm(w, "c"),
                )
            ],
        ),
        {"a": A, "b": B, "c": C},
        any_order=True,
    ),
}
