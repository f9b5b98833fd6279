"""What a failed turn leaves in ADK's history: the user's message and an event that names each call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.tools._request_input_tool import request_input
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext

from dex_agents import AgentTurnError, MessageRole, ToolEffect, ToolPolicy
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from support.adk_oracle import ScriptedLlm, World, call, text
from support.serving import serve
from support.waiting import pending, session


async def test_the_note_is_an_adk_event_and_the_next_model_call_reads_it(tmp_path: Path) -> None:
    world = World([[call("look"), call("pay")], AgentTurnError("no more money"), text("I see")])

    def look() -> str:
        """Look."""
        return "seen"

    def pay() -> str:
        """Pay."""
        raise ConnectionError("cut off")

    flow = adk_agent_session_flow(
        LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[look, pay]),
        flow_type="Notes",
        tool_policies={
            "look": ToolPolicy(ToolEffect.READ),
            "pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
        },
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "pay it")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=40)
        assert snapshot.last_turn is not None
        assert "no more money" in snapshot.last_turn.error
        await sessions.send_user_message("s", "what now?")
        await sessions.wait_for_turn("s", 2, timeout_s=40)
        messages = (await sessions.list_messages("s")).messages
    assert [message.role for message in messages] == [
        MessageRole.USER,
        MessageRole.USER,
        MessageRole.USER,
        MessageRole.ASSISTANT,
    ]
    assert [message.is_note for message in messages] == [False, True, False, False]
    note: Any = messages[1].framework_item
    event = Event.model_validate(note)
    assert event.author == "user"
    for words in ("no more money", "look", "succeeded", "pay", "outcome_unknown"):
        assert words in messages[1].text
    assert messages[1].text in str(world.requests[-1]["contents"][1]["parts"][0]["text"])


async def test_the_note_says_of_what_waited_that_nobody_answered(tmp_path: Path) -> None:
    def render(item: str) -> str:
        """Begin to render it."""
        return f"job {item}"

    def leave(tool_context: ToolContext) -> Any:
        """Ask whether to."""
        tool_context.request_confirmation(hint="sure?")

    def pay() -> str:
        """Never called."""
        return "paid"

    asked = [
        call("adk_request_input", message="Whose?"),
        call("render", item="lamp"),
        call("leave"),
        call("pay"),
        call("pay"),
    ]
    world = World([asked, text("I see")])
    root = LlmAgent(
        name="root",
        model=ScriptedLlm(world=world),
        tools=[request_input, LongRunningFunctionTool(render), leave, pay],
    )
    policies = {
        "render": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
        "pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
    }
    async with session(root, tmp_path, tool_policies=policies) as sessions:
        waiting = await pending(sessions, 5)
        await sessions.resolve_interrupt("s", waiting[-1].interrupt_id, approved=False)
        await pending(sessions, 4)
        assert await sessions.cancel_turn("s")
        note = (await sessions.list_messages("s")).messages[-1]
        await sessions.fork_session("s", "f")
        copied = (await sessions.list_messages("f")).messages
    assert note.is_note
    assert [message.is_note for message in copied] == [False, True]
    unanswered = "it waited for an answer, and nobody gave one before the turn was cancelled"
    unrun = f"failed: The tool did not run: {unanswered}"
    told = [line for line in note.text.splitlines() if line.startswith("- ")]
    assert [(line.split(" ")[1], line.partition("): ")[2]) for line in told] == [
        ("adk_request_input", unrun),
        ("render", f"outcome_unknown: {unanswered}"),
        ("leave", f"failed: {unanswered}"),
        ("pay", unrun),
        ("pay", "rejected: The user rejected this tool call, so it was not run."),
    ]
