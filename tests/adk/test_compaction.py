"""Compaction: a long session stays within its window, and nothing that its events set is lost."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentSessionFlow,
    AgentTurnError,
    CompactionPolicy,
    CompactionRequest,
    HistorySummary,
    MessageRole,
    ModelCallError,
    ToolEffect,
)
from dex_agents._session.compaction import size_of
from dex_agents.testing import private_engine, read_step_history, step_shape
from dex_agents_google_adk import AdkAgentRunner, adk_agent_session_flow
from dex_agents_google_adk._compaction import restore
from support.adk_oracle import ScriptedLlm, answer, call, request_json, text, thought
from support.serving import serve
from support.tree_oracle import TreeLlm, TreeWorld

TURN_S = 40.0
BULK = "x" * 900  # 300 tokens


class Summarizer(ScriptedLlm):
    """Numbers its summaries, or fails."""

    fails: int = 0
    says: str = "summary"
    useless: LlmResponse | None = None
    """What it answers instead of raising an error."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.world.requests.append(request_json(llm_request))
        if len(self.world.requests) > self.fails:
            yield answer(text(f"{self.says} {len(self.world.requests)}"))
        elif self.useless is None:
            raise RuntimeError("no summary today")
        else:
            yield self.useless


def make(
    world: TreeWorld,
    summaries: TreeWorld,
    *,
    flow_type: str = "Long",
    summary_model: Summarizer | None = None,
    instruction: str = "State: {noted?}",
    **policy: Any,
) -> AgentSessionFlow:
    def note(x: str, tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["noted"] = x
        return "ok"

    sub = LlmAgent(name="sub", model=TreeLlm(world=world), description="sub")
    root = LlmAgent(
        name="root",
        model=TreeLlm(world=world),
        instruction=instruction,
        tools=[note],
        sub_agents=[sub],
    )
    return adk_agent_session_flow(
        root,
        flow_type=flow_type,
        default_tool_effect=ToolEffect.READ,
        compaction=CompactionPolicy(**{"context_window_tokens": 4_000, "kept_turns": 2} | policy),
        summary_model=summary_model or Summarizer(world=summaries),
    )


async def talk(sessions: AgentSessionClient, texts: Sequence[str]) -> list[float]:
    """One turn after the other; the CPU seconds that each took in this process, which is the Worker's."""
    took: list[float] = []
    for number, message in enumerate(texts, start=1):
        began = time.process_time()
        if number == 1:
            await sessions.start_session("s", message)
        else:
            await sessions.send_user_message("s", message)
        await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
        took.append(time.process_time() - began)
    return took


@pytest.mark.parametrize(
    "turns", [200, pytest.param(2_000, marks=(pytest.mark.long, pytest.mark.timeout(1_800)))]
)
async def test_a_long_session_stays_within_its_window(tmp_path: Path, turns: int) -> None:
    world = TreeWorld(
        {
            "root": [[call("note", x="first")], [call("transfer_to_agent", agent_name="sub")]],
            "sub": [text(f"answer {n} {BULK}") for n in range(turns)],
        }
    )
    summaries = TreeWorld({})
    flow = make(world, summaries)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        took = await talk(sessions, [f"message {number} {BULK}" for number in range(turns)])
        messages: list[AgentMessage] = []
        before: int | None = None
        while True:
            page = await sessions.list_messages("s", before_turn=before, turns=20)
            messages = [*page.messages, *messages]
            before = page.next_before_turn
            if before is None:
                break
        shape = step_shape(await read_step_history(engine.address, "s"))
        snapshot = await sessions.get_agent_snapshot("s")
    assert len(summaries.requests) >= turns // 10
    assert shape.count("CompactHistory") == len(summaries.requests)
    sizes = [len(json.dumps(request["contents"])) for request in world.requests_of("sub")]
    assert max(sizes) < 4_000 * 3 * 1.5
    if turns > 1_000:  # long enough for times to mean something
        early, late = (statistics.median(part) for part in (took[50:250], took[-200:]))
        assert late < early * 1.5, f"a turn took {early:.3f} s early and {late:.3f} s late"
    last = world.requests_of("sub")[-1]
    assert "summary" in last["contents"][0]["parts"][0]["text"]
    assert "[Dex] ADK session state" not in json.dumps(last)
    # The agent that replied last goes on, the state is kept, and no message is gone.
    assert len(world.requests_of("root")) == 2
    assert [m.text[:10].strip() for m in messages if m.role == "user"] == [
        f"message {n}"[:10].strip() for n in range(turns)
    ]
    assert "summary" not in json.dumps([m.framework_item for m in messages])
    assert "first" in json.dumps(summaries.requests[0])
    assert f"summary {len(summaries.requests) - 1}" in json.dumps(summaries.requests[-1])
    assert snapshot.usage.model_calls == len(world.asked) + len(summaries.requests)


async def test_a_turn_that_outgrows_the_window_is_summed_up_before_the_next_one(
    tmp_path: Path,
) -> None:
    world = TreeWorld(
        {
            "root": [
                *[[call("note", x=f"{n} {BULK * 5}")] for n in range(4)],
                text("noted"),
                text("still there"),
                text("and now"),
            ]
        }
    )
    summaries = TreeWorld({})
    flow = make(world, summaries, kept_turns=1)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, ["note it", "what else?", "go on"])
        shape = step_shape(await read_step_history(engine.address, "s"))
    # Not between the model calls of a turn, and not as long as the turn is one of those kept.
    assert [name for name in shape if name in ("RunModel", "CompactHistory")] == [
        *["RunModel"] * 6,
        "CompactHistory",
        "RunModel",
    ]
    # The summary call reads text, and has no tools.
    (asked,) = summaries.requests
    assert asked["config"].get("tools") is None
    assert [list(part) for c in asked["contents"] for part in c["parts"]] == [["text"]]
    told = asked["contents"][0]["parts"][0]["text"]
    assert "note it" in told and 'called note({"x": "3 x' in told and "noted" in told
    assert "what else?" not in told
    # The summary is what the user says first, before the turns that are kept.
    first, *kept = world.requests_of("root")[-1]["contents"]
    assert first["role"] == "user"
    assert first["parts"][0]["text"].endswith("summary 1")
    assert [content["parts"][0]["text"] for content in kept] == [
        "what else?",
        "still there",
        "go on",
    ]


