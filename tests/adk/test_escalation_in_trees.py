"""A branch escalates after rounds of its own, in several places of a tree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.tools.exit_loop_tool import exit_loop

from dex_agents._effects import ToolEffect
from support.adk_oracle import call, run_plain, text
from support.tree_cases import around, llm, move, slow_tool
from support.tree_oracle import Scripts, TreeWorld, compare_tree

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Build = Callable[[TreeWorld, BaseAgent], BaseAgent]


def in_loop_of_sequence(world: TreeWorld, parallel: BaseAgent, name: str = "root") -> BaseAgent:
    loop = around(world, LoopAgent, "loop", parallel, max_iterations=3)
    found: BaseAgent = around(world, SequentialAgent, name, loop, llm(world, "last", "t3"))
    return found


def in_branch(world: TreeWorld, parallel: BaseAgent) -> BaseAgent:
    inner = around(world, SequentialAgent, "seq", parallel, llm(world, "last", "t3"))
    found: BaseAgent = around(world, ParallelAgent, "outer", inner, llm(world, "side", "t4"))
    return found


def below_node(world: TreeWorld, parallel: BaseAgent) -> BaseAgent:
    return llm(world, "root", sub_agents=[in_loop_of_sequence(world, parallel, "seq")])


SHAPES: dict[str, Build] = {
    shape.__name__: shape for shape in (in_loop_of_sequence, in_branch, below_node)
}
SLOW = [call("slow", x="1")]
EXIT = call("exit_loop")
SCRIPTS: dict[str, Scripts] = {
    "a round later": {
        "ends": [[call("t1", x="1")], [EXIT]],
        "waits": [[call("t2", x="2")], SLOW],
    },
    "beside a tool": {
        "ends": [[call("t1", x="1"), EXIT]],
        "waits": [[call("t2", x="2")], SLOW],
    },
}
REST: Scripts = {
    "root": [[move("seq")]],
    "last": [[call("t3", x="3")], text("last done")],
    "side": [[call("t4", x="4")], text("side done")],
}


@pytest.mark.parametrize("waits_first", [False, True])
@pytest.mark.parametrize("when", SCRIPTS)
@pytest.mark.parametrize("shape", SHAPES)
async def test_what_the_other_branch_waits_for_does_not_run(
    shape: str, when: str, waits_first: bool
) -> None:
    scripts = {**REST, **SCRIPTS[when]}

    def build(world: TreeWorld) -> BaseAgent:
        branches = [
            llm(world, "ends", "t1", exit_loop),
            llm(world, "waits", "t2", slow_tool()),
        ]
        ordered = reversed(branches) if waits_first else branches
        return SHAPES[shape](world, around(world, ParallelAgent, "par", *ordered))

    plain_world = TreeWorld(scripts)
    plain = await run_plain(build, plain_world, ["go"])
    for event in plain.events:
        # Below a node, plain ADK leaves the agent behind in a branch that has ended.
        if event["author"] == "last" and shape == "below_node":
            event.pop("branch", None)
    driver = await compare_tree(
        build,
        scripts,
        plain=plain,
        plain_world=plain_world,
        any_order=True,
        # A cancelled branch has no more callbacks, in plain ADK those that its end reaches.
        compare_callbacks=False,
        default_tool_effect=ToolEffect.READ,
    )
    assert "slow" not in [item.tool_name for item in driver.requested]
