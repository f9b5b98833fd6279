"""ADK's real LiteLlm class sends a model the same from a session as from plain ADK."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from dex_agents import ToolEffect
from dex_agents._errors import AgentTurnError, ModelCallError
from dex_agents.testing import private_engine
from dex_agents_google_adk import AdkAgentRunner, adk_agent_session_flow
from support.adk_oracle import Driver, World, run_plain
from support.openai_server import ChatAnswer, OpenAiServer, chat_call, raw_call
from support.serving import serve

READ: Any = {"default_tool_effect": ToolEffect.READ}
TURN_S = 40.0
REJECTED = "This tool call is rejected."
MODES = pytest.mark.parametrize("mode", [StreamingMode.SSE, StreamingMode.NONE])


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    # LiteLLM downloads its price list when it is imported.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def agent_for(server: OpenAiServer, *, asks: bool = False) -> LlmAgent:
    def weather(city: str) -> Any:
        """The weather of a city."""
        return {"city": city, "degrees": 21.5, "note": None, "rain": False}

    def clock(zone: str) -> str:
        """The time of a zone."""
        return f"12:00 {zone}"

    # Neither LiteLLM nor the client below it may try again by itself.
    model = LiteLlm(
        model="openai/gpt-4o", api_base=server.url, api_key="x", num_retries=0, max_retries=0
    )
    return LlmAgent(
        name="root",
        model=model,
        instruction="Answer in one sentence.",
        tools=[FunctionTool(weather, require_confirmation=asks), clock],
        generate_content_config=types.GenerateContentConfig(temperature=0.5),
    )


def sent(server: OpenAiServer) -> list[Any]:
    """What the server got, with call ids numbered by appearance."""
    names: dict[str, str] = {}
    found = []
    for request in server.requests:
        body = copy.deepcopy(request.body)
        check_pairs(body["messages"])
        for message in body["messages"]:
            for call in message.get("tool_calls") or []:
                call["id"] = names.setdefault(call["id"], f"<{len(names)}>")
            if "tool_call_id" in message:
                message["tool_call_id"] = names[message["tool_call_id"]]
        found.append((request.path, body))
    return found


def check_pairs(messages: Sequence[Mapping[str, Any]]) -> None:
    """Each call has one answer, right behind the message that made it, and of its own id."""
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            open_ids.remove(message["tool_call_id"])
            continue
        assert not open_ids, messages
        open_ids = [call["id"] for call in message.get("tool_calls") or []]
    assert not open_ids, messages


def two_turns(first: ChatAnswer) -> list[ChatAnswer]:
    return [
        first,
        ChatAnswer(["One ", "more."], [chat_call("call_c", "clock", zone="CET")]),
        ChatAnswer(["21.5 °C ", "at noon."]),
        ChatAnswer(["You are ", "welcome."]),
    ]


PARALLEL = ChatAnswer(
    ["Let me ", "look."],
    [
        chat_call("call_a", "weather", city="Zürich"),
        chat_call("call_b", "weather", city="京都"),
        chat_call("call_c", "clock", zone="JST"),
    ],
)


@MODES
async def test_requests_equal_plain_adk(mode: StreamingMode) -> None:
    config = RunConfig(streaming_mode=mode)
    script = two_turns(PARALLEL)
    with OpenAiServer(script) as server:
        await run_plain(lambda _: agent_for(server), [], ["weather?", "thanks"], run_config=config)
        plain = sent(server)
    with OpenAiServer(script) as server:
        runner = AdkAgentRunner(agent_for(server), run_config=config, **READ)
        driver = Driver(runner, World([]))
        await driver.turn("weather?")
        await driver.turn("thanks")
        ours = sent(server)
    assert len(ours) == 4
    assert ours == plain
    assert [message["role"] for message in ours[1][1]["messages"][-4:]] == [
        "assistant",
        "tool",
        "tool",
        "tool",
    ]
    # LiteLlm counts what the model thought among what it wrote, as the provider does.
    assert (driver.usage.input_tokens, driver.usage.model_calls) == (44, 4)
    assert driver.history[-1].text == "You are welcome."
    streamed = mode is StreamingMode.SSE
    pieces = [event["text"] for event in driver.live.of("text_delta")]
    assert pieces[:2] == (["Let me ", "look."] if streamed else ["Let me look.", "One more."])


CALL_IDS: dict[str, Callable[[int], str]] = {
    "none": lambda _: "",
    "equal in one answer": lambda _: "call",
    "counted in each answer": lambda number: f"call_{number}",
}


@pytest.mark.parametrize("name", CALL_IDS)
async def test_ids_of_a_careless_model(name: str) -> None:
    id_of = CALL_IDS[name]
    script = [
        ChatAnswer(
            calls=[chat_call(id_of(n), "weather", city=city) for n, city in enumerate("AB")]
        ),
        ChatAnswer(calls=[chat_call(id_of(0), "clock", zone="C")]),
        ChatAnswer(["done"]),
    ]
    with OpenAiServer(script) as server:
        driver = Driver(AdkAgentRunner(agent_for(server), **READ), World([]))
        await driver.turn("go")
        bodies = [body for _, body in sent(server)]
    last = bodies[-1]["messages"]
    answers = [message["content"] for message in last if message["role"] == "tool"]
    assert ['"A"' in answers[0], '"B"' in answers[1], "12:00 C" in answers[2]] == [True] * 3


async def test_an_approval_in_a_real_session(tmp_path: Path) -> None:
    """One of two calls is approved, the other rejected; the model reads what plain ADK says."""
    script = [
        ChatAnswer(
            calls=[
                chat_call("call_a", "weather", city="Zürich"),
                chat_call("call_b", "weather", city="Bern"),
            ]
        ),
        ChatAnswer(["Only ", "Zürich."]),
    ]
    with OpenAiServer(script) as server:
        await _plain_approval(agent_for(server, asks=True))
        plain = sent(server)
    with OpenAiServer(script) as server:
        flow = adk_agent_session_flow(
            agent_for(server, asks=True), flow_type="LiteLlmApproval", **READ
        )
        async with (
            private_engine(tmp_path / "e.db") as engine,
            serve(engine.address, flow, tmp_path) as sessions,
        ):
            await sessions.start_session("s", "weather?")
            waiting = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
            for asked in reversed(waiting.pending_interrupts):
                await sessions.resolve_interrupt(
                    "s",
                    asked.interrupt_id,
                    approved=asked.arguments["city"] == "Zürich",
                    message=REJECTED,
                )
            done = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        ours = sent(server)
    assert done.last_turn is not None
    assert done.last_turn.final_text == "Only Zürich."
    assert len(ours) == 2
    assert ours == plain


async def _plain_approval(agent: LlmAgent) -> None:
    runner = InMemoryRunner(agent, app_name="root")
    session = await runner.session_service.create_session(app_name="root", user_id="u")
    content = types.Content(role="user", parts=[types.Part(text="weather?")])
    parts = []
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    where: Any = {"user_id": "u", "session_id": session.id, "run_config": config}
    async for event in runner.run_async(new_message=content, **where):
        for call in event.get_function_calls():
            if call.name == "adk_request_confirmation":
                asked = (call.args or {})["originalFunctionCall"]
                answer = types.FunctionResponse(
                    id=call.id,
                    name=call.name,
                    response={"confirmed": asked["args"]["city"] == "Zürich"},
                )
                parts.append(types.Part(function_response=answer))
    assert len(parts) == 2
    async for _ in runner.run_async(new_message=types.Content(role="user", parts=parts), **where):
        pass


async def one_turn(script: Sequence[ChatAnswer]) -> Driver:
    with OpenAiServer(script) as server:
        driver = Driver(AdkAgentRunner(agent_for(server), **READ), World([]))
        await driver.turn("hi")
        return driver


def failure(status: int, **headers: str) -> ChatAnswer:
    error = {"error": {"message": "m", "type": "t", "code": status}}
    return ChatAnswer(status=status, error=error, headers=headers)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_passing_failures(status: int) -> None:
    with pytest.raises(ModelCallError, match=str(status)) as caught:
        await one_turn([failure(status, **{"Retry-After": "7"})])
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_refusals_end_the_turn(status: int) -> None:
    with pytest.raises(AgentTurnError, match=str(status)):
        await one_turn([failure(status)])


@MODES
async def test_arguments_that_are_no_json(mode: StreamingMode) -> None:
    useless = ChatAnswer(calls=[raw_call("call_a", "weather", '{"city": "Zür')])
    script = [useless, ChatAnswer(["Sorry."])]
    with OpenAiServer(script) as server:
        config = RunConfig(streaming_mode=mode)
        driver = Driver(AdkAgentRunner(agent_for(server), run_config=config, **READ), World([]))
        await driver.turn("hi")
        (_, asked_again) = sent(server)[1]
    assert "MALFORMED_FUNCTION_CALL" in asked_again["messages"][-1]["content"]
    assert [message["role"] for message in asked_again["messages"]] == ["system", "user", "user"]
    assert [message.text for message in driver.history] == ["hi", "Sorry."]
    assert (driver.usage.input_tokens, driver.usage.model_calls) == (22, 2)


@MODES
async def test_an_answer_that_says_nothing(mode: StreamingMode) -> None:
    with OpenAiServer([ChatAnswer(), ChatAnswer(["Hello."])]) as server:
        config = RunConfig(streaming_mode=mode)
        driver = Driver(AdkAgentRunner(agent_for(server), run_config=config, **READ), World([]))
        await driver.turn("hi")
    assert [message.text for message in driver.history] == ["hi", "Hello."]
    assert driver.usage.model_calls == 2
