"""Power loss at any moment: what was acknowledged is in the file, and nothing is half there.

Each seed writes a random history through the real journal on a recorded disk, twice: the second time the file is what
the first power loss left. ``POWER_LOSS_SEED=<seed>`` replays one.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dex_lite import _schema
from dex_lite._journal import (
    AddFacts,
    AddStreamMessage,
    DropRun,
    DropSecrets,
    Journal,
    PutIndexTypes,
    PutRun,
    PutSecret,
    PutSnapshot,
    PutStreamGroup,
    RunRow,
    TrimStream,
    Write,
)
from dex_lite_samples import Mailbox, serve
from support.power_loss import Disk, Event, RecordedOs, Recorder

NAME = "engine.db"
CUTS_A_RECORDING = 2
REPLAY = os.environ.get("POWER_LOSS_SEED")


class Content:
    """What a data file should hold."""

    def __init__(self) -> None:
        self.rows: dict[str, RunRow] = {}
        self.facts: dict[str, list[tuple[int, bytes]]] = {}
        self.snapshots: dict[str, tuple[int, bytes]] = {}
        self.secrets: dict[str, dict[str, bytes]] = {}
        self.types: dict[str, int] = {}
        self.groups: dict[int, PutStreamGroup] = {}
        self.messages: dict[int, tuple[int, str, bytes]] = {}

    def apply(self, write: Write) -> None:
        """One write of the journal."""
        if isinstance(write, PutRun):
            self.rows[write.row.run_id] = write.row
            self.facts.setdefault(write.row.run_id, [])
            self.secrets.setdefault(write.row.run_id, {})
        elif isinstance(write, AddFacts):
            self.facts[write.run_id] += enumerate(write.payloads, write.first_number)
        elif isinstance(write, PutSnapshot):
            self.snapshots[write.run_id] = (write.number, write.payload)
        elif isinstance(write, PutIndexTypes):
            self.types.update(write.types)
        elif isinstance(write, PutStreamGroup):
            self.groups[write.group] = write
        elif isinstance(write, AddStreamMessage):
            self.messages[write.sequence] = (write.created_ms, write.source, write.value)
        elif isinstance(write, PutSecret):
            self.secrets[write.run_id].pop(write.attribute, None)
            if write.value is not None:
                self.secrets[write.run_id][write.attribute] = write.value
        elif isinstance(write, DropSecrets):
            self.secrets[write.run_id] = {}
        elif isinstance(write, DropRun):
            for kept in (self.rows, self.facts, self.snapshots, self.secrets):
                kept.pop(write.run_id, None)
        elif isinstance(write, TrimStream):
            for sequence in write.sequences:
                self.messages.pop(sequence, None)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class History:
    """Random batches, and the content after each of them."""

    def __init__(self, chance: random.Random, start: Content) -> None:
        self.chance = chance
        self.contents = [start]
        self.runs = len(start.rows)

    def batch(self) -> list[Write]:
        """The next batch."""
        pick = self.chance
        content = copy.deepcopy(self.contents[-1])
        writes: list[Write] = []

        def add(write: Write) -> None:
            content.apply(write)
            writes.append(write)

        closed = sorted(name for name, row in content.rows.items() if row.close_ms is not None)
        if closed and pick.random() < 0.2:
            add(DropRun(pick.choice(closed)))
        if not content.rows or pick.random() < 0.2:
            self.runs += 1
            name = f"r{self.runs}"
            add(PutRun(RunRow(name, f"flow-{name}", "Type", 1, 1, "", name, 1, None)))
        for _ in range(pick.randint(1, 3)):
            run = pick.choice(sorted(content.rows))
            number = len(content.facts[run]) + 1
            count = pick.choice((1, 1, 2, 5))
            add(AddFacts(run, number, [self.bytes() for _ in range(count)]))
            if pick.random() < 0.2:
                value = self.bytes() if pick.random() < 0.7 else None
                add(PutSecret(run, pick.choice("st"), value))
            if pick.random() < 0.05:
                add(DropSecrets(run))
            if pick.random() < 0.15:
                add(PutSnapshot(run, number, self.bytes()))
            if pick.random() < 0.05:
                row = content.rows[run]
                add(PutRun(RunRow(*(*_fields(row)[:8], 99))))
        if pick.random() < 0.1:
            add(PutIndexTypes({pick.choice("abc"): pick.randint(1, 5)}))
        if pick.random() < 0.3:
            if not content.groups:
                add(PutStreamGroup(1, "Type", "stream", 1_000))
            sequence = max(content.messages, default=0) + 1
            add(AddStreamMessage(sequence, 1, 5, "flow-r0", "source", self.bytes()))
            if pick.random() < 0.3:
                add(TrimStream(pick.sample(sorted(content.messages), 1)))
        self.contents.append(content)
        return writes

    def bytes(self) -> bytes:
        """Small mostly; sometimes more than a page."""
        return self.chance.randbytes(self.chance.choice((5, 40, 200, 700, 9_000)))


def _fields(row: RunRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in row.__struct_fields__)


async def read(journal: Journal) -> Content:
    """Everything that is in the file."""
    content = Content()
    content.rows = {row.run_id: row for row in journal.latest_runs()}
    for run_id in content.rows:
        content.facts[run_id] = await journal.facts(run_id, 0, -1)
        content.secrets[run_id] = await journal.secrets(run_id)
    for stored in journal.open_runs():
        first = stored.snapshot[0] if stored.snapshot else 0
        assert stored.facts == [f for f in content.facts[stored.row.run_id] if f[0] > first]
        if stored.snapshot is not None:
            content.snapshots[stored.row.run_id] = stored.snapshot
    content.types = journal.index_types()
    groups, messages = journal.stream_contents()
    content.groups = {group.group: group for group in groups}
    content.messages = await journal.stream_messages([message[0] for message in messages])
    return content


def without_closed(content: Content) -> Content:
    """The journal shows no snapshot of a closed run."""
    seen = copy.copy(content)
    seen.snapshots = {
        run_id: snapshot
        for run_id, snapshot in content.snapshots.items()
        if content.rows[run_id].close_ms is None
    }
    return seen


def open_journal(path: Path, **options: Any) -> Journal:
    def failed(error: BaseException) -> None:
        raise AssertionError("the journal failed") from error

    return Journal.open(str(path), loop=asyncio.get_running_loop(), on_failed=failed, **options)


async def record(
    folder: Path, history: History, durability: str, override: dict[str, str] | None = None
) -> Disk:
    """Write a history through the journal; the recording of it."""
    disk = Disk(folder)
    recorder = Recorder(disk, override)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_schema, "os", RecordedOs(disk))
        pages = history.chance.choice((3, 12, 2_048))
        patch.setattr(_schema, "_AUTO_CHECKPOINT_PAGES", pages)
        journal = open_journal(folder / NAME, durability=durability, connect=recorder)
        for number in range(1, history.chance.randint(2, 16)):
            committed = asyncio.get_running_loop().create_future()
            journal.when_durable(
                journal.submit(history.batch()),
                lambda done=committed: done.set_result(None),  # type: ignore[misc]
            )
            await committed
            disk.events.append(Event("acknowledged", offset=number))
        await journal.close()
    recorder.close()
    return disk


def fill(folder: Path, files: dict[str, bytes]) -> None:
    """A folder with these files and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


