"""An escalation beside calls that wait for their Step: nothing runs that plain ADK would not run.

Behind the tests of one branch beside another come those of a branch that escalates after rounds of
its own, in several places of a tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.workflow import BaseNode

from dex_agents._effects import ToolEffect
from support.adk_oracle import call, run_plain, text
from support.random_trees import make_llm
from support.tree_cases import around, llm, move, slow_tool
from support.tree_oracle import Scripts, TreeLlm, TreeWorld, compare_tree

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EXIT = call("exit_loop")
LOOP_TURNS = 300  # more than ADK needs to hand any event on


class EscalationWorld(TreeWorld):
    """Knows when agent ``b`` has called its tool."""

    def __init__(self, scripts: Scripts) -> None:
        super().__init__(scripts)
        self.call_came = asyncio.Event()

    def log(self, entry: str) -> None:
        super().log(entry)
        if entry == "before_tool b":
            self.call_came.set()


class LateLlm(TreeLlm):
    """Answers when the call of the other branch has come to where it waits."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        await self.world.call_came.wait()
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


class ThinkingLlm(TreeLlm):
    """Is asked, and answers only after everything else."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.world.call_came.set()
        await asyncio.Event().wait()
        yield LlmResponse()


def parallel(world: TreeWorld, exits: type[TreeLlm]) -> ParallelAgent:
    found: ParallelAgent = around(
        world,
        ParallelAgent,
        "par",
        llm(world, "a", exit_loop, model=exits),
        llm(world, "b", slow_tool()),
    )
    return found


OUTSIDE: dict[str, Callable[[TreeWorld, ParallelAgent], BaseNode]] = {
    "nothing": lambda _, par: par,
    "loop": lambda _, par: LoopAgent(name="loop", max_iterations=2, sub_agents=[par]),
    "sequence": lambda world, par: SequentialAgent(name="seq", sub_agents=[par, llm(world, "z")]),
    "loop and sequence": lambda world, par: LoopAgent(
        name="loop",
        max_iterations=2,
        sub_agents=[SequentialAgent(name="seq", sub_agents=[par, llm(world, "z")])],
    ),
}
SCRIPTS: Scripts = {
    "a": [[EXIT], text("a again")],
    "b": [[call("slow", x="1")], text("b again")],
    "z": [text("z"), text("z again")],
}


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("exits", [TreeLlm, LateLlm], ids=["at once", "when the other waits"])
async def test_a_branch_that_escalates_ends_the_calls_beside_it(
    exits: type[TreeLlm], outside: str
) -> None:
    def build(world: TreeWorld) -> BaseNode:
        return OUTSIDE[outside](world, parallel(world, exits))

    plain_world, world = EscalationWorld(SCRIPTS), EscalationWorld(SCRIPTS)
    plain = await run_plain(build, plain_world, ["go"])
    # Its call had been put off when it was cancelled, see docs/guide/differences.md.
    plain_world.callbacks.remove("after b")
    await compare_tree(
        build,
        SCRIPTS,
        any_order=True,
        plain=plain,
        plain_world=plain_world,
        world=world,
        repeats=1,
        default_tool_effect=ToolEffect.UNCLASSIFIED,
    )
    assert tuple(c for c in world.callbacks if c.endswith(" par")) == ("before par", "after par")


async def test_a_loop_that_was_told_to_end_ends_behind_a_call_that_waited() -> None:
    def build(world: TreeWorld) -> BaseNode:
        below = SequentialAgent(name="seq", sub_agents=[make_llm(world, "a"), make_llm(world, "b")])
        return LoopAgent(name="loop", max_iterations=2, sub_agents=[below])

    scripts: Scripts = {
        "a": [[EXIT], text("a again")],
        "b": [[call("t_b", x="1")], text("b"), text("b again")],
    }
    await compare_tree(build, scripts, default_tool_effect=ToolEffect.READ)


async def test_branches_that_were_given_up_run_in_the_next_turn() -> None:
    def build(world: TreeWorld) -> BaseNode:
        return parallel(world, LateLlm)

    plain_world, world = EscalationWorld(SCRIPTS), EscalationWorld(SCRIPTS)
    messages = ["go", "once more"]
    await compare_tree(
        build,
        SCRIPTS,
        messages,
        any_order=True,
        plain=await run_plain(build, plain_world, messages),
        plain_world=plain_world,
        world=world,
        compare_callbacks=False,
        repeats=1,
        default_tool_effect=ToolEffect.UNCLASSIFIED,
    )
    assert world.cursors == {"a": 2, "b": 2}


async def test_a_model_that_is_asked_when_another_branch_escalates_is_given_up() -> None:
    def build(world: TreeWorld) -> BaseNode:
        return ParallelAgent(
            name="par",
            sub_agents=[
                llm(world, "a", exit_loop, model=LateLlm),
                llm(world, "b", model=ThinkingLlm),
            ],
        )

    plain_world, world = EscalationWorld(SCRIPTS), EscalationWorld(SCRIPTS)
    await compare_tree(
        build,
        SCRIPTS,
        plain=await run_plain(build, plain_world, ["go"]),
        plain_world=plain_world,
        world=world,
        repeats=1,
    )
    assert world.cursors == {"a": 1}


PlaceBuild = Callable[[TreeWorld, BaseAgent], BaseAgent]


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


SHAPES: dict[str, PlaceBuild] = {
    shape.__name__: shape for shape in (in_loop_of_sequence, in_branch, below_node)
}
SLOW = [call("slow", x="1")]
ROUNDS: dict[str, Scripts] = {
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
@pytest.mark.parametrize("when", ROUNDS)
@pytest.mark.parametrize("shape", SHAPES)
async def test_what_the_other_branch_waits_for_does_not_run(
    shape: str, when: str, waits_first: bool
) -> None:
    scripts = {**REST, **ROUNDS[when]}

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
