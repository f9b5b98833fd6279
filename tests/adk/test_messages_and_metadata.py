"""How events show as messages, what live events and spans learn of model calls and control tools."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.events.event import Event
from google.adk.models.google_llm import Gemini
from google.adk.models.lite_llm import LiteLlm
from google.adk.tools.exit_loop_tool import exit_loop
from google.genai import types
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from dex_agents import (
    LocalDirectoryMediaStore,
    MessageRole,
    ModelCallMetadata,
    TokenUsage,
    ToolEffect,
    TracingOptions,
)
from dex_agents._contract import ImageMessageBuilder
from dex_agents._media.reference import MAX_IMAGE_BYTES
from dex_agents._tracing import SessionTracer, SpanPlace, describe_model_call
from dex_agents_google_adk import AdkAgentRunner
from dex_agents_google_adk._events import dump_event, to_message
from support.adk_oracle import Driver, ScriptedLlm, World, answer, call, text, thought
from support.gemini_server import Answer, GeminiServer, call_part, say
from support.openai_server import ChatAnswer, OpenAiServer, chat_call

READ: Any = {"default_tool_effect": ToolEffect.READ}


def event(author: str, *parts: types.Part) -> Event:
    return Event(author=author, content=types.Content(role="model", parts=list(parts)))


def result(name: str, call_id: str) -> types.Part:
    response = types.FunctionResponse(name=name, id=call_id, response={"a": 1})
    return types.Part(function_response=response)


@pytest.mark.parametrize(
    ("shown", "role", "words", "tool"),
    [
        (event("user", text("hello")), MessageRole.USER, "hello", None),
        (event("root", text("I "), text("see")), MessageRole.ASSISTANT, "I see", None),
        (event("root", thought("hm"), text("yes")), MessageRole.ASSISTANT, "yes", None),
        (event("root", text("so"), call("a", "1")), MessageRole.ASSISTANT, "so", ("a", "1")),
        (event("root", call("a", "1"), call("b", "2")), MessageRole.ASSISTANT, "", None),
        (event("root", result("a", "1")), MessageRole.TOOL, "", ("a", "1")),
        (event("root", result("a", "1"), result("b", "2")), MessageRole.TOOL, "", None),
    ],
)
def test_what_an_event_shows_as(
    shown: Event, role: MessageRole, words: str, tool: tuple[str, str] | None
) -> None:
    message = to_message(shown, dump_event(shown))
    assert (message.role, message.text) == (role, words)
    named = None if message.tool_name is None else (message.tool_name, message.tool_call_id)
    assert named == tool
    assert Event.model_validate(message.framework_item).content == shown.content


def look() -> str:
    """Look."""
    return "seen"


def agent(world: World, *tools: Any, name: str = "root", **fields: Any) -> LlmAgent:
    model = ScriptedLlm(world=world, model=fields.pop("model_name", "scripted"))
    return LlmAgent(name=name, model=model, tools=list(tools), **fields)


async def metadata_of(world: World, root: Any, calls_per_step: int = 1) -> list[ModelCallMetadata]:
    driver = Driver(AdkAgentRunner(root, **READ), world, calls_per_step=calls_per_step)
    await driver.turn("go")
    return [outcome.metadata for outcome in driver.outcomes]


async def test_one_model_call_is_described() -> None:
    reasons = types.FinishReason
    world = World(
        [
            answer(call("look"), model_version="v-1"),
            [
                answer(text("all"), partial=True, model_version="partial"),
                answer(text("all done"), model_version="v-2", finish_reason=reasons.MAX_TOKENS),
            ],
        ]
    )
    asked, ended = await metadata_of(world, agent(world, look))
    assert asked == ModelCallMetadata("scripted", "v-1", ("stop",), agent_names=("root",))
    assert ended == ModelCallMetadata("scripted", "v-2", ("max_tokens",), agent_names=("root",))
    # ADK tells neither of these, for any model class.
    assert {(m.provider_name, m.response_id) for m in (asked, ended)} == {(None, None)}


async def test_what_a_model_does_not_report_is_not_made_up() -> None:
    silent = answer(text("hi"), model_version=None, finish_reason=None, usage_metadata=None)
    world = World([silent])
    driver = Driver(AdkAgentRunner(agent(world)), world)
    await driver.turn("go")
    (outcome,) = driver.outcomes
    assert outcome.metadata == ModelCallMetadata("scripted", agent_names=("root",))
    assert outcome.usage == TokenUsage(0, 0, 1)


async def test_a_callback_that_answers_is_no_model_call() -> None:
    world = World([])

    def before(**_: Any) -> Any:
        return answer(text("from the callback"))

    driver = Driver(AdkAgentRunner(agent(world, before_model_callback=before)), world)
    await driver.turn("go")
    (outcome,) = driver.outcomes
    assert outcome.metadata == ModelCallMetadata()
    assert outcome.usage == TokenUsage()


@pytest.mark.parametrize(("second", "shared"), [("scripted", "scripted"), ("other", None)])
async def test_several_model_calls_share_at_most_the_model_asked(
    second: str, shared: str | None
) -> None:
    world = World([text("one"), text("two")])
    branches: list[BaseAgent] = [agent(world, name="a")]
    branches.append(agent(world, name="b", model_name=second))
    root = ParallelAgent(name="root", sub_agents=branches)
    (metadata,) = await metadata_of(world, root, calls_per_step=2)
    assert metadata == ModelCallMetadata(shared, agent_names=("a", "b"))


async def test_control_tools_are_told_in_the_stream() -> None:
    world = World([call("transfer_to_agent", "c1", agent_name="helper"), text("I help")])
    root = agent(world, sub_agents=[agent(world, name="helper")])
    driver = Driver(AdkAgentRunner(root, **READ), world)
    await driver.turn("go")
    told = [event for event in driver.live.events if event["type"].startswith("tool_call")]
    about = {"tool_call_id": "c1", "tool_name": "transfer_to_agent", "agent_name": "root"}
    assert told == [
        {"type": "tool_call_started", **about},
        {"type": "tool_call_finished", **about},
    ]


async def test_leaving_a_loop_is_told_in_the_stream() -> None:
    world = World([call("exit_loop", "c1")])
    root = LoopAgent(name="root", sub_agents=[agent(world, exit_loop, name="inner")])
    driver = Driver(AdkAgentRunner(root, **READ), world)
    await driver.turn("go")
    told = [(e["type"], e["tool_name"]) for e in driver.live.events if "tool_name" in e]
    assert told == [("tool_call_started", "exit_loop"), ("tool_call_finished", "exit_loop")]


AUDIO = types.Part.from_bytes(data=b"RIFF....WAVE", mime_type="audio/wav")
FILE = types.Part(file_data=types.FileData(file_uri="gs://b/x.png", mime_type="image/png"))
PICTURE = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n" + b"x" * 9, mime_type="image/png")


@pytest.mark.parametrize(
    ("given", "marks"),
    [
        ({"sound": AUDIO}, "audio/wav"),
        ({"file": FILE}, "gs://b/x.png"),
        ({"a": {"b": {"c": [PICTURE]}}}, "image/png"),
    ],
)
async def test_other_media_of_a_tool_is_part_of_its_output(
    tmp_path: Any, given: Any, marks: str
) -> None:
    def draw() -> Any:
        """Draw."""
        return given

    world = World([call("draw"), text("done")])
    store = LocalDirectoryMediaStore(tmp_path)
    driver = Driver(AdkAgentRunner(agent(world, draw), media_store=store, **READ), world)
    await driver.turn("go")
    assert not any(message.images for message in driver.history)
    (response,) = [
        part["function_response"]
        for content in world.requests[1]["contents"]
        for part in content["parts"]
        if "function_response" in part
    ]
    assert "parts" not in response
    assert marks in str(response["response"])


@pytest.mark.parametrize(("extra", "is_taken"), [(0, True), (1, False)])
async def test_the_largest_image_of_a_tool(tmp_path: Any, extra: int, is_taken: bool) -> None:
    header = b"\x89PNG\r\n\x1a\n"
    data = header + b"x" * (MAX_IMAGE_BYTES - len(header) + extra)

    def draw() -> types.Part:
        """Draw."""
        return types.Part.from_bytes(data=data, mime_type="image/png")

    world = World([call("draw"), text("done")])
    store = LocalDirectoryMediaStore(tmp_path)
    driver = Driver(AdkAgentRunner(agent(world, draw), media_store=store, **READ), world)
    await driver.turn("go")
    assert sum(len(message.images) for message in driver.history) == int(is_taken)
    # What is stored stays small, and the model gets no text of it.
    stored = json.dumps([message.framework_item for message in driver.history])
    assert len(stored) < 3_000
    response = world.requests[1]["contents"][-1]["parts"][0]["function_response"]
    assert ("parts" in response, len(str(response["response"])) < 500) == (is_taken, True)
    assert (str(MAX_IMAGE_BYTES) in str(world.requests[1]["contents"])) is not is_taken


RED = b"\x89PNG\r\n\x1a\nred" + bytes(range(200))
BLUE = b"\x89PNG\r\n\x1a\nblue" + bytes(range(200))


@pytest.mark.parametrize("provider", ["gemini", "litellm"])
async def test_real_model_classes_send_the_bytes(
    tmp_path: Any, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture of the user in the first request, one of a tool in the second."""

    def draw() -> types.Part:
        """Draw."""
        return types.Part.from_bytes(data=BLUE, mime_type="image/png")

    monkeypatch.setenv("GOOGLE_API_KEY", "not-a-key")
    server: GeminiServer | OpenAiServer
    if provider == "gemini":
        server = GeminiServer([Answer([[call_part("draw")]]), say("nice")])
    else:
        server = OpenAiServer([ChatAnswer(calls=[chat_call("c1", "draw")]), ChatAnswer(["nice"])])
    with server:
        model: Any = (
            Gemini(model="gemini-2.5-flash", base_url=server.url)
            if provider == "gemini"
            else LiteLlm(model="openai/gpt-x", api_base=server.url, api_key="x")
        )
        store = LocalDirectoryMediaStore(tmp_path)
        reference = await store.put_image(RED)
        root = LlmAgent(name="root", model=model, tools=[draw])
        runner = AdkAgentRunner(root, media_store=store, **READ)
        driver = Driver(runner, World([]))
        assert isinstance(runner, ImageMessageBuilder)
        build = runner.build_user_message_with_images
        driver.build_message = lambda shown: build(shown, [reference])
        await driver.turn("what is this?")
        first, second = (str(request.body) for request in server.requests)
    red, blue = (base64.b64encode(data).decode() for data in (RED, BLUE))
    # The user's comes URL-safe or not, as the provider's client likes it.
    assert red in first.replace("-", "+").replace("_", "/")
    assert blue not in first
    assert blue in second.replace("-", "+").replace("_", "/")


