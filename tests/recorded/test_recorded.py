"""Sessions that an earlier release has stored go on as sessions that this code has made itself."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dex_agents import AgentMessage
from dex_agents.testing import private_engine
from recorded.kit import DATA_FILE, GO_ON, IMAGE, MEDIA_FOLDER, RECORD, Recorder, recorder

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.iterdir() if (path / DATA_FILE).exists())


@pytest.fixture(params=RELEASES)
async def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Recorder]:
    """The recorded sessions of a release, on an engine of a copy, served by this code."""
    folder = tmp_path / "recorded"
    shutil.copytree(HERE / request.param, folder)
    data = folder / "engine.db"
    (folder / DATA_FILE).rename(data)
    async with (
        private_engine(data) as engine,
        recorder(engine.address, folder / "worker", folder / MEDIA_FOLDER) as to,
    ):
        yield to


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[Recorder]:
    """The same sessions, made by this code."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    async with (
        private_engine(folder / "engine.db") as engine,
        recorder(engine.address, folder / "worker", folder / MEDIA_FOLDER) as to,
    ):
        yield to


def without_ids(value: Any) -> Any:
    """Ids of calls are made when they are made."""
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key != "id"}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


async def history(to: Recorder, name: str) -> list[Any]:
    page = await to.clients[name].list_messages(name, turns=100)
    return [_shown(message) for message in page.messages]


def _shown(message: AgentMessage) -> Any:
    return (message.turn_id, message.sequence, message.role, message.text, list(message.images))


async def test_each_goes_on_as_if_made_today(recorded: Recorder, fresh: Recorder) -> None:
    for name, make in RECORD.items():
        assert await history(recorded, name), f"{name} was not recorded"
        await make(fresh)
        assert await history(recorded, name) == await history(fresh, name)
        asked_before = len(fresh.requests()), len(recorded.requests())
        await GO_ON[name](recorded)
        await GO_ON[name](fresh)
        assert await history(recorded, name) == await history(fresh, name)
        requests = fresh.requests()[asked_before[0] :]
        assert len(requests) >= 1
        assert without_ids(recorded.requests()[asked_before[1] :]) == without_ids(requests)
        snapshots = [await to.clients[name].get_agent_snapshot(name) for to in (recorded, fresh)]
        assert snapshots[0] == snapshots[1]
        await recorded.clients[name].close_session(name)


async def test_what_was_recorded_is_what_it_should_be(recorded: Recorder) -> None:
    approval = await recorded.clients["approval"].get_agent_snapshot("approval")
    (asked,) = approval.pending_interrupts
    assert (asked.kind, asked.tool_name, asked.arguments) == ("approval", "pay", {"item": "rent"})
    tree = await recorded.clients["tree"].get_agent_snapshot("tree")
    assert (tree.status, tree.pending_interrupts[0].agent_name) == ("waiting", "second")
    (picture,) = [
        image
        for message in (await recorded.clients["images"].list_messages("images")).messages
        for image in message.images
    ]
    assert await recorded.media.get_image(picture.uri) == IMAGE
    await GO_ON["compacted"](recorded)
    assert all(len(contents) < 9 for contents in recorded.requests()), "no summary was used"