async def check_cut(
    folder: Path, disk: Disk, history: History, durability: str
) -> tuple[dict[str, bytes], Content]:
    """Lose power at a random moment and open what is left; those files, and what is in them."""
    chance = history.chance
    cut = chance.randint(0, len(disk.events))
    files = disk.after_power_loss(cut, chance)
    fill(folder, files)
    acknowledged = max((e.offset for e in disk.events[:cut] if e.kind == "acknowledged"), default=0)
    where = f"power lost after event {cut} of {len(disk.events)}, {acknowledged} acknowledged"
    journal = open_journal(folder / NAME)
    content = await read(journal)
    first = acknowledged if durability == "full" else 0
    # What was in the file when the recording began is there in either mode.
    matches = [c for c in history.contents[first:] if without_closed(c) == content]
    assert matches, f"{where}: the file has none of the possible contents"
    # It can be written, too.
    more = copy.deepcopy(matches[-1])
    write = PutRun(RunRow("new", "new", "T", 1, 1, "", "new", 1, None))
    if chance.random() < 0.3:
        more.apply(write)
        journal.submit([write])
    await journal.close()
    if "new" not in more.rows:
        return files, matches[-1]
    journal = open_journal(folder / NAME)
    assert await read(journal) == without_closed(more), f"{where}: writing after it failed"
    await journal.close()
    return files, matches[-1]