@pytest.mark.parametrize(("summary", "state", "summaries_made"), [(3_000, 0, 3), (100, 9_000, 2)])
async def test_what_the_model_reads_of_a_summary_counts(
    summary: int, state: int, summaries_made: int, tmp_path: Path
) -> None:
    """A turn is 2 KiB; with a long summary each one is too much for 9,600 bytes, whatever the state."""
    world = TreeWorld(
        {
            "root": [
                [call("note", x="n" * state)],
                *(text(f"answer {number} {BULK}") for number in range(7)),
            ]
        }
    )
    summaries = TreeWorld({})
    flow = make(
        world,
        summaries,
        summary_model=Summarizer(world=summaries, says="s" * summary),
        instruction="",
        kept_turns=2,
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [f"message {number} {BULK}" for number in range(7)])
    assert len(summaries.requests) == summaries_made


async def test_messages_that_come_while_a_summary_is_made_wait_for_it(tmp_path: Path) -> None:
    class Held(Summarizer):
        is_there: asyncio.Event
        may_go: asyncio.Event

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            self.is_there.set()
            await self.may_go.wait()
            async for response in super().generate_content_async(llm_request, stream):
                yield response

    world = TreeWorld({"root": [text(f"answer {n} {BULK}") for n in range(9)]})
    summaries = TreeWorld({})
    is_there, may_go = asyncio.Event(), asyncio.Event()
    late = ["late 1", "late 2"]
    model = Held(world=summaries, is_there=is_there, may_go=may_go)
    flow = make(world, summaries, summary_model=model)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
        asyncio.timeout(TURN_S * 2),
    ):
        sent = [f"message {number} {BULK}" for number in range(6)]
        await sessions.start_session("s", sent[0])
        held = asyncio.create_task(is_there.wait())
        # A turn at a time, until one begins with a summary.
        for turns in range(1, len(sent)):
            turn = asyncio.create_task(sessions.wait_for_turn("s", turns, timeout_s=TURN_S))
            await asyncio.wait({turn, held}, return_when=asyncio.FIRST_COMPLETED)
            if held.done():
                break
            await turn
            await sessions.send_user_message("s", sent[turns])
        asked = len(world.asked)
        assert asked == turns - 1 > 0
        for message in late:
            await sessions.send_user_message("s", message)
        assert (await sessions.get_agent_snapshot("s")).queued_messages == 2
        assert len(world.asked) == asked
        may_go.set()
        await turn
        snapshot = await sessions.wait_for_turn("s", turns + 2, timeout_s=TURN_S)
        page = await sessions.list_messages("s", turns=50)
    assert snapshot.queued_messages == 0
    said = [message.text for message in page.messages if message.role is MessageRole.USER]
    assert said == [*sent[:turns], *late]
    assert len(world.asked) == turns + 2
    request = json.dumps(world.requests_of("root")[asked]["contents"])
    assert "summary 1" in request and f"message {asked} " in request


