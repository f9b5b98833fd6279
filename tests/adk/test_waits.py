"""Waits in the one pending list: long-running work, questions, approvals that tools ask for."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.tools.get_user_choice_tool import get_user_choice_tool as get_user_choice
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow

from dex_agents import (
    InterruptError,
    InvalidInputError,
    PendingInterrupt,
    ToolEffect,
    ToolPolicy,
)
from support.adk_oracle import ScriptedLlm, World, call, text
from support.waiting import pending, session

TURN_S = 40.0


def responses(world: World) -> list[Any]:
    return [
        part["function_response"]["response"]
        for part in world.requests[-1]["contents"][-1]["parts"]
    ]


async def test_long_running_tools_start_once_and_wait(tmp_path: Path) -> None:
    world = World([[call("render", x=n) for n in range(3)], text("all there")])

    def render(x: int, tool_context: ToolContext) -> Any:
        """Render."""
        world.ran("render", x=x)
        tool_context.state[f"job{x}"] = "started"
        return {"job": x} if x else None

    root = LlmAgent(
        name="root",
        model=ScriptedLlm(world=world),
        instruction="{job2?}",
        tools=[LongRunningFunctionTool(render)],
    )
    async with session(root, tmp_path) as sessions:
        waiting = await pending(sessions, 3)
        assert [item.kind for item in waiting] == ["long_running"] * 3
        assert [item.payload for item in waiting] == [None, {"job": 1}, {"job": 2}]
        with pytest.raises(
            InterruptError, match="answer of kind long_running; use answer_question"
        ):
            await sessions.resolve_interrupt("s", waiting[0].interrupt_id, approved=True)
        with pytest.raises(InvalidInputError, match="None, which is no answer"):
            await sessions.answer_question("s", waiting[0].interrupt_id, None)
        await sessions.answer_question("s", waiting[2].interrupt_id, {"url": "c"})
        with pytest.raises(InterruptError, match=r"already answered|not pending"):
            await sessions.answer_question("s", waiting[2].interrupt_id, {"url": "other"})
        await sessions.answer_question("s", waiting[0].interrupt_id, "a")
        assert len(world.requests) == 1
        await sessions.answer_question("s", waiting[1].interrupt_id, [1])
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        page = await sessions.list_messages("s")
    assert responses(world) == [{"result": "a"}, {"result": [1]}, {"url": "c"}]
    assert len(world.executed) == 3
    assert "started" in world.requests[-1]["config"]["system_instruction"]
    calls = page.messages[1].framework_item
    assert len(calls["long_running_tool_ids"]) == 3


async def test_the_model_reads_what_a_user_has_chosen(tmp_path: Path) -> None:
    """ADK's tool keeps its early value from the model; that must not hold for the answer."""
    world = World([[call("get_user_choice", options=["red", "blue"])], text("Blue it is.")])
    root = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[get_user_choice])
    async with session(root, tmp_path) as sessions:
        (item,) = await pending(sessions)
        assert (item.kind, item.arguments) == ("long_running", {"options": ["red", "blue"]})
        await sessions.answer_question("s", item.interrupt_id, "blue")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert responses(world) == [{"result": "blue"}]
    assert snapshot.last_turn is not None
    assert snapshot.last_turn.final_text == "Blue it is."


async def test_an_empty_answer_is_an_answer(tmp_path: Path) -> None:
    answers: list[Any] = [{}, [], "", 0, False]
    world = World([[call("render", x=n) for n in range(len(answers))], text("all there")])

    def render(x: int) -> None:
        """Render."""

    root = LlmAgent(
        name="root", model=ScriptedLlm(world=world), tools=[LongRunningFunctionTool(render)]
    )
    async with session(root, tmp_path) as sessions:
        for item, answer in zip(await pending(sessions, len(answers)), answers, strict=True):
            await sessions.answer_question("s", item.interrupt_id, answer)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert responses(world) == [{}, *({"result": answer} for answer in answers[1:])]


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_with_payload_that_the_tool_asks_for(
    approved: bool, tmp_path: Path
) -> None:
    world = World([[call("leave", days=9)], text("done")])

    def leave(days: int, tool_context: ToolContext) -> Any:
        """Leave."""
        world.ran("leave", days=days)
        confirmation = tool_context.tool_confirmation
        if confirmation is None:
            tool_context.request_confirmation(hint="How many?", payload={"approved_days": 0})
            return {"status": "pending"}
        if not confirmation.confirmed:
            return {"status": "refused"}
        return {"status": "ok", "days": (confirmation.payload or {})["approved_days"]}

    root = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[leave])
    async with session(root, tmp_path) as sessions:
        (asked,) = await pending(sessions)
        assert (asked.kind, asked.hint, asked.payload) == (
            "approval",
            "How many?",
            {"approved_days": 0},
        )
        with pytest.raises(InterruptError, match="asks for an approval"):
            await sessions.answer_question("s", asked.interrupt_id, {"approved_days": 3})
        await sessions.resolve_interrupt(
            "s", asked.interrupt_id, approved=approved, payload={"approved_days": 3}
        )
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert responses(world) == [{"status": "ok", "days": 3} if approved else {"status": "refused"}]