async def check_seed(seed: int, folder: Path, override: dict[str, str] | None = None) -> None:
    """One schedule: two recordings, each with a few places where power is lost."""
    chance = random.Random(seed)
    durability = chance.choice(("full", "full", "full", "normal"))
    files: dict[str, bytes] = {}
    content = Content()
    try:
        for _ in range(2):
            fill(folder / "a", files)
            history = History(chance, content)
            disk = await record(folder / "a", history, durability, override)
            for _ in range(CUTS_A_RECORDING):
                files, content = await check_cut(folder / "b", disk, history, durability)
    except Exception as error:
        raise AssertionError(f"POWER_LOSS_SEED={seed}, durability {durability}: {error}") from error


def seeds(first: int, count: int) -> Iterator[int]:
    """This range, or the one to replay."""
    yield from [int(REPLAY)] if REPLAY else range(first, first + count)


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
async def test_power_loss(tmp_path: Path, first_seed: int) -> None:
    for seed in seeds(first_seed, 50):
        await check_seed(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1_000, 11_000, 1_000))
async def test_power_loss_long(tmp_path: Path, first_seed: int) -> None:
    for seed in seeds(first_seed, 1_000):
        await check_seed(seed, tmp_path)


async def record_engine(folder: Path, messages: int) -> Disk:
    """A whole engine with a Worker takes messages; each answered RPC is an acknowledgement."""
    disk = Disk(folder)
    recorder = Recorder(disk)
    mailbox = Mailbox()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_schema, "os", RecordedOs(disk))
        patch.setattr(_schema, "_AUTO_CHECKPOINT_PAGES", 20)
        # Two copies of SQLite in one process must not share a file.
        patch.setattr(_schema, "open_reader", recorder)
        patch.setattr(Journal, "open", functools.partial(Journal.open, connect=recorder))
        async with serve(folder, mailbox) as app:
            await app.client.start_flow(mailbox, "f", 0)
            disk.events.append(Event("acknowledged", offset=0))
            for number in range(1, messages + 1):
                await app.call(mailbox.send, "f", f"message {number}")
                disk.events.append(Event("acknowledged", offset=number))
    recorder.close()
    return disk


async def test_an_engine_goes_on_after_power_loss(tmp_path: Path) -> None:
    seed = int(REPLAY or 7)
    chance = random.Random(seed)
    (tmp_path / "a").mkdir()
    disk = await record_engine(tmp_path / "a", 12)
    first = next(i for i, e in enumerate(disk.events) if e.kind == "acknowledged")
    for cut in sorted(chance.sample(range(first + 1, len(disk.events)), 8)):
        fill(tmp_path / "b", disk.after_power_loss(cut, chance))
        acknowledged = max(e.offset for e in disk.events[:cut] if e.kind == "acknowledged")
        mailbox = Mailbox()
        async with serve(tmp_path / "b", mailbox) as app:
            await app.call(mailbox.send, "f", "end")
            taken = (await app.client.wait_for_flow("f")).single_output(int) - 1
        where = f"POWER_LOSS_SEED={seed}, cut {cut} of {len(disk.events)}"
        assert acknowledged <= taken <= acknowledged + 1, f"{where}: {taken} of {acknowledged}"


@pytest.mark.parametrize(
    "override",
    [
        {"PRAGMA synchronous = full": "PRAGMA synchronous = off"},
        {"PRAGMA journal_mode = WAL": "PRAGMA journal_mode = MEMORY"},
    ],
)
async def test_an_unsafe_journal_is_found_out(tmp_path: Path, override: dict[str, str]) -> None:
    """The same check sees that a journal does not sync, or has no log."""

    async def check() -> None:
        for seed in range(50):
            await check_seed(seed, tmp_path, override)

    with pytest.raises(AssertionError, match=r"none of the possible contents|cannot be read"):
        await check()
