"""The public scripted model: what it answers follows from the request alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents import AgentTurnError
from dex_agents.testing import Ledger
from dex_agents_google_adk.testing import (
    ScriptedAnswer,
    ScriptedModel,
    ScriptedResponder,
    tool_call,
    tool_results,
)
from support.adk_oracle import World, run_plain
from support.waiting import TURN_S, session


def look(order: str) -> str:
    """Look an order up."""
    return f"{order} is fine"


async def said_by(*answers: ScriptedAnswer | ScriptedResponder, turns: int = 1) -> list[Any]:
    """The texts of plain ADK's events."""
    agent = LlmAgent(name="root", model=ScriptedModel(answers), tools=[look])
    plain = await run_plain(lambda _: agent, World([]), ["go"] * turns)
    parts = [part for event in plain.events for part in event["content"]["parts"]]
    return [part["text"] for part in parts if "text" in part]


async def test_the_answers_come_in_order_over_turns() -> None:
    call = tool_call("look", {"order": "7"})
    said = await said_by(["Let me see. ", call], "It is fine.", "Bye.", turns=2)
    assert said == ["go", "Let me see. ", "It is fine.", "go", "Bye."]


async def test_a_function_sees_the_request() -> None:
    async def report(request: LlmRequest) -> ScriptedAnswer:
        return f"told {[result.response for result in tool_results(request)]}"

    assert await said_by(tool_call("look", {"order": "7"}), report) == [
        "go",
        "told [{'result': '7 is fine'}]",
    ]


async def test_each_agent_of_a_tree_has_a_script_of_its_own() -> None:
    helper = LlmAgent(name="helper", model=ScriptedModel(["I help.", "Again."]))
    transfer = tool_call("transfer_to_agent", {"agent_name": "helper"})
    root = LlmAgent(name="root", model=ScriptedModel([transfer]), sub_agents=[helper])
    plain = await run_plain(lambda _: root, World([]), ["go", "more"])
    texts = [event["content"]["parts"][0].get("text") for event in plain.events]
    assert [text for text in texts if text] == ["go", "I help.", "more", "Again."]


async def responses(model: ScriptedModel, *contents: str, stream: bool = False) -> list[Any]:
    request = LlmRequest(
        contents=[
            types.Content(role=("user", "model")[n % 2], parts=[types.Part(text=text)])
            for n, text in enumerate(contents)
        ]
    )
    return [
        (bool(r.partial), [part.text for part in (r.content.parts or [])])
        async for r in model.generate_content_async(request, stream)
        if r.content
    ]


async def test_tokens_are_counted() -> None:
    model = ScriptedModel(["One two."])
    request = LlmRequest(contents=[types.Content(role="user", parts=[types.Part(text="x" * 400)])])
    (got,) = [response async for response in model.generate_content_async(request)]
    assert got.usage_metadata is not None
    assert 100 <= (got.usage_metadata.prompt_token_count or 0) < 120
    assert 2 <= (got.usage_metadata.candidates_token_count or 0) < 20


async def test_a_stream_has_the_words_and_then_the_whole() -> None:
    model = ScriptedModel(["One two.", "Three."])
    assert await responses(model, "hi") == [(False, ["One two."])]
    assert await responses(model, "hi", stream=True) == [
        (True, ["One "]),
        (True, ["two."]),
        (False, ["One two."]),
    ]
    # A call that is made again gets the same answer, and no earlier one is needed.
    for again in (model, ScriptedModel(["One two.", "Three."])):
        assert await responses(again, "hi", "One two.", "go on") == [(False, ["Three."])]


async def test_a_whole_response_is_given_as_it_is() -> None:
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=7)
    content = types.Content(role="model", parts=[types.Part(text="hi")])
    given = LlmResponse(content=content, usage_metadata=usage)
    model = ScriptedModel([given])
    (got,) = [r async for r in model.generate_content_async(LlmRequest(contents=[]))]
    assert got == given
    assert got is not given


async def test_an_exception_is_raised_and_an_ended_script_says_so() -> None:
    model = ScriptedModel([ConnectionError("gone")])
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            await responses(model, "hi")
    with pytest.raises(AgentTurnError, match="has 1 answers and is asked for one more"):
        await responses(model, "hi", "hello", "more")


async def test_an_ended_script_fails_the_turn_at_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "asked.jsonl")
    call = tool_call("look", {"order": "7"})
    root = LlmAgent(
        name="root",
        model=ScriptedModel([call], ledger=ledger),
        instruction="Look.",
        tools=[look],
    )
    async with session(root, tmp_path) as sessions:
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert snapshot.last_turn is not None
    assert "has 1 answers and is asked for one more" in snapshot.last_turn.error
    first, second = ledger.entries()
    assert (first["name"], first["tools"]) == ("asked", ["look"])
    assert first["instruction"].startswith("Look.")
    assert first["contents"] == [{"role": "user", "parts": [{"text": "go"}]}]
    assert second["contents"][-1]["parts"][0]["function_response"]["response"] == {
        "result": "7 is fine"
    }


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("hello", "script must be a list of answers or a function of the request, got 'hello'"),
        ([], "script must hold at least one answer"),
        (["a", 7], r"script\[1\] must be a text, a Part"),
        (["a", []], r"script\[1\] must be"),
        ([["a", 7]], r"script\[0\] must be"),
    ],
)
def test_what_is_no_script_is_refused(script: Sequence[Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        ScriptedModel(script)


async def test_a_function_that_gives_no_answer_is_named() -> None:
    wrong: Any = lambda request: 7  # noqa: E731
    with pytest.raises(TypeError, match="what the script's function gives must be a text"):
        await responses(ScriptedModel(wrong), "hi")
