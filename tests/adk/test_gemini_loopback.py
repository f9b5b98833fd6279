"""ADK's real Gemini class gets the same HTTP requests as from plain ADK."""

from __future__ import annotations

import base64
import datetime
import email.utils
from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.models.google_llm import Gemini
from google.genai import types

from dex_agents._contract import TokenUsage
from dex_agents._effects import ToolEffect
from dex_agents._errors import AgentTurnError, ModelCallError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, World, run_plain
from support.gemini_server import Answer, GeminiServer, call_part, say, text_part

READ: Any = {"default_tool_effect": ToolEffect.READ}
SIGNATURE = base64.urlsafe_b64encode(bytes(range(256))).decode()


@pytest.fixture(autouse=True)
def api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "not-a-key")
    monkeypatch.delenv("GOOGLE_GENAI_USE_VERTEXAI", raising=False)


def agent_for(server: GeminiServer) -> LlmAgent:
    def weather(city: str) -> dict[str, Any]:
        """The weather of a city."""
        return {"city": city, "degrees": 21.5, "note": None}

    return LlmAgent(
        name="root",
        model=Gemini(model="gemini-2.5-flash", base_url=server.url),
        instruction="Answer in one sentence.",
        tools=[weather],
        generate_content_config=types.GenerateContentConfig(temperature=0.5),
    )


SCRIPT = [
    Answer(
        [
            [text_part("I should ", thought=True)],
            [text_part("look.", thought=True)],
            [
                text_part("Looking "),
            ],
            [text_part("it up.")],
            [
                call_part("weather", signature=SIGNATURE, city="Zürich"),
                call_part("weather", city="京都"),
            ],
        ]
    ),
    say("21.5 °C ", "in both."),
    say("You are ", "welcome."),
]


def sent(server: GeminiServer) -> list[Any]:
    return [(request.path, request.body) for request in server.requests]


@pytest.mark.parametrize("mode", [StreamingMode.SSE, StreamingMode.NONE])
async def test_requests_equal_plain_adk(mode: StreamingMode) -> None:
    config = RunConfig(streaming_mode=mode)
    with GeminiServer(SCRIPT) as server:
        await run_plain(lambda _: agent_for(server), [], ["weather?", "thanks"], run_config=config)
        plain = sent(server)
    with GeminiServer(SCRIPT) as server:
        driver = Driver(AdkAgentRunner(agent_for(server), run_config=config, **READ), World([]))
        await driver.turn("weather?")
        await driver.turn("thanks")
        ours = sent(server)
    assert len(ours) == 3
    assert ours == plain
    assert SIGNATURE in str(ours[1])
    streamed = mode is StreamingMode.SSE
    texts = [event["text"] for event in driver.live.of("text_delta")]
    assert texts[:2] == (
        ["Looking ", "it up."] if streamed else ["Looking it up.", "21.5 °C in both."]
    )
    assert driver.usage == TokenUsage(33, 24, 3)
    assert driver.outcomes[0].metadata.finish_reasons == ("stop",)
    assert driver.outcomes[0].metadata.response_model == "gemini-2.5-flash"
    assert driver.history[-1].text == "You are welcome."


def failure(status: int, **fields: Any) -> Answer:
    return Answer(
        status=status, error={"error": {"code": status, "message": "m", "status": "S", **fields}}
    )


async def one_turn(script: Sequence[Answer]) -> Any:
    with GeminiServer(script) as server:
        return await Driver(AdkAgentRunner(agent_for(server), **READ), World([])).turn("hi")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_passing_failures(status: int) -> None:
    with pytest.raises(ModelCallError, match=str(status)):
        await one_turn([failure(status)])


async def test_retry_after() -> None:
    header = failure(503)
    header.headers = {"Retry-After": "7"}
    with pytest.raises(ModelCallError) as caught:
        await one_turn([header])
    assert caught.value.retry_after_s == 7.0
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12.5s"}
    with pytest.raises(ModelCallError) as caught:
        await one_turn([failure(429, details=[info])])
    assert caught.value.retry_after_s == 12.5


IN_AN_HOUR = email.utils.format_datetime(
    datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1), usegmt=True
)


@pytest.mark.parametrize(
    "headers,least,most",
    [
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25, 0.25),
        ({"X-MS-Retry-After-Ms": "1500"}, 1.5, 1.5),
        ({"retry-after-ms": "soon", "Retry-After": "2"}, 2.0, 2.0),
        ({"Retry-After": IN_AN_HOUR}, 3_000.0, 3_600.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0, 0.0),
        ({"Retry-After": "-5"}, 0.0, 0.0),
    ],
)
async def test_forms_of_retry_after(headers: dict[str, str], least: float, most: float) -> None:
    answer = failure(429)
    answer.headers = headers
    with pytest.raises(ModelCallError) as caught:
        await one_turn([answer])
    assert caught.value.retry_after_s is not None
    assert least <= caught.value.retry_after_s <= most


@pytest.mark.parametrize(
    "value", ["", "soon", "inf", "nan", "1e400", "Mon, 99 Foo 99999", "Fri, 01 Jan 2100 -0000"]
)
async def test_junk_is_no_retry_after(value: str) -> None:
    answer = failure(429)
    answer.headers = {"Retry-After": value, "retry-after-ms": value}
    with pytest.raises(ModelCallError) as caught:
        await one_turn([answer])
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_refusals_end_the_turn(status: int) -> None:
    with pytest.raises(AgentTurnError, match=str(status)):
        await one_turn([failure(status)])


async def test_lost_connection_may_pass() -> None:
    with pytest.raises(ModelCallError):
        await one_turn([say("a", "b", drop_after=1)])


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "OTHER", "STOP"])
@pytest.mark.parametrize("mode", [StreamingMode.SSE, StreamingMode.NONE])
async def test_a_useless_answer_is_asked_for_again(reason: str, mode: StreamingMode) -> None:
    useless = Answer([[]], finish_reason=reason)
    config = RunConfig(streaming_mode=mode)
    with GeminiServer([useless, SCRIPT[0], useless, useless, say("yes"), say("next")]) as server:
        driver = Driver(AdkAgentRunner(agent_for(server), run_config=config, **READ), World([]))
        await driver.turn("hi")
        await driver.turn("and")
    feedback = [body["contents"][-1]["parts"][0].get("text", "") for _, body in sent(server)]
    told = ["could not be used" in text for text in feedback]
    assert told == [False, True, False, True, True, False]
    assert reason == "STOP" or reason in feedback[1]
    # Nothing of it stays: the next turn reads calls, results and answers only.
    assert "could not be used" not in str(sent(server)[-1])
    assert [m.text for m in driver.history if m.text] == [
        "hi",
        "Looking it up.",
        "yes",
        "and",
        "next",
    ]
    assert driver.usage == TokenUsage(66, 48, 6)


async def test_useless_answers_have_an_end() -> None:
    useless = Answer([[]], finish_reason="MALFORMED_FUNCTION_CALL")
    with pytest.raises(AgentTurnError, match=r"no usable answer 3 times in a row.*MALFORMED"):
        await one_turn([useless] * 3)


async def test_blocked_answer_ends_the_turn() -> None:
    with pytest.raises(AgentTurnError, match="SAFETY"):
        await one_turn([Answer([[]], finish_reason="SAFETY")])
