"""Stream messages: order, capacity, tokens, waiting, and what a restart keeps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dex_lite import _stream_log
from dex_lite._errors import StreamArgumentError, StreamOverCapacity, StreamTokenError
from dex_lite._journal import Journal
from dex_lite._stream_log import MAX_VALUE_BYTES, MESSAGE_OVERHEAD, Message, StreamKey, StreamLog

KEY = StreamKey("Flow", "events", "flow-1")
OTHER = StreamKey("Flow", "events", "flow-2")
BIG = 1 << 30


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[StreamLog]:
    def failed(error: BaseException) -> None:
        raise AssertionError("the journal failed") from error

    journal = Journal.open(str(path), loop=asyncio.get_running_loop(), on_failed=failed, **options)
    try:
        yield StreamLog(journal)
    finally:
        await journal.close()


def append(log: StreamLog, *values: bytes, key: StreamKey = KEY, capacity: int = BIG) -> None:
    for value in values:
        log.append(key, value, "#s-1", capacity, 1000)


async def read_all(log: StreamLog, key: StreamKey = KEY, token: str = "") -> list[bytes]:
    values = []
    while (message := await log.read(key, token, 0)) is not None:
        values.append(message.value)
        token = message.resume_token
    return values


async def list_all(log: StreamLog, key: StreamKey = KEY, page_size: int = 3) -> list[bytes]:
    values: list[bytes] = []
    before = ""
    while True:
        page, before = await log.list(key, page_size, before)
        values += [message.value for message in page]
        if not before:
            return values


async def first(log: StreamLog, key: StreamKey = KEY, token: str = "") -> Message:
    message = await log.read(key, token, 0)
    assert message is not None
    return message


async def test_messages_come_in_order_and_lists_newest_first(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db") as log:
        values = [b"%d" % number for number in range(10)]
        append(log, *values)
        append(log, b"elsewhere", key=OTHER)
        message = await first(log)
        assert (message.value, message.source, message.created_ms) == (b"0", "#s-1", 1000)
        assert await read_all(log) == values
        assert await list_all(log) == values[::-1]
        assert await list_all(log, page_size=10) == values[::-1]
        assert await read_all(log, OTHER) == [b"elsewhere"]
        assert await read_all(log, StreamKey("Flow", "no", "flow-1")) == []
        assert await log.list(StreamKey("Flow", "no", "flow-1"), 5, "") == ([], "")


async def test_restart_keeps_messages_and_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path) as log:
        append(log, b"a", b"b", b"c")
        token = (await first(log)).resume_token
    async with opened(path) as log:
        assert await read_all(log, token=token) == [b"b", b"c"]
        append(log, b"d")
        assert await read_all(log, token=token) == [b"b", b"c", b"d"]
        message = await first(log)
        assert message == Message(b"a", "#s-1", 1000, token)
        assert await list_all(log) == [b"d", b"c", b"b", b"a"]


async def test_lost_messages_do_not_hide_later_ones(tmp_path: Path) -> None:
    # The reader saw messages that a crash took back; those written after it must reach it.
    path = tmp_path / "a.db"
    async with opened(path) as log:
        append(log, b"a", b"b", b"lost")
        token = (await log.list(KEY, 1, ""))[0][0].resume_token
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM stream_messages WHERE value = ?", (b"lost",))
    connection.commit()
    connection.close()
    async with opened(path) as log:
        append(log, b"new")
        assert await read_all(log, token=token) == [b"new"]


async def test_capacity_is_shared_by_the_flows_of_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    one = 10 + len("flow-1") + len("#s-1") + MESSAGE_OVERHEAD
    async with opened(path) as log:
        append(log, *(b"a%09d" % number for number in range(3)), capacity=4 * one)
        anchor = await first(log)
        append(log, *(b"b%09d" % number for number in range(3)), key=OTHER, capacity=4 * one)
        assert await read_all(log) == [b"a000000002"]
        assert len(await read_all(log, OTHER)) == 3
        # A token of a trimmed message goes on with the oldest that is left.
        assert await read_all(log, token=anchor.resume_token) == [b"a000000002"]
        assert await log.list(KEY, 5, anchor.resume_token) == ([], "")
        # The last capacity rules.
        append(log, b"c" * 10, key=OTHER, capacity=2 * one)
        assert await read_all(log) == []
        assert await read_all(log, OTHER) == [b"b000000002", b"c" * 10]
    async with opened(path) as log:
        assert await read_all(log) == []
        assert await read_all(log, OTHER) == [b"b000000002", b"c" * 10]


async def test_trimming_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path) as log:
        for number in range(1000):
            append(log, b"%04d" % number, capacity=20 * (MESSAGE_OVERHEAD + 14))
        assert await read_all(log) == [b"%04d" % number for number in range(980, 1000)]
    connection = sqlite3.connect(path)
    (rows,) = connection.execute("SELECT count(*) FROM stream_messages").fetchone()
    connection.close()
    assert rows < 100
    async with opened(path) as log:
        assert len(await read_all(log)) == 20
    connection = sqlite3.connect(path)
    (rows,) = connection.execute("SELECT count(*) FROM stream_messages").fetchone()
    connection.close()
    assert rows == 20


async def test_old_values_come_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream_log, "_RECENT_BYTES", 5000)
    async with opened(tmp_path / "a.db") as log:
        values = [bytes([number]) * 1000 for number in range(1, 60)]
        append(log, *values)
        assert len(log._recent) == len(values)  # not durable yet, so not to be read from the file
        assert await read_all(log) == values
        journal = log._journal
        done = asyncio.get_running_loop().create_future()
        journal.when_durable(journal.submit([]), lambda: done.set_result(None))
        await done
        append(log, b"z")
        assert log._recent_bytes <= 5000
        assert (await read_all(log))[: len(values)] == values
        assert (await list_all(log, page_size=7))[::-1][: len(values)] == values


async def test_pages_stay_below_the_message_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream_log, "_MAX_PAGE_BYTES", 5000)
    async with opened(tmp_path / "a.db") as log:
        values = [bytes([number]) * 1500 for number in range(1, 10)]
        append(log, *values)
        page, before = await log.list(KEY, 1000, "")
        assert len(page) == 3
        assert before
        assert await list_all(log, page_size=1000) == values[::-1]
        append(log, b"x" * 9000)
        assert len((await log.list(KEY, 1000, ""))[0]) == 1


async def test_read_waits_for_the_next_message(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db") as log:
        readers = [asyncio.create_task(log.read(KEY, "", 60)) for _ in range(3)]
        other = asyncio.create_task(log.read(OTHER, "", 60))
        await asyncio.sleep(0)
        append(log, b"a")
        for reader in readers:
            message = await reader
            assert message is not None
            assert message.value == b"a"
        after = (await first(log)).resume_token
        next_one = asyncio.create_task(log.read(KEY, after, 60))
        await asyncio.sleep(0)
        append(log, b"b", b"c")
        found = await next_one
        assert found is not None
        assert found.value == b"b"
        assert not other.done()
        log.close()
        assert await other is None
        assert await log.read(OTHER, "", 60) is None
        assert log._waiters == {}


async def test_read_ends_after_its_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db") as log:
        assert await log.read(KEY, "", 0.01) is None
        waiting = asyncio.create_task(log.read(KEY, "", 60))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert log._waiters == {}


async def test_wrong_arguments(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db") as log:
        for key in (StreamKey("", "s", "f"), StreamKey("t", "", "f"), StreamKey("t", "s", "")):
            with pytest.raises(StreamArgumentError, match="must not be empty"):
                append(log, b"a", key=key)
            with pytest.raises(StreamArgumentError):
                await log.read(key, "", 0)
        with pytest.raises(StreamArgumentError, match="source"):
            log.append(KEY, b"a", "", BIG, 0)
        with pytest.raises(StreamArgumentError, match="value"):
            append(log, b"")
        with pytest.raises(StreamArgumentError, match="limit"):
            append(log, b"a" * (MAX_VALUE_BYTES + 1))
        with pytest.raises(StreamArgumentError, match="capacity"):
            append(log, b"a", capacity=0)
        with pytest.raises(StreamOverCapacity, match="'events'"):
            append(log, b"a" * 1000, capacity=1000)
        for size in (0, 1001):
            with pytest.raises(StreamArgumentError, match="page_size"):
                await log.list(KEY, size, "")
        assert await read_all(log) == []
        append(log, b"a" * MAX_VALUE_BYTES)


async def test_wrong_tokens(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db") as log:
        append(log, b"a")
        append(log, b"a", key=OTHER)
        foreign = (await first(log, OTHER)).resume_token
        for token in (foreign, "x", "!!!!", "é", foreign[:-1], "A" * 100):
            with pytest.raises(StreamTokenError):
                await log.read(KEY, token, 0)
            with pytest.raises(StreamTokenError):
                await log.list(KEY, 5, token)


async def test_many_flows_and_streams_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    keys = [StreamKey(f"T{n % 2}", f"s{n % 3}", f"f{n}") for n in range(30)]
    async with opened(path) as log:
        for number in range(300):
            append(log, b"%d" % number, key=keys[number % 30])
    async with opened(path) as log:
        for number, key in enumerate(keys):
            expected = [b"%d" % value for value in range(number, 300, 30)]
            assert await read_all(log, key) == expected
            assert await list_all(log, key) == expected[::-1]