async def test_a_workflow_asks_the_user_and_goes_on(tmp_path: Path) -> None:
    world = World([text("drafted")])
    seen: list[Any] = []
    answer = {"publish": True, "notes": {"by": ["Ada", None], "result": {}}}

    def ask(node_input: Any) -> Any:
        world.ran("ask")
        yield RequestInput(
            message="Publish?",
            payload={"draft": "drafted"},
            response_schema={
                "type": "object",
                "properties": {"publish": {"type": "boolean"}, "notes": {"type": "object"}},
                "required": ["publish"],
            },
        )

    def publish(node_input: Any) -> str:
        seen.append(node_input)
        return f"published: {node_input}"

    writer = LlmAgent(name="writer", model=ScriptedLlm(world=world))
    root = Workflow(name="flow", edges=[("START", writer, ask, publish)])
    async with session(root, tmp_path) as sessions:
        (asked,) = await pending(sessions)
        assert (asked.kind, asked.hint, asked.payload) == (
            "input",
            "Publish?",
            {"draft": "drafted"},
        )
        with pytest.raises(InterruptError, match="of another form: 'publish' is a required"):
            await sessions.answer_question("s", asked.interrupt_id, {"x": 1})
        await sessions.answer_question("s", asked.interrupt_id, answer)
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and not snapshot.last_turn.error
    assert seen == [answer]
    assert len(world.requests) == 1
    assert world.executed == [("ask", {})]


async def test_a_review_that_loops_back_asks_anew_each_time(tmp_path: Path) -> None:
    world = World([text("draft 1"), text("draft 2"), text("draft 3")])

    def review(node_input: Any) -> Any:
        yield RequestInput(message=f"Publish {node_input}?", response_schema=None)

    def judge(node_input: Any) -> Any:
        yield Event(output=node_input, route="publish" if node_input == "yes" else "again")  # type: ignore[call-arg]

    def publish(node_input: Any) -> str:
        world.ran("publish", answer=node_input)
        return "published"

    writer = LlmAgent(name="writer", model=ScriptedLlm(world=world))
    root = Workflow(
        name="flow",
        edges=[("START", writer, review, judge), (judge, {"again": writer, "publish": publish})],
    )
    asked: list[PendingInterrupt] = []
    async with session(root, tmp_path) as sessions:
        for answer in ("no", "still no", "yes"):
            (question,) = await pending(sessions)
            asked.append(question)
            await sessions.answer_question("s", question.interrupt_id, answer)
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and not snapshot.last_turn.error
    assert [item.hint for item in asked] == [f"Publish draft {n}?" for n in (1, 2, 3)]
    assert len({item.interrupt_id for item in asked}) == 3
    assert world.executed == [("publish", {"answer": "yes"})]
    assert len(world.requests) == 3


async def test_a_workflow_goes_on_behind_a_gated_tool_of_its_agent(tmp_path: Path) -> None:
    world = World([call("book", x="room"), text("booked")])

    def before(node_input: Any) -> str:
        world.ran("before")
        return "please"

    def book(x: str) -> str:
        """Book."""
        world.ran("book", x=x)
        return "ok"

    def behind(node_input: Any) -> str:
        world.ran("behind", node_input=node_input)
        return "done"

    agent = LlmAgent(name="booker", model=ScriptedLlm(world=world), tools=[book])
    root = Workflow(name="flow", edges=[("START", before, agent, behind)])
    gate = {"book": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=True)}
    async with session(root, tmp_path, tool_policies=gate) as sessions:
        (asked,) = await pending(sessions)
        assert world.executed == [("before", {})]
        await sessions.resolve_interrupt("s", asked.interrupt_id, approved=True)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert world.executed == [
        ("before", {}),
        ("book", {"x": "room"}),
        ("behind", {"node_input": "booked"}),
    ]


async def test_a_wait_ends_at_its_deadline(tmp_path: Path) -> None:
    world = World([[call("render")], text("gave up")])

    def render() -> None:
        """Render."""

    root = LlmAgent(
        name="root", model=ScriptedLlm(world=world), tools=[LongRunningFunctionTool(render)]
    )
    async with session(root, tmp_path, interrupt_deadline=timedelta(seconds=1)) as sessions:
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert "Nobody answered before the deadline" in responses(world)[0]["error"]


async def test_a_cancelled_turn_takes_its_waits_along(tmp_path: Path) -> None:
    world = World([[call("render")], text("next")])

    def render() -> None:
        """Render."""

    root = LlmAgent(
        name="root", model=ScriptedLlm(world=world), tools=[LongRunningFunctionTool(render)]
    )
    async with session(root, tmp_path) as sessions:
        (asked,) = await pending(sessions)
        assert await sessions.cancel_turn("s")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.pending_interrupts == ()
        with pytest.raises(InterruptError, match=r"not pending.*pending are: none"):
            await sessions.answer_question("s", asked.interrupt_id, "late")
        await sessions.send_user_message("s", "go on")
        await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
