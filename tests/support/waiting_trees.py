"""Trees in which several branches wait at once, by name; tools are those of ``differential.kit``."""

from __future__ import annotations

from typing import Any

from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.events.request_input import RequestInput
from google.adk.workflow import JoinNode, Workflow

from support.adk_oracle import call, text
from support.custom_agents import described
from support.custom_trees import A, C, CustomTree, llms
from support.random_trees import make_llm
from support.tree_cases import move
from support.tree_oracle import TreeWorld

ANSWER = "blue"
QUESTION_NODE = "colour"
B = [[call("job_b", x="1")], text("b done")]
D = [[call("read_d", x="1")], text("d done")]


def question(world: TreeWorld) -> Any:
    """A node that asks the user; in plain ADK one that has the answer."""

    def colour(node_input: Any) -> Any:
        if getattr(world, "is_plain", False):
            return ANSWER
        return RequestInput(message="Which colour?", response_schema={"type": "string"})

    colour.__name__ = QUESTION_NODE
    return colour


TREES: dict[str, CustomTree] = {
    "parallel": CustomTree(
        lambda w: described(
            SequentialAgent,
            "root",
            described(ParallelAgent, "par", *llms(w, "a", "b", "c")),
            make_llm(w, "d"),
        ),
        {"a": A, "b": B, "c": C, "d": D},
        any_order=True,
    ),
    "nested": CustomTree(
        # The branches wait twice, and each of the two inner ones in a place of its own.
        lambda w: described(
            ParallelAgent,
            "root",
            described(LoopAgent, "loop", make_llm(w, "a"), max_iterations=2),
            described(
                SequentialAgent,
                "seq",
                described(ParallelAgent, "par", *llms(w, "b", "c")),
                make_llm(w, "d"),
            ),
        ),
        {"a": A, "b": B, "c": C, "d": [[call("job_d", x="1")], text("d done")]},
        any_order=True,
    ),
    "rejected": CustomTree(
        lambda w: described(ParallelAgent, "root", *llms(w, "a", "b")),
        {
            "a": [[call("ask_a", x="9"), call("ask_a", x="14")], text("a done")],
            "b": [[call("job_b", x="1"), call("ask_b", x="9")], text("b done")],
        },
        any_order=True,
    ),
    "transfer": CustomTree(
        lambda w: make_llm(w, "root", sub_agents=[make_llm(w, "a")]),
        {
            "root": [[move("a")]],
            "a": [[call("ask_a", x="1"), call("job_a", x="2"), call("read_a", x="3")], text("a")],
        },
        messages=("go",),
    ),
    "loop": CustomTree(
        lambda w: described(LoopAgent, "root", *llms(w, "d", "a"), max_iterations=2),
        {"a": A, "d": D},
        messages=("go",),
    ),
    "workflow": CustomTree(
        lambda w: Workflow(
            name="root",
            edges=[
                (
                    "START",
                    (make_llm(w, "a"), question(w), make_llm(w, "b")),
                    JoinNode(name="join"),
                    make_llm(w, "d"),
                )
            ],
        ),
        {"a": A, "b": B, "d": D},
        messages=("go",),
        any_order=True,
    ),
}
