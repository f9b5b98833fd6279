"""State, results, ids, schemas and streaming agree with plain ADK."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.tools.load_artifacts_tool import LoadArtifactsTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from dex_agents._contract import MessageRole, TokenUsage
from dex_agents._effects import ToolEffect
from dex_agents_google_adk._json import to_json
from support.adk_oracle import (
    ScriptedLlm,
    Step,
    World,
    answer,
    call,
    compare,
    text,
    thought,
)
from support.waiting import session

READ: Any = {"default_tool_effect": ToolEffect.READ}


def agent_with(world: World, *tools: Any, **fields: Any) -> LlmAgent:
    return LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools), **fields)


class Color(enum.Enum):
    RED = "red"


class Order(BaseModel):
    number: int = 7
    note: str | None = None
    at: datetime.date = datetime.date(2026, 1, 2)


@dataclasses.dataclass
class Point:
    x: int
    y: float


RESULTS: dict[str, Any] = {
    "text": "text",
    "empty": "",
    "zero": 0,
    "false": False,
    "empty list": [],
    "empty dict": {},
    "none": None,
    "list": [1, "two", None],
    "dict": {"a": None, "b": [1]},
    "number": 1.5,
    "unicode": "grüße 你好 🎉 \u0000",
    "huge": 10**30,
}
RICH: dict[str, Any] = {
    "model": Order(),
    "point": Point(1, 2.5),
    "time": datetime.datetime(2026, 1, 1, 12),
    "bytes": b"\xff\x00",
    "set": {3},
    "decimal": decimal.Decimal("1.50"),
    "enum": Color.RED,
    "nested": {"orders": [Order()], "at": (1, 2)},
    "tuple": (1, 2),
    "keys": {1: "a"},
    "byte keys": {b"a": 1},
    "function response": types.FunctionResponse(name="tool", response={"x": 1}),
}


@pytest.mark.parametrize("name", RESULTS)
async def test_results(name: str) -> None:
    def build(world: World) -> LlmAgent:
        def tool() -> Any:
            """Tool."""
            world.ran("tool")
            return RESULTS[name]

        return agent_with(world, tool)

    await compare(build, [call("tool"), text("done")], **READ)


@pytest.mark.parametrize("name", RICH)
async def test_rich_results_are_stored_as_adk_stores_them(name: str) -> None:
    def build(world: World) -> LlmAgent:
        def tool() -> Any:
            """Tool."""
            return {"value": RICH[name]}

        return agent_with(world, tool)

    await compare(build, [call("tool"), text("done")], **READ)


def test_json_form_of_what_adk_cannot_store() -> None:
    class Broken(BaseModel):
        data: bytes = b"\xff"

    loop: list[Any] = []
    loop.append(loop)
    deep: Any = "bottom"
    for _ in range(500):
        deep = [deep]
    values = {
        "nan": math.nan,
        "infinity": -math.inf,
        "surrogate": "a\ud800",
        "object": object(),
        "loop": loop,
        "broken": Broken(),
        "deep": deep,
        "digits": 10**5000,
        "function": len,
        "error": ValueError("x"),
        "key": {(1, 2): 3, None: 4},
        "same": {1: "int", "1": "text", "1,2": 0, (1, 2): 3},
    }
    form = to_json(values)
    json.dumps(form, allow_nan=False, ensure_ascii=False).encode()
    assert form["nan"] == "NaN"
    assert form["infinity"] == "-Infinity"
    assert form["surrogate"] == "a\\ud800"
    assert form["loop"] == ["<circular reference>"]
    assert form["broken"] == {"data": "_w=="}
    assert form["digits"].startswith("0x")
    assert form["key"] == {"1,2": 3, "None": 4}
    assert form["same"] == {"1": "text", "1,2": 0, "1 (int 2)": "int", "1,2 (tuple 2)": 3}


async def test_state_of_tools_and_templates() -> None:
    def build(world: World) -> LlmAgent:
        def note(key: str, value: str, tool_context: ToolContext) -> str:
            """Note."""
            world.ran("note", key=key, seen=dict(sorted(tool_context.state.to_dict().items())))
            tool_context.state[key] = value
            tool_context.state["last"] = value
            tool_context.state["app:shared"] = value
            tool_context.state.setdefault("list", [])
            return "noted"

        def append(value: str, tool_context: ToolContext) -> str:
            """Append."""
            tool_context.state["list"] = [*tool_context.state["list"], value]
            return "ok"

        return agent_with(
            world,
            note,
            append,
            instruction="Last {last?} list {list?} app {app:shared?}",
            output_key="answer",
        )

    script: list[Step] = [
        call("note", key="a", value="1"),
        call("append", value="x"),
        call("append", value="y"),
        text("one"),
        call("note", key="b", value="2"),
        text("two"),
    ]
    driver = await compare(build, script, ["first", "second"], **READ)
    assert driver.state["list"] == ["x", "y"]
    assert driver.state["answer"] == "two"


async def test_parallel_state_writes_merge_in_call_order() -> None:
    def build(world: World) -> LlmAgent:
        def write(key: str, value: str, tool_context: ToolContext) -> str:
            """Write."""
            tool_context.state[key] = value
            tool_context.state["last"] = value
            return "ok"

        return agent_with(world, write)

    script: list[Step] = [[call("write", key=k, value=k) for k in "zxy"], text("done")]
    driver = await compare(build, script, **READ)
    assert driver.state["last"] == "y"


async def test_temp_state_lasts_for_the_turn() -> None:
    def build(world: World) -> LlmAgent:
        def put(tool_context: ToolContext) -> str:
            """Put."""
            tool_context.state["temp:token"] = "secret"
            return "ok"

        def get(tool_context: ToolContext) -> str:
            """Get."""
            return str(tool_context.state.get("temp:token"))

        return agent_with(world, put, get)

    driver = await compare(
        build, [call("put"), call("get"), text("one"), call("get"), text("two")], ["a", "b"], **READ
    )
    assert "temp:token" not in driver.state


async def test_artifacts() -> None:
    def build(world: World) -> LlmAgent:
        async def save(name: str, tool_context: ToolContext) -> int:
            """Save."""
            return await tool_context.save_artifact(name, types.Part(text="content of " + name))

        return agent_with(world, save, LoadArtifactsTool())

    script: list[Step] = [
        call("save", name="f.txt"),
        call("load_artifacts", artifact_names=["f.txt"]),
        text("done"),
    ]
    services = (InMemoryArtifactService(), InMemoryArtifactService())
    await compare(build, script, artifact_services=services, **READ)


async def test_what_a_repeated_callback_saves_is_a_version_more(tmp_path: Path) -> None:
    world = World([call("tool", "c1"), call("tool", "c1"), text("done")])
    service = InMemoryArtifactService()

    def tool() -> str:
        """Tool."""
        return "ran"

    async def save(tool: Any, args: Any, tool_context: ToolContext) -> None:
        world.log("save")
        await tool_context.save_artifact("f.txt", types.Part(text=f"copy {len(world.callbacks)}"))
        if len(world.callbacks) == 1:
            raise ConnectionError("the attempt ends here, as if its Worker had died")

    root = agent_with(world, tool, before_tool_callback=save)
    async with session(root, tmp_path, artifact_service=service) as sessions:
        await sessions.wait_for_turn("s", 1, timeout_s=40.0)
        page = await sessions.list_messages("s")
    assert [m.framework_item["actions"]["artifact_delta"] for m in page.messages] == [
        {},
        {},
        {"f.txt": 1},
        {},
    ]
    place: Any = {"app_name": "root", "user_id": "user", "session_id": "s", "filename": "f.txt"}
    assert world.callbacks == ["save", "save"]
    newest = await service.load_artifact(**place)
    assert newest is not None
    assert newest.text == "copy 2"


@pytest.mark.parametrize(
    "script",
    [
        [
            [call("tool", "c1", x="1"), call("tool", "c1", x="2"), call("tool", "c1", x="1")],
            text("done"),
        ],
        [call("tool", "c1", x="1"), call("tool", "c1", x="2"), text("done")],
        [[call("tool", "c\ud800", x="1"), call("tool", "c\\ud800", x="2")], text("done")],
    ],
    ids=["one response", "one turn", "no text that can be stored"],
)
async def test_reused_ids(script: list[Step]) -> None:
    def build(world: World) -> LlmAgent:
        def tool(x: str) -> str:
            """Tool."""
            world.ran("tool", x=x)
            return f"result {x} {len(world.executed)}"

        return agent_with(world, tool)

    # Ids differ by design within one response, so the comparison is by what each call got.
    from dex_agents_google_adk import AdkAgentRunner
    from support.adk_oracle import Driver

    world = World(script)
    driver = Driver(AdkAgentRunner(build(world), **READ), world, repeats=2)
    await driver.turn("go")
    last = world.requests[-1]["contents"]
    calls = [p["function_call"] for c in last for p in c["parts"] if "function_call" in p]
    results = [p["function_response"] for c in last for p in c["parts"] if "function_response" in p]
    assert [c["id"] for c in calls] == [r["id"] for r in results]
    for made, got in zip(calls, results, strict=True):
        assert got["response"]["result"].startswith(f"result {made['args']['x']} ")


async def test_reused_ids_across_turns() -> None:
    def build(world: World) -> LlmAgent:
        def tool(x: str) -> str:
            """Tool."""
            world.ran("tool", x=x)
            return f"result {x}"

        return agent_with(world, tool)

    script: list[Step] = [
        call("tool", "c1", x="1"),
        text("one"),
        call("tool", "c1", x="2"),
        call("tool", "c1", x="3"),
        text("two"),
    ]
    await compare(build, script, ["a", "b"], **READ)


async def test_an_id_that_comes_again_never_gets_the_earlier_result() -> None:
    def build(world: World) -> LlmAgent:
        def tool(x: str) -> str:
            """Tool."""
            world.ran("tool", x=x)
            return f"result {x}"

        def guard(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
            return {"blocked": args["x"]} if args["x"] == "2" else None

        return agent_with(world, tool, before_tool_callback=guard)

    # The guardrail answers the second call of this id beside one that has to wait.
    both = [call("tool", "c1", x="2"), call("tool", x="3")]
    await compare(build, [call("tool", "c1", x="1"), both, text("done")], **READ)


class Answer(BaseModel):
    city: str
    degrees: int


async def test_output_schema_with_tools() -> None:
    def build(world: World) -> LlmAgent:
        def weather(city: str) -> int:
            """Weather."""
            world.ran("weather", city=city)
            return 21

        return agent_with(world, weather, output_schema=Answer, output_key="answer")

    script: list[Step] = [
        call("weather", city="Rome"),
        call("set_model_response", city="Rome"),
        call("set_model_response", city="Rome", degrees=21),
    ]
    driver = await compare(build, script, **READ)
    assert [type(o).__name__ for o in driver.outcomes] == [
        "ToolCallsRequested",
        "ContinueTurn",
        "TurnCompleted",
    ]
    assert driver.state["answer"] == {"city": "Rome", "degrees": 21}


async def test_output_schema_beside_a_tool() -> None:
    def build(world: World) -> LlmAgent:
        def weather(city: str) -> int:
            """Weather."""
            return 21

        return agent_with(world, weather, output_schema=Answer)

    script: list[Step] = [
        [call("weather", city="Rome"), call("set_model_response", city="Rome", degrees=1)],
    ]
    await compare(build, script, **READ)


SIGNATURE = bytes(range(256))


async def test_streaming_with_thoughts_and_signatures() -> None:
    def build(world: World) -> LlmAgent:
        def weather(city: str) -> int:
            """Weather."""
            return 21

        return agent_with(world, weather)

    made = types.Part(
        function_call=types.FunctionCall(name="weather", args={"city": "Zürich"}),
        thought_signature=SIGNATURE,
    )
    script: list[Step] = [
        [
            answer(thought("Let me "), partial=True),
            answer(thought("think. "), partial=True),
            answer(text("I look "), partial=True),
            answer(text("it up."), partial=True),
            answer(thought("Let me think. "), text("I look it up."), made),
        ],
        [
            answer(text("21 "), partial=True),
            answer(text("°C"), partial=True),
            answer(text("21 °C")),
        ],
    ]
    driver = await compare(build, script, **READ)
    assert [e["text"] for e in driver.live.of("reasoning_delta")] == ["Let me ", "think. "]
    assert [e["text"] for e in driver.live.of("text_delta")] == ["I look ", "it up.", "21 ", "°C"]
    assert driver.usage == TokenUsage(28, 10, 2)
    stored = driver.history[1].framework_item["content"]["parts"][2]
    assert types.Part.model_validate(stored).thought_signature == SIGNATURE
    outcome = driver.outcomes[-1]
    assert outcome.metadata.request_model == "scripted"
    assert outcome.metadata.response_model == "scripted-1"
    assert outcome.metadata.finish_reasons == ("stop",)
    assert driver.history[1].text == "I look it up."
    assert [m.role for m in driver.history] == [
        MessageRole.USER,
        MessageRole.ASSISTANT,
        MessageRole.TOOL,
        MessageRole.ASSISTANT,
    ]
    assert [m.tool_name for m in driver.history] == [None, "weather", "weather", None]


async def test_without_streaming() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world)

    driver = await compare(
        build,
        [[thought("hm"), text("hello")]],
        run_config=RunConfig(streaming_mode=StreamingMode.NONE),
    )
    assert [(e["type"], e["text"]) for e in driver.live.events] == [
        ("reasoning_delta", "hm"),
        ("text_delta", "hello"),
    ]


async def test_run_config_metadata_and_include_contents_none() -> None:
    def build(world: World) -> LlmAgent:
        def tool() -> str:
            """Tool."""
            return "ok"

        return agent_with(world, tool, include_contents="none")

    config = RunConfig(custom_metadata={"tenant": "t1"}, labels={"team": "x"})
    driver = await compare(
        build, [call("tool"), text("a"), text("b")], ["1", "2"], run_config=config, **READ
    )
    assert driver.history[-1].framework_item["custom_metadata"] == {"tenant": "t1"}