@pytest.mark.parametrize(("model_calls", "kind"), [(1, SpanKind.CLIENT), (2, SpanKind.INTERNAL)])
def test_a_span_of_several_model_calls_is_internal(model_calls: int, kind: SpanKind) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    place = SpanPlace("s", "t1", "RunModel-1", 1)
    span = SessionTracer(TracingOptions(provider), "F").chat(place, is_compacted=False)
    describe_model_call(span, ModelCallMetadata("scripted"), TokenUsage(5, 3, model_calls))
    span.end()
    (exported,) = exporter.get_finished_spans()
    assert exported.kind is kind
    assert exported.attributes is not None
    assert exported.attributes["gen_ai.request.model"] == "scripted"
    assert "gen_ai.response.model" not in exported.attributes
    assert "gen_ai.response.finish_reasons" not in exported.attributes


async def test_an_image_of_another_process_is_read_here(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from dex_agents import LocalDirectoryMediaStore\n"
        "store = LocalDirectoryMediaStore(sys.argv[1])\n"
        "print(asyncio.run(store.put_image(bytes.fromhex(sys.argv[2]))).uri)\n"
    )
    uploaded = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), RED.hex(), stdout=asyncio.subprocess.PIPE
    )
    uri, _ = await asyncio.wait_for(uploaded.communicate(), 60)
    assert await LocalDirectoryMediaStore(tmp_path).get_image(uri.decode().strip()) == RED
