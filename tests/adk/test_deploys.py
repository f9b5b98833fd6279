"""A release that changes the agent while sessions wait: what goes on, and what fails and says why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.workflow import START, Workflow

from dex_agents import AgentSessionFlow, AgentSessionOptions, FinishedTurn, ToolEffect, ToolPolicy
from dex_agents.testing import PrivateEngine, private_engine
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel, tool_call, tool_results
from support.serving import serve

TURN_S = 40.0
OPTIONS = AgentSessionOptions(model_attempts=2)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[PrivateEngine]:
    """It stays while the releases change."""
    async with private_engine(tmp_path / "engine.db") as running:
        yield running


class Release:
    """Agents that call one tool each, and what they did. The tool of ``b`` waits for approval."""

    def __init__(self, make: Callable[[Release], BaseAgent | Workflow]) -> None:
        self.ran: list[str] = []
        self.asked: list[str] = []
        self._policies: dict[str, ToolPolicy] = {}
        self.root = make(self)
        self.flow: AgentSessionFlow = adk_agent_session_flow(
            self.root, flow_type="Deployed", tool_policies=self._policies, options=OPTIONS
        )

    def agents(self, *names: str) -> list[BaseAgent]:
        """One of each name."""
        return [self._agent(name) for name in names]

    def _agent(self, name: str) -> LlmAgent:
        def act() -> str:
            """Act."""
            self.ran.append(name)
            return "done"

        def answers(answer: Any) -> Callable[[LlmRequest], Any]:
            def asked(request: LlmRequest) -> Any:
                self.asked.append(name)
                return answer

            return asked

        act.__name__ = f"act_{name}"
        self._policies[act.__name__] = ToolPolicy(ToolEffect.READ, requires_approval=name == "b")
        script = [
            answers(tool_call(act.__name__)),
            answers(f"{name} did"),
            answers(f"{name} again"),
        ]
        return LlmAgent(name=name, model=ScriptedModel(script), tools=[act])


def in_order(*names: str, root: str = "root") -> Callable[[Release], BaseAgent]:
    return lambda release: SequentialAgent(name=root, sub_agents=release.agents(*names))


def side_by_side(release: Release) -> BaseAgent:
    return ParallelAgent(name="root", sub_agents=release.agents("a", "b"))


def chain(*names: str) -> Callable[[Release], Workflow]:
    return lambda release: Workflow(name="root", edges=[(START, *release.agents(*names))])


async def deploy(engine: PrivateEngine, folder: Path, old: Release, new: Release) -> FinishedTurn:
    """A turn that waits for an approval in one release and gets it in the next."""
    async with serve(engine.address, old.flow, folder) as sessions:
        await sessions.start_session("s", "go")
        waiting = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
    (interrupt,) = waiting.pending_interrupts
    assert (interrupt.tool_name, old.ran) == ("act_b", ["a"])
    async with serve(engine.address, new.flow, folder) as sessions:
        await sessions.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        done = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert done.last_turn is not None
    return done.last_turn


async def test_a_tree_with_more_agents_goes_on(engine: PrivateEngine, tmp_path: Path) -> None:
    new = Release(in_order("a", "n", "b", "c"))
    turn = await deploy(engine, tmp_path, Release(in_order("a", "b", "c")), new)
    assert (turn.error, turn.final_text) == ("", "c did")
    assert new.ran == ["b", "c"]


async def test_no_other_agent_is_asked_in_the_place_of_one_that_is_gone(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    new = Release(in_order("a", "renamed"))
    turn = await deploy(engine, tmp_path, Release(in_order("a", "b")), new)
    assert "waited for 'act_b' of agent 'b', which is not in the agent tree any more" in turn.error
    assert (new.asked, new.ran) == ([], [])
    async with serve(engine.address, new.flow, tmp_path) as sessions:
        await sessions.send_user_message("s", "again")
        last = (await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)).last_turn
    assert last is not None and last.error == ""
    assert new.ran == ["a", "renamed"]


@pytest.mark.parametrize(
    ("old", "new", "ran"),
    [
        pytest.param(in_order("a", "b"), side_by_side, ["b"], id="another kind of root"),
        pytest.param(in_order("a", "b"), in_order("a", "b", root="top"), ["b"], id="another root"),
        pytest.param(chain("a", "b"), chain("a", "n", "b"), ["b"], id="a node before"),
    ],
)
async def test_a_tree_that_adk_cannot_go_on_in_fails_the_turn_and_says_why(
    engine: PrivateEngine, tmp_path: Path, old: Any, new: Any, ran: list[str]
) -> None:
    release = Release(new)
    turn = await deploy(engine, tmp_path, Release(old), release)
    assert turn.error.startswith(
        "the turn could not go on, as the agent tree is another one than when it began: "
    )
    assert release.ran == ran  # approved, and told to the next model


async def test_what_may_pass_is_tried_again_in_another_tree(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    new = Release(in_order("a", "b", "c"))
    failures: list[Exception] = [ConnectionError("the prompt store is away")]

    def instruct(context: ReadonlyContext) -> str:
        if failures:
            raise failures.pop()
        return "Act."

    b = new.root.find_agent("b") if isinstance(new.root, BaseAgent) else None
    assert isinstance(b, LlmAgent)
    b.instruction = instruct
    turn = await deploy(engine, tmp_path, Release(in_order("a", "b")), new)
    assert (turn.error, turn.final_text, failures) == ("", "c did", [])
    assert new.ran == ["b", "c"]


@pytest.mark.parametrize(
    ("effect", "runs"),
    [
        (ToolEffect.READ, 1),
        (ToolEffect.IDEMPOTENT_WRITE, 0),
        (ToolEffect.NON_IDEMPOTENT_WRITE, 0),
    ],
)
async def test_a_call_that_waited_as_a_read_does_not_run_as_a_write(
    engine: PrivateEngine, tmp_path: Path, effect: ToolEffect, runs: int
) -> None:
    ran: list[str] = []

    def release(effect: ToolEffect) -> AgentSessionFlow:
        def look() -> str:
            """Look."""
            ran.append("look")
            return "seen"

        def report(request: LlmRequest) -> str:
            return str(tool_results(request)[-1].response)

        agent = LlmAgent(
            name="root", model=ScriptedModel([tool_call("look"), report]), tools=[look]
        )
        policy = ToolPolicy(effect, requires_approval=True)
        return adk_agent_session_flow(
            agent, flow_type="Deployed", tool_policies={"look": policy}, options=OPTIONS
        )

    async with serve(engine.address, release(ToolEffect.READ), tmp_path) as sessions:
        await sessions.start_session("s", "go")
        waiting = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
    async with serve(engine.address, release(effect), tmp_path) as sessions:
        (interrupt,) = waiting.pending_interrupts
        await sessions.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        last = (await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)).last_turn
    assert last is not None and last.error == ""
    assert len(ran) == runs
    if not runs:
        assert "The tool did not run" in last.final_text
        assert f"its effect was 'read', and has the effect '{effect}' now" in last.final_text