async def test_state_survives_the_summary(tmp_path: Path) -> None:
    world = TreeWorld(
        {
            "root": [
                [call("note", x="kept value")],
                text(BULK),
                *[text(f"{n} {BULK}") for n in range(20)],
            ]
        }
    )
    flow = make(world, TreeWorld({}), kept_turns=0)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [BULK] * 12)
    last = world.requests_of("root")[-1]
    assert "State: kept value" in last["config"]["system_instruction"]
    assert len(last["contents"]) < 10


USELESS = {
    "empty": answer(text("")),
    "blank": answer(text(" \n ")),
    "thoughts only": answer(thought("hm")),
    "no parts": answer(),
    "a call": answer(call("note", x="1")),
    "refused": LlmResponse(error_code="SAFETY", error_message="not that"),
    "cut off": answer(text("The user is"), finish_reason=types.FinishReason.MAX_TOKENS),
    "broken off": answer(text("The user is"), error_code="SAFETY", error_message="not that"),
}
NO_SUMMARY = r"gave no (text|answer \(SAFETY: not that\))|did not end its summary \(MAX_TOKENS\)"


@pytest.mark.parametrize("useless", [None, "empty", "cut off"])
async def test_a_failing_summary_harms_no_turn(tmp_path: Path, useless: str | None) -> None:
    world = TreeWorld({"root": [text(f"{n} {BULK}") for n in range(20)]})
    summaries = TreeWorld({})
    model = Summarizer(world=summaries, fails=2, useless=USELESS[useless] if useless else None)
    flow = make(world, summaries, summary_model=model)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", BULK)
        for number in range(1, 8):
            snapshot = await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            assert snapshot.last_turn is not None and not snapshot.last_turn.error
            await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 8, timeout_s=TURN_S)
    assert len(summaries.requests) > 2
    assert "Summary of the conversation" in json.dumps(world.requests_of("root")[-1])
    # Until there is a summary, the model reads every turn.
    began = next(
        number
        for number, request in enumerate(world.requests_of("root"))
        if "Summary of the conversation" in json.dumps(request)
    )
    assert len(world.requests_of("root")[began - 1]["contents"]) == 2 * began - 1


@pytest.mark.parametrize("useless", USELESS)
async def test_a_summary_that_says_nothing_is_none(useless: str) -> None:
    model = Summarizer(world=TreeWorld({}), fails=1, useless=USELESS[useless])
    runner = AdkAgentRunner(LlmAgent(name="root", model=model))
    request = CompactionRequest("s", "step", None, [runner.build_user_message("hello")])
    with pytest.raises((AgentTurnError, ModelCallError), match=NO_SUMMARY):
        await runner.summarize(request)
    summary = await runner.summarize(request)
    assert summary.text.startswith("summary 2\n")
    assert summary.metadata.request_model == model.model


async def test_turns_that_failed_behind_a_call_do_not_stop_it(tmp_path: Path) -> None:
    world = TreeWorld(
        {
            "root": [
                [call("note", x="kept")],
                AgentTurnError("cut off"),
                *[text(f"{n} {BULK}") for n in range(20)],
            ]
        }
    )
    summaries = TreeWorld({})
    flow = make(world, summaries, kept_turns=1)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [BULK] * 12)
    assert len(summaries.requests) >= 2
    assert "note" in json.dumps(summaries.requests[0])


async def test_retention_deletes_behind_the_summary(tmp_path: Path) -> None:
    world = TreeWorld({"root": [text(f"{n} {BULK}") for n in range(20)]})
    flow = make(world, TreeWorld({}), retained_turns=1)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [f"{number} {BULK}" for number in range(13)])
        page = await sessions.list_messages("s", turns=50)
    left = [int(m.text.split()[0]) for m in page.messages if m.role == "user"]
    assert left == list(range(left[0], 13))
    assert 0 < left[0] < 11


async def test_an_open_task_blocks_compaction(tmp_path: Path) -> None:
    world = TreeWorld(
        {
            "root": [[call("helper", request="do it")], text("done"), *[text(BULK)] * 3],
            "helper": [
                *[text(f"which one? {BULK}") for _ in range(7)],
                [call("finish_task", result="ok")],
            ],
        }
    )
    summaries = TreeWorld({})
    helper = LlmAgent(name="helper", model=TreeLlm(world=world), mode="task", description="helps")
    root = LlmAgent(name="root", model=TreeLlm(world=world), sub_agents=[helper])
    flow = adk_agent_session_flow(
        root,
        flow_type="Tasks",
        compaction=CompactionPolicy(3_000, kept_turns=1),
        summary_model=Summarizer(world=summaries),
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", BULK)
        for number in range(1, 8):
            await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            assert not summaries.requests
            await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 8, timeout_s=TURN_S)
        await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 9, timeout_s=TURN_S)
        await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 10, timeout_s=TURN_S)
    assert summaries.requests


