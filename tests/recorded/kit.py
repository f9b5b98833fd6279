"""Sessions that are recorded at each release, and how later code goes on with them.

What a session is must not change once a release has recorded it: add sessions, leave these.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCacheConfig,
    ClientOptions,
    Registry,
    WorkerTarget,
    open_blob_cache,
)
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    CompactionPolicy,
    LocalDirectoryMediaStore,
    ToolEffect,
    ToolPolicy,
    agent_worker_options,
)
from dex_agents_google_adk import adk_agent_session_flow
from recorded import waits

TURN_S = 60.0
DATA_FILE = "sessions.data"
MEDIA_FOLDER = "media"
NAMES_FILE = "sessions.json"
FIRST_NAMES = ("tools", "approval", "compacted", "images", "tree")
"""The sessions of a folder without :data:`NAMES_FILE`."""
IMAGE = b"\x89PNG\r\n\x1a\nrecorded" + bytes(range(64))
BULK = "x" * 900
POLICIES = {
    "look": ToolPolicy(ToolEffect.READ),
    "pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
}


class ReplyingModel(BaseLlm):
    """Answers from the request alone, so any process at any time can go on; writes it down."""

    model: str = "recorded"
    requests: Path
    always_calls: str = ""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Call the tool that the user's text names, report what it answered, or reply."""
        contents = [c.model_dump(mode="json", exclude_none=True) for c in llm_request.contents]
        with self.requests.open("a") as file:
            file.write(json.dumps(contents) + "\n")
        parts = llm_request.contents[-1].parts or []
        answers = [p.function_response.response for p in parts if p.function_response is not None]
        said = next((p.text for p in parts if p.text), "")
        tool, _, item = said.partition(" ")
        if self.always_calls and not answers:
            tool, item = self.always_calls, "tree"
        if answers:
            part = types.Part(text=f"{json.dumps(answers)} after {len(contents)}")
        elif tool in POLICIES:
            part = types.Part(function_call=types.FunctionCall(name=tool, args={"item": item}))
        else:
            part = types.Part(text=f"heard {said[:20]} after {len(contents)}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def build_flows(folder: Path, media: Path) -> dict[str, AgentSessionFlow]:
    """The Flow of each recorded session, by session id."""

    def model(always_calls: str = "") -> ReplyingModel:
        return ReplyingModel(requests=folder / "requests.jsonl", always_calls=always_calls)

    def look(item: str, tool_context: ToolContext) -> dict[str, str]:
        """Look at it."""
        tool_context.state["seen"] = item
        return {"seen": item}

    def pay(item: str) -> str:
        """Pay for it."""
        return f"paid {item}"

    def agent(name: str, **fields: Any) -> LlmAgent:
        settings: dict[str, Any] = {"model": model(), "tools": [look, pay], **fields}
        return LlmAgent(name=name, **settings)

    tree = SequentialAgent(
        name="tree",
        sub_agents=[
            agent("first", output_key="draft"),
            agent("second", model=model("pay"), instruction="Pay for {draft}. {seen?}"),
        ],
    )
    compaction = CompactionPolicy(context_window_tokens=2_000, kept_turns=1)

    def flow(name: str, root: Any, **settings: Any) -> AgentSessionFlow:
        return adk_agent_session_flow(
            root, flow_type=f"Recorded-{name}", tool_policies=POLICIES, **settings
        )

    return {
        "tools": flow("tools", agent("root", instruction="Seen: {seen?}")),
        "approval": flow("approval", agent("root")),
        "compacted": flow("compacted", agent("root"), compaction=compaction, summary_model=model()),
        "images": flow("images", agent("root"), media_store=LocalDirectoryMediaStore(media)),
        "tree": flow("tree", tree),
        **waits.build_flows(folder),
    }


@dataclass
class Recorder:
    """Clients of the recorded sessions, served by a Worker of this process."""

    folder: Path
    clients: dict[str, AgentSessionClient]
    media: LocalDirectoryMediaStore
    address: str
    flow: AgentSessionFlow

    async def turn(self, name: str, text: str, number: int, **more: Any) -> None:
        """A turn to its end, or until it waits for a person."""
        client = self.clients[name]
        if number == 1:
            await client.start_session(name, text, **more)
        else:
            await client.send_user_message(name, text, message_id=f"m{number}", **more)
        await client.wait_until_settled(name, turns_done=number, timeout_s=TURN_S)

    async def approve(self, name: str, number: int) -> None:
        """Approve what the session waits for; its turn to its end."""
        client = self.clients[name]
        (asked,) = (await client.get_agent_snapshot(name)).pending_interrupts
        await client.resolve_interrupt(
            name, asked.interrupt_id, approved=True, arguments_digest=asked.arguments_digest
        )
        await client.wait_for_turn(name, number, timeout_s=TURN_S)

    def requests(self) -> list[Any]:
        """What models were asked, oldest first."""
        lines = (self.folder / "requests.jsonl").read_text().splitlines()
        asked = map(json.loads, lines)
        return [line["contents"] if isinstance(line, dict) else line for line in asked]


@contextlib.asynccontextmanager
async def recorder(server_address: str, folder: Path, media: Path) -> AsyncIterator[Recorder]:
    """A Worker and clients of all recorded sessions for the block."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requests.jsonl").touch()
    flows = build_flows(folder, media)
    # Forks are of the Flow of their source.
    registry = Registry(list(dict.fromkeys(flows.values())), allow_async_handlers=True)
    cache = open_blob_cache(BlobCacheConfig(str(folder / "cache"), 1 << 20))
    options = agent_worker_options(server_address, idle_streams_per_queue=1)
    worker = AsyncWorker(registry, cache, options)
    serving = asyncio.create_task(worker.start())
    await worker.wait_pull_registered(timeout=30)
    target = ClientOptions(server_address=server_address, worker_target=WorkerTarget(pull=True))
    client = AsyncClient(registry, cache, target)
    clients = {name: AgentSessionClient(client, flow) for name, flow in flows.items()}
    try:
        store = LocalDirectoryMediaStore(media)
        yield Recorder(folder, clients, store, server_address, flows["tools"])
    finally:
        await client.close()
        await worker.stop()
        await serving
        cache.close()


async def _record_tools(to: Recorder) -> None:
    await to.turn("tools", "look lamp", 1)
    await to.turn("tools", "hello", 2)


async def _record_approval(to: Recorder) -> None:
    await to.turn("approval", "look door", 1)
    await to.turn("approval", "pay rent", 2)


async def _record_compacted(to: Recorder) -> None:
    for number in range(1, 6):
        await to.turn("compacted", f"hello {BULK}", number)


async def _record_images(to: Recorder) -> None:
    reference = await to.media.put_image(IMAGE)
    await to.turn("images", "hello", 1, images=[reference])


async def _record_tree(to: Recorder) -> None:
    await to.turn("tree", "look tree", 1)
    await to.approve("tree", 1)
    await to.turn("tree", "hello", 2)


RECORD: dict[str, Callable[[Recorder], Awaitable[None]]] = {
    "tools": _record_tools,
    "approval": _record_approval,
    "compacted": _record_compacted,
    "images": _record_images,
    "tree": _record_tree,
    **waits.RECORD,
}


async def _go_on_tools(to: Recorder) -> None:
    await to.turn("tools", "look door", 3)


async def _go_on_approval(to: Recorder) -> None:
    await to.approve("approval", 2)
    await to.turn("approval", "pay more", 3)
    await to.approve("approval", 3)


async def _go_on_compacted(to: Recorder) -> None:
    for number in range(6, 9):
        await to.turn("compacted", f"hello {BULK}", number)


async def _go_on_images(to: Recorder) -> None:
    await to.turn("images", "look image", 2)


async def _go_on_tree(to: Recorder) -> None:
    await to.approve("tree", 2)
    await to.turn("tree", "look leaf", 3)
    await to.approve("tree", 3)


GO_ON: dict[str, Callable[[Recorder], Awaitable[None]]] = {
    "tools": _go_on_tools,
    "approval": _go_on_approval,
    "compacted": _go_on_compacted,
    "images": _go_on_images,
    "tree": _go_on_tree,
    **waits.GO_ON,
}
