"""What a failed turn leaves in ADK's history: the user's message and an event that names each call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event

from dex_agents import AgentTurnError, MessageRole, ToolEffect, ToolPolicy
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from support.adk_oracle import ScriptedLlm, World, call, text
from support.serving import serve


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
    note: Any = messages[1].framework_item
    event = Event.model_validate(note)
    assert event.author == "user"
    for words in ("no more money", "look", "succeeded", "pay", "outcome_unknown"):
        assert words in messages[1].text
    assert messages[1].text in str(world.requests[-1]["contents"][1]["parts"][0]["text"])
