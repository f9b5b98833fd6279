"""Sessions that an earlier release has stored go on as sessions that this code has made itself."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dex_agents import AgentMessage, AgentSnapshot, InterruptKind, TokenUsage
from dex_agents._history_events import read_history_events
from dex_agents.testing import private_engine
from recorded.kit import (
    DATA_FILE,
    FIRST_NAMES,
    GO_ON,
    IMAGE,
    MEDIA_FOLDER,
    NAMES_FILE,
    RECORD,
    Recorder,
    recorder,
)

HERE = Path(__file__).parent
REWORDED = {
    "The tool did not run: the turn was cancelled before it began": (
        "The tool did not run: it waited for an answer, and nobody gave one before the turn was "
        "cancelled"
    )
}
"""What notes of earlier releases said in other words, of the calls of these sessions."""
RELEASES = sorted(path.name for path in HERE.iterdir() if (path / DATA_FILE).exists())


def names_of(release: str) -> list[str]:
    """The sessions of a recording, in the order in which they were made."""
    file = HERE / release / NAMES_FILE
    names = json.loads(file.read_text()) if file.exists() else FIRST_NAMES
    return [name for name in RECORD if name in names]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Each recording."""
    return str(request.param)


@pytest.fixture
async def recorded(release: str, tmp_path: Path) -> AsyncIterator[Recorder]:
    """The recorded sessions of a release, on an engine of a copy, served by this code."""
    folder = tmp_path / "recorded"
    shutil.copytree(HERE / release, folder)
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


def reworded_tokens(requests: list[Any]) -> int:
    """How many more tokens the scripted model would count with the words of today."""
    said = json.dumps(requests)
    more = [said.count(before) * (len(today) - len(before)) for before, today in REWORDED.items()]
    assert all(characters % 4 == 0 for characters in more), "else each request rounds by itself"
    return sum(more) // 4


def in_any_order(requests: list[Any]) -> list[str]:
    """Agents side by side ask in any order."""
    return sorted(as_said_today(json.dumps(without_ids(request))) for request in requests)


async def snapshot_of(to: Recorder, name: str) -> AgentSnapshot:
    """Where a session stands; revisions of calls side by side are of a clock."""
    return replace(await to.clients[name].get_agent_snapshot(name), revision=0)


async def is_there(to: Recorder, name: str) -> bool:
    snapshot = await snapshot_of(to, name)
    return bool(snapshot.turns_done or snapshot.pending_interrupts)


async def history(to: Recorder, name: str) -> list[Any]:
    page = await to.clients[name].list_messages(name, turns=100)
    return [_shown(message) for message in page.messages]


def _shown(message: AgentMessage) -> Any:
    text = as_said_today(message.text)
    images = list(message.images)
    return (message.turn_id, message.sequence, message.role, text, images, message.is_note)


def as_said_today(text: str) -> str:
    """What notes say is stored, so that of an earlier release stays as it was."""
    for before, today in REWORDED.items():
        text = text.replace(before, today)
    return text


async def test_each_goes_on_as_if_made_today(
    release: str, recorded: Recorder, fresh: Recorder
) -> None:
    for name in names_of(release):
        assert await is_there(recorded, name), f"{name} was not recorded"
        await RECORD[name](fresh)
        assert await history(recorded, name) == await history(fresh, name)
        asked_before = len(fresh.requests()), len(recorded.requests())
        await GO_ON[name](recorded)
        await GO_ON[name](fresh)
        assert await history(recorded, name) == await history(fresh, name)
        requests = fresh.requests()[asked_before[0] :]
        assert len(requests) >= 1
        assert in_any_order(recorded.requests()[asked_before[1] :]) == in_any_order(requests), name
        more_tokens = reworded_tokens(recorded.requests()[asked_before[1] :])
        before, today = [await snapshot_of(to, name) for to in (recorded, fresh)]
        assert replace(before, usage=before.usage + TokenUsage(more_tokens)) == today, name
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


def test_the_newest_recording_has_every_session_of_the_kit() -> None:
    assert names_of(RELEASES[-1]) == list(RECORD)


@pytest.mark.parametrize("release", RELEASES[-1:], indirect=True)
async def test_the_newest_recording_has_every_kind_of_wait_and_of_stored_state(
    release: str, recorded: Recorder
) -> None:
    waits: set[str] = set()
    stored: set[str] = set()
    for name in (*names_of(release), "source"):
        snapshot = await recorded.clients[name].get_agent_snapshot(name)
        waits |= {interrupt.kind for interrupt in snapshot.pending_interrupts}
        async for event in read_history_events(recorded.address, name):
            stored |= set(re.findall(r'\bkey: "([a-z_]+)', str(event)))
    assert waits == set(InterruptKind)
    attributes = recorded.flow.get_persistence_schema().attributes
    assert stored >= {attribute.name for attribute in attributes}