async def test_a_session_from_before_the_policy_compacts_behind_it(tmp_path: Path) -> None:
    world = TreeWorld({"root": [text(f"{n} {BULK}") for n in range(20)]})
    summaries = TreeWorld({})
    plain = adk_agent_session_flow(
        LlmAgent(name="root", model=TreeLlm(world=world)), flow_type="Long"
    )
    async with private_engine(tmp_path / "e.db") as engine:
        async with serve(engine.address, plain, tmp_path) as sessions:
            await talk(sessions, [f"old {number} {BULK}" for number in range(7)])
        assert "old 0" in json.dumps(world.requests_of("root")[-1]["contents"])
        async with serve(engine.address, make(world, summaries), tmp_path) as sessions:
            await sessions.send_user_message("s", f"new {BULK}")
            await sessions.wait_for_turn("s", 8, timeout_s=TURN_S)
    assert len(summaries.requests) == 1
    last = json.dumps(world.requests_of("root")[-1]["contents"])
    assert "Summary of the conversation so far:" in last
    assert "old 0" not in last


async def test_without_a_summary_model_the_first_agent_s_is_asked(tmp_path: Path) -> None:
    first = TreeWorld({"first": [text(f"{n} {BULK}") for n in range(20)]})
    second = TreeWorld({"second": [text(f"{n} {BULK}") for n in range(20)]})
    asked: list[str] = []

    class Summing(TreeLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            if not (llm_request.config.labels or {}).get("adk_agent_name"):
                asked.append(self.model)
                yield answer(text("a summary"))
                return
            async for response in super().generate_content_async(llm_request, stream):
                yield response

    agents: list[BaseAgent] = [
        LlmAgent(name="first", model=Summing(world=first, model="first-model")),
        LlmAgent(name="second", model=Summing(world=second, model="second-model")),
    ]
    flow = adk_agent_session_flow(
        SequentialAgent(name="root", sub_agents=agents),
        flow_type="Pair",
        compaction=CompactionPolicy(context_window_tokens=4_000, kept_turns=1),
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [BULK] * 6)
    assert asked
    assert set(asked) == {"first-model"}


def test_the_estimate_counts_bytes_instructions_tools_and_the_reserve() -> None:
    message = AgentMessage(role=MessageRole.USER, framework_item={"a": "é"}, text="é")
    assert size_of([message]) == len('{"a":"é"}'.encode())
    policy = CompactionPolicy(context_window_tokens=1_000, trigger_ratio=0.5)
    assert not policy.is_due(1_499, 0)  # 499 tokens
    assert policy.is_due(1_500, 0)
    assert policy.is_due(1_200, 100)
    reserving = CompactionPolicy(1_000, trigger_ratio=0.5, reserved_input_tokens=100)
    assert not reserving.is_due(1_197, 0)
    assert reserving.is_due(1_200, 0)

    def look(order: str) -> str:
        """Look at an order."""
        return order

    def overhead(**fields: Any) -> int:
        model = ScriptedLlm(world=TreeWorld({}))
        return AdkAgentRunner(
            LlmAgent(name="root", model=model, **fields)
        ).estimated_overhead_tokens()

    bare = overhead()
    assert overhead(instruction="x" * 300) == bare + 100
    assert overhead(tools=[look]) > bare


@pytest.mark.parametrize(
    "arguments,kind,message",
    [
        ({"context_window_tokens": 10}, ValueError, "at least 1000, got 10"),
        ({"context_window_tokens": "x"}, TypeError, "must be an int"),
        ({"context_window_tokens": 9_000, "trigger_ratio": 0}, ValueError, "above 0"),
        ({"context_window_tokens": 9_000, "trigger_ratio": True}, TypeError, "must be a number"),
        ({"context_window_tokens": 9_000, "kept_turns": -1}, ValueError, "at least 0"),
        (
            {"context_window_tokens": 9_000, "reserved_input_tokens": 7_200},
            ValueError,
            "must be below",
        ),
    ],
)
def test_wrong_policies_are_refused(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        CompactionPolicy(**arguments)


def test_a_stored_summary_without_words_keeps_its_state() -> None:
    restored = restore(
        HistorySummary('\n[Dex] ADK session state: {"state": {"noted": "x"}, "agent": "sub"}')
    )
    assert restored.state == {"noted": "x"}
    assert [(event.author, event.content) for event in restored.events] == [("sub", None)]


def test_what_looks_like_the_state_line_is_text() -> None:
    restored = restore(HistorySummary("said\n[Dex] ADK session state: no JSON"))
    content = restored.events[0].content
    assert content is not None and content.parts is not None
    assert "no JSON" in str(content.parts[0].text)
    assert restored.state == {}
