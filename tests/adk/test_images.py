"""Images: bytes in the model's requests, placeholders in everything stored."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from dex_agents import (
    AgentSessionFlow,
    AgentSessionOptions,
    ImageReference,
    InvalidInputError,
    LocalDirectoryMediaStore,
    ModelCallError,
    ToolEffect,
)
from dex_agents.testing import private_engine, read_step_history
from dex_agents_google_adk import AdkAgentRunner, _images, adk_agent_session_flow
from support.adk_oracle import Driver, ScriptedLlm, World, call, text
from support.serving import serve

RED = b"\x89PNG\r\n\x1a\nred" + bytes(range(256))
BLUE = b"\xff\xd8\xffblue" + bytes(range(256))


def part(data: bytes, mime_type: str = "image/png") -> types.Part:
    return types.Part.from_bytes(data=data, mime_type=mime_type)


RESULTS: dict[str, Callable[[], Any]] = {
    "bare": lambda: part(RED),
    "list": lambda: ["before", part(RED), part(BLUE, "image/jpeg")],
    "dict": lambda: {"title": "chart", "image": part(RED)},
    "nested": lambda: {"title": "charts", "images": [part(RED), part(BLUE, "image/jpeg")]},
    "only list": lambda: [part(RED)],
}


def agent(world: World, result: Callable[[], Any], **fields: Any) -> LlmAgent:
    def draw() -> Any:
        """Draw."""
        world.ran("draw")
        return result()

    return LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[draw], **fields)


SCRIPT = [[call("draw")], text("a chart"), text("bye")]


async def plain_requests(result: Callable[[], Any]) -> list[Any]:
    world = World(SCRIPT)
    sessions = InMemorySessionService()
    await sessions.create_session(app_name="root", user_id="user", session_id="s")
    runner = Runner(app=App(name="root", root_agent=agent(world, result)), session_service=sessions)
    for parts in (
        [types.Part(text="look"), part(RED), part(BLUE, "image/jpeg")],
        [types.Part(text="next")],
    ):
        message = types.Content(role="user", parts=parts)
        async for _ in runner.run_async(user_id="user", session_id="s", new_message=message):
            pass
    return world.requests


@pytest.mark.parametrize("name", RESULTS)
async def test_requests_equal_plain_adk_and_nothing_stored_has_bytes(
    name: str, tmp_path: Path
) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    references = [await store.put_image(RED), await store.put_image(BLUE)]
    world = World(SCRIPT)
    runner: Any = AdkAgentRunner(
        agent(world, RESULTS[name]), default_tool_effect=ToolEffect.READ, media_store=store
    )
    driver = Driver(runner, world, repeats=2)
    driver.build_message = lambda said: (
        runner.build_user_message_with_images(said, references)
        if said == "look"
        else runner.build_user_message(said)
    )
    await driver.turn("look")
    await driver.turn("next")
    assert world.requests == await plain_requests(RESULTS[name])
    kept = repr((driver.outcomes, driver.history))
    for data in (RED, BLUE):
        assert base64.b64encode(data).decode()[8:40] not in kept
        assert repr(data)[8:40] not in kept
    assert [list(message.images) for message in driver.history if message.role == "user"] == [
        references,
        [],
    ]
    shown = next(m for m in driver.history if m.role == "tool")
    assert references[0] in list(shown.images)


async def test_callbacks_see_the_placeholders(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    reference = await store.put_image(RED)
    seen: list[Any] = []

    def after(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> Any:
        seen.append(tool_response)
        return {"title": "replaced"} if drop else None

    for drop in (False, True):
        world = World(SCRIPT[:2])
        runner = AdkAgentRunner(
            agent(world, RESULTS["dict"], after_tool_callback=after),
            default_tool_effect=ToolEffect.READ,
            media_store=store,
        )
        driver = Driver(runner, world)
        await driver.turn("draw")
        placeholders = seen.pop()["__dex_images__"]
        assert [item.file_data.file_uri for item in placeholders] == [reference.uri]
        response = world.requests[1]["contents"][-1]["parts"][0]["function_response"]
        assert ("parts" in response) is not drop
        assert response["response"]["title"] == ("replaced" if drop else "chart")


async def test_plugins_see_placeholders_and_agents_see_bytes(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    reference = await store.put_image(RED)
    seen: dict[str, Any] = {}

    class Watcher(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
            seen["plugin"] = llm_request.contents[0].parts[1].file_data.file_uri

    def before_model(callback_context: Any, llm_request: Any) -> None:
        seen["agent"] = llm_request.contents[0].parts[1].inline_data.data

    world = World([text("ok")])
    root = agent(world, RESULTS["bare"], before_model_callback=before_model)
    runner: Any = AdkAgentRunner(
        App(name="root", root_agent=root, plugins=[Watcher("watcher")]), media_store=store
    )
    driver = Driver(runner, world)
    driver.build_message = lambda said: runner.build_user_message_with_images(said, [reference])
    await driver.turn("look")
    assert seen == {"plugin": reference.uri, "agent": RED}


async def test_other_file_data_reaches_the_model_unchanged(tmp_path: Path) -> None:
    def result() -> Any:
        return {"doc": types.Part.from_uri(file_uri="gs://b/x.png", mime_type="image/png")}

    world = World(SCRIPT[:2])
    store = LocalDirectoryMediaStore(tmp_path)
    runner = AdkAgentRunner(
        agent(world, result), default_tool_effect=ToolEffect.READ, media_store=store
    )
    await Driver(runner, world).turn("go")
    assert "gs://b/x.png" in json.dumps(world.requests[1])


async def test_without_a_store_images_of_tools_are_left_out(tmp_path: Path) -> None:
    lost = "1 image was left out: the session has no media store"
    for name, expected in (
        ("dict", {"title": "chart", "not_stored": lost}),
        ("bare", {"not_stored": lost}),
        (
            "list",
            {"result": ["before"], "not_stored": lost.replace("1 image was", "2 images were")},
        ),
    ):
        world = World(SCRIPT[:2])
        runner = AdkAgentRunner(agent(world, RESULTS[name]), default_tool_effect=ToolEffect.READ)
        assert not hasattr(runner, "build_user_message_with_images")
        await Driver(runner, world).turn("go")
        response = world.requests[1]["contents"][-1]["parts"][0]["function_response"]
        assert response["response"] == expected


@pytest.mark.parametrize(
    ("image", "effect", "why"),
    [
        (
            part(b"<svg/>", "image/svg+xml"),
            ToolEffect.READ,
            "the data is no image of a known type;",
        ),
        (part(RED), ToolEffect.NON_IDEMPOTENT_WRITE, "it could not be stored (MediaStoreError)"),
    ],
)
async def test_an_image_that_cannot_be_stored_hides_no_result(
    image: types.Part, effect: ToolEffect, why: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    world = World(SCRIPT[:2])
    runner = AdkAgentRunner(
        agent(world, lambda: {"title": "chart", "images": [image, image]}),
        default_tool_effect=effect,
        media_store=LocalDirectoryMediaStore(tmp_path / "file"),
    )
    await Driver(runner, world).turn("go")
    assert image.inline_data is not None
    response = world.requests[1]["contents"][-1]["parts"][0]["function_response"]["response"]
    assert response["title"] == "chart"
    lost = f"image of type {image.inline_data.mime_type} was left out: {why}"
    assert response["not_stored"].count(lost) == 2
    assert world.executed == world.executed[:1]


async def test_a_lost_image_fails_the_model_call(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    world = World([text("ok")])
    runner: Any = AdkAgentRunner(agent(world, RESULTS["bare"]), media_store=store)
    driver = Driver(runner, world)
    lost = ImageReference("dex-media-local:" + "0" * 64, "image/png")
    driver.build_message = lambda said: runner.build_user_message_with_images(said, [lost])
    with pytest.raises(ModelCallError, match=r"could not be read.*same folder"):
        await driver.turn("look")
    assert world.requests == []


async def test_a_store_that_gives_no_bytes_is_named(tmp_path: Path) -> None:
    class Wrong(LocalDirectoryMediaStore):
        async def get_image(self, uri: str) -> Any:
            return None

    world = World([text("unreached")])
    runner: Any = AdkAgentRunner(agent(world, RESULTS["bare"]), media_store=Wrong(tmp_path))
    driver = Driver(runner, world)
    reference = ImageReference("dex-media-local:" + "0" * 64, "image/png")
    driver.build_message = lambda said: runner.build_user_message_with_images(said, [reference])
    with pytest.raises(ModelCallError, match="get_image of the media store gave a NoneType"):
        await driver.turn("look")
    assert world.requests == []


async def test_an_image_that_many_read_at_once_counts_once_in_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_images, "_CACHE_BYTES", 2 * len(RED))
    reads: list[str] = []
    all_read = asyncio.Event()

    class Slow:
        async def put_image(self, data: bytes) -> ImageReference:
            raise AssertionError(data)

        async def get_image(self, uri: str) -> bytes:
            reads.append(uri)
            if len(reads) == 5:
                all_read.set()
            await all_read.wait()
            return RED

    def request(uri: str) -> LlmRequest:
        file = types.Part.from_uri(file_uri=uri, mime_type="image/png")
        return LlmRequest(contents=[types.Content(role="user", parts=[file])])

    loader = _images.ImageLoader(Slow())
    known = {"a", "b"}
    await asyncio.gather(*(loader.fill(request("a"), known) for _ in range(5)))
    reads.clear()
    for uri in ("b", "a", "b"):
        await loader.fill(request(uri), known)
    assert reads == ["b"], "both fit"


async def test_images_through_a_real_session(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path / "media")
    world = World(SCRIPT)
    flow = adk_agent_session_flow(
        agent(world, RESULTS["nested"]),
        flow_type="Painter",
        default_tool_effect=ToolEffect.READ,
        media_store=store,
    )
    bare = adk_agent_session_flow(agent(world, RESULTS["bare"]), flow_type="NoImages")
    red, blue = await store.put_image(RED), await store.put_image(BLUE)
    async with private_engine(tmp_path / "engine.db") as engine:
        async with serve(engine.address, flow, tmp_path) as sessions:
            await sessions.start_session("p", "look", images=[red, blue])
            await sessions.wait_for_turn("p", 1, timeout_s=40)
            await sessions.send_user_message("p", "next", images=[blue])
            await sessions.wait_for_turn("p", 2, timeout_s=40)
            page = await sessions.list_messages("p")
        images = [list(message.images) for message in page.messages if message.images]
        assert images == [[red, blue], [red, blue], [blue]]
        async with serve(engine.address, bare, tmp_path) as sessions:
            await sessions.start_session("m", "look")
            with pytest.raises(InvalidInputError, match=r"takes no images.*media_store"):
                await sessions.send_user_message("m", "look again", images=[red])
            with pytest.raises(InvalidInputError, match=r"takes no images.*media_store"):
                await sessions.start_session("n", "look", images=[red])
            with pytest.raises(InvalidInputError, match="ImageReference objects, got str"):
                await sessions.start_session("n", "look", images=["x"])  # type: ignore[list-item]
    data = (tmp_path / "engine.db").read_bytes()
    for wal in tmp_path.glob("engine.db*"):
        data += wal.read_bytes()
    assert RED not in data and BLUE not in data
    assert base64.b64encode(RED)[8:60] not in data


async def test_a_store_that_fails_once_costs_an_attempt(tmp_path: Path) -> None:
    class Flaky(LocalDirectoryMediaStore):
        reads = 0

        async def get_image(self, uri: str) -> bytes:
            self.reads += 1
            if self.reads == 1:
                raise ConnectionError("the store is away")
            return await super().get_image(uri)

    store = Flaky(tmp_path / "media")
    world = World([text("a chart")])
    flow = adk_agent_session_flow(
        agent(world, RESULTS["bare"]), flow_type="Flaky", media_store=store
    )
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("f", "look", images=[await store.put_image(RED)])
        snapshot = await sessions.wait_for_turn("f", 1, timeout_s=40)
        assert snapshot.last_turn is not None
        assert (snapshot.last_turn.final_text, snapshot.last_turn.error) == ("a chart", "")
        rows = await read_step_history(engine.address, "f")
    # The model was not asked without the image.
    assert (store.reads, len(world.requests)) == (2, 1)
    assert [row.attempts for row in rows if row.step_type == "RunModel"] == [2]


async def test_an_image_that_is_lost_fails_turns_until_it_is_put_again(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path / "media")

    def flow(answer: str) -> AgentSessionFlow:
        return adk_agent_session_flow(
            agent(World([text(answer)]), RESULTS["bare"]),
            flow_type="Loser",
            media_store=store,
            options=AgentSessionOptions(model_attempts=1),
        )

    red = await store.put_image(RED)
    async with private_engine(tmp_path / "engine.db") as engine:
        async with serve(engine.address, flow("one"), tmp_path) as sessions:
            await sessions.start_session("l", "look", images=[red])
            await sessions.wait_for_turn("l", 1, timeout_s=40)
        shutil.rmtree(tmp_path / "media")
        async with serve(engine.address, flow("two"), tmp_path / "other") as sessions:
            await sessions.send_user_message("l", "and now?")
            snapshot = await sessions.wait_for_turn("l", 2, timeout_s=40)
            assert snapshot.last_turn is not None
            assert red.uri[-64:] in snapshot.last_turn.error
            assert "does every Worker use the same folder?" in snapshot.last_turn.error
            assert await store.put_image(RED) == red
            await sessions.send_user_message("l", "and now?")
            snapshot = await sessions.wait_for_turn("l", 3, timeout_s=40)
            assert snapshot.last_turn is not None
            assert (snapshot.last_turn.final_text, snapshot.last_turn.error) == ("two", "")
