"""Stream messages: capped logs that need no Flow, are written without waiting for the disk and
survive a restart.

In memory are the index of all messages and the values of the latest ones; older values are read
from the data file. A Stream (Flow type and name) has one capacity for all its Flow ids, and the
oldest message of the whole Stream goes first.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from dex_lite._errors import (
    StreamArgumentError,
    StreamLimitError,
    StreamOverCapacity,
    StreamTokenError,
)
from dex_lite._journal import Journal
from dex_lite._records import AddStreamMessage, PutStreamGroup, TrimStream, Write
from dex_lite._wire.limits import Limits

MAX_VALUE_BYTES = 100 << 10
MAX_PAGE_SIZE = 1000
# What a message costs beyond its texts and value; about its share of the index in memory.
MESSAGE_OVERHEAD = 128
# An answer must stay below the 4 MiB that the SDK accepts.
_MAX_PAGE_BYTES = 3 << 20
_RECENT_BYTES = 8 << 20
# Trimmed messages are deleted from the file in lots of this many; until then a start trims them
# again.
_TRIM_LOT = 64
# Sequence numbers start anew above all earlier ones with each start, because the last messages
# before a crash may be lost although a reader saw them: their numbers must not come again.
BOOT_SHIFT = 40


class StreamKey(NamedTuple):
    flow_type: str
    stream_name: str
    flow_id: str


class Message(msgspec.Struct, frozen=True):
    value: bytes
    source: str
    created_ms: int
    resume_token: str


class _Log:
    """The messages of one Flow id."""

    __slots__ = ("entries", "flow_id", "head", "scope")

    def __init__(self, key: StreamKey) -> None:
        self.flow_id = key.flow_id
        self.scope = _scope(key)
        self.entries: list[_Entry] = []
        self.head = 0  # entries before it are trimmed

    @property
    def is_empty(self) -> bool:
        return self.head == len(self.entries)

    def trim_first(self) -> None:
        self.head += 1
        if self.head > 64 and self.head * 2 > len(self.entries):
            del self.entries[: self.head]
            self.head = 0


class _Entry:
    __slots__ = ("cost", "log", "sequence")

    def __init__(self, sequence: int, log: _Log, cost: int) -> None:
        self.sequence = sequence
        self.log = log
        self.cost = cost


_sequence = attrgetter("sequence")


class _Group:
    """One Stream of a Flow type."""

    __slots__ = ("capacity", "cost", "flow_type", "id", "logs", "order", "stream_name", "trimmed")

    def __init__(self, record: PutStreamGroup) -> None:
        self.id = record.group
        self.flow_type = record.flow_type
        self.stream_name = record.stream_name
        self.capacity = record.capacity
        self.cost = 0
        self.order: deque[_Entry] = deque()
        self.logs: dict[str, _Log] = {}
        self.trimmed: list[int] = []  # not yet deleted from the file

    def log(self, flow_id: str) -> _Log:
        log = self.logs.get(flow_id)
        if log is None:
            key = StreamKey(self.flow_type, self.stream_name, flow_id)
            log = self.logs[flow_id] = _Log(key)
        return log

    def add(self, sequence: int, log: _Log, cost: int) -> None:
        entry = _Entry(sequence, log, cost)
        log.entries.append(entry)
        self.order.append(entry)
        self.cost += cost


class _Recent(NamedTuple):
    commit: int
    created_ms: int
    source: str
    value: bytes


class StreamLog:
    """All Streams of one data file; belongs to the loop."""

    def __init__(self, journal: Journal, limits: Limits | None = None) -> None:
        """Loads the index. Blocks; for the start, after `Journal.open`."""
        self._limits = limits or Limits()
        self._journal = journal
        self._groups: dict[tuple[str, str], _Group] = {}
        self._next_sequence = (journal.boots << BOOT_SHIFT) + 1
        # Ordered: taking the first of a plain dict again and again walks over what was removed.
        self._recent: OrderedDict[int, _Recent] = OrderedDict()
        self._recent_bytes = 0
        self._waiters: dict[StreamKey, list[asyncio.Future[None]]] = {}
        self._is_closed = False
        self._load()

    def append(self, key: StreamKey, value: bytes, source: str, capacity: int, now_ms: int) -> None:
        """Add a message; it joins the next commit and can be read at once."""
        self._check_names(key)
        cost = _check_message(key, value, source, capacity)
        writes: list[Write] = []
        group = self._groups.get(key[:2])
        self._check_room(group, capacity)
        if group is None or group.capacity != capacity:
            group_id = len(self._groups) + 1 if group is None else group.id
            record = PutStreamGroup(group_id, key.flow_type, key.stream_name, capacity)
            writes.append(record)
            if group is None:
                group = self._groups[key[:2]] = _Group(record)
            group.capacity = capacity
        sequence = self._next_sequence
        self._next_sequence += 1
        group.add(sequence, group.log(key.flow_id), cost)
        writes.append(AddStreamMessage(sequence, group.id, now_ms, key.flow_id, source, value))
        self._trim(group)
        if len(group.trimmed) >= _TRIM_LOT:
            writes.append(TrimStream(group.trimmed))
            group.trimmed = []
        self._remember(sequence, _Recent(self._journal.submit(writes), now_ms, source, value))
        for waiter in self._waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _check_names(self, key: StreamKey) -> None:
        for field, name in zip(key._fields, key, strict=True):
            if len(name) > self._limits.name:
                raise StreamArgumentError(
                    f"{field} has {len(name)} characters, at most {self._limits.name} are allowed. "
                    "Shorten it"
                )

    def _check_room(self, group: _Group | None, capacity: int) -> None:
        limits = self._limits
        if capacity > limits.stream_capacity:
            raise StreamArgumentError(
                f"a Stream's capacity may be at most {limits.stream_capacity} bytes, not {capacity}"
            )
        if group is None and len(self._groups) >= limits.streams:
            raise StreamLimitError(limits.streams)

    async def read(self, key: StreamKey, resume_token: str, wait_s: float) -> Message | None:
        """The first message after the token (empty: the oldest), waiting for one.

        None if none came in time.
        """
        _check_key(key)
        after = _decode(key, resume_token) if resume_token else -1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            log = self._find(key)
            if log is not None:
                index = bisect_right(log.entries, after, log.head, key=_sequence)
                if index < len(log.entries):
                    sequence = log.entries[index].sequence
                    messages = await self._messages(log, [sequence])
                    if messages:
                        return messages[0]
                    continue  # trimmed while it was read
            if self._is_closed or loop.time() >= deadline:
                return None
            await self._wait(key, deadline)

    async def list(
        self, key: StreamKey, page_size: int, before: str
    ) -> tuple[Sequence[Message], str]:
        """Messages before the token (empty: the newest), newest first, and the token of the next
        page or "".
        """
        _check_key(key)
        if not 1 <= page_size <= MAX_PAGE_SIZE:
            raise StreamArgumentError(f"page_size must be between 1 and {MAX_PAGE_SIZE}")
        anchor = _decode(key, before) if before else None
        log = self._find(key)
        if log is None:
            return [], ""
        end = len(log.entries)
        if anchor is not None:
            end = bisect_left(log.entries, anchor, log.head, key=_sequence)
        chosen: list[int] = []
        size = 0
        index = end
        while index > log.head and len(chosen) < page_size:
            entry = log.entries[index - 1]
            size += entry.cost
            if chosen and size > _MAX_PAGE_BYTES:
                break
            chosen.append(entry.sequence)
            index -= 1
        has_more = index > log.head
        messages = await self._messages(log, chosen)
        return messages, _encode(log.scope, chosen[-1]) if has_more else ""

    def close(self) -> None:
        """End every waiting read; it returns None."""
        self._is_closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._waiters.clear()

    # Inside.

    def _load(self) -> None:
        records, index = self._journal.stream_contents()
        by_id = {}
        for record in records:
            group = by_id[record.group] = _Group(record)
            self._groups[(record.flow_type, record.stream_name)] = group
        for sequence, group_id, flow_id, size in index:
            group = by_id[group_id]
            group.add(sequence, group.log(flow_id), size + MESSAGE_OVERHEAD)
        for group in by_id.values():
            self._trim(group)
            if group.trimmed:
                self._journal.submit([TrimStream(group.trimmed)])
                group.trimmed = []

    def _find(self, key: StreamKey) -> _Log | None:
        group = self._groups.get(key[:2])
        return None if group is None else group.logs.get(key.flow_id)

    def _trim(self, group: _Group) -> None:
        while group.cost > group.capacity:
            entry = group.order.popleft()
            group.cost -= entry.cost
            entry.log.trim_first()
            if entry.log.is_empty:
                group.logs.pop(entry.log.flow_id, None)
            group.trimmed.append(entry.sequence)
            recent = self._recent.pop(entry.sequence, None)
            if recent is not None:
                self._recent_bytes -= len(recent.value)

    def _remember(self, sequence: int, recent: _Recent) -> None:
        self._recent[sequence] = recent
        self._recent_bytes += len(recent.value)
        while self._recent_bytes > _RECENT_BYTES:
            oldest, kept = next(iter(self._recent.items()))
            if kept.commit > self._journal.durable:
                return  # not yet in the file
            del self._recent[oldest]
            self._recent_bytes -= len(kept.value)

    async def _messages(self, log: _Log, sequences: Sequence[int]) -> Sequence[Message]:
        """The messages in this order; those trimmed meanwhile are left out."""
        found: dict[int, tuple[int, str, bytes]] = {}
        missing = []
        for sequence in sequences:
            recent = self._recent.get(sequence)
            if recent is None:
                missing.append(sequence)
            else:
                found[sequence] = recent[1:]
        if missing:
            found.update(await self._journal.stream_messages(missing))
        messages = []
        for sequence in sequences:
            if sequence in found:
                created_ms, source, value = found[sequence]
                token = _encode(log.scope, sequence)
                messages.append(Message(value, source, created_ms, token))
        return messages

    async def _wait(self, key: StreamKey, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        waiters = self._waiters.setdefault(key, [])
        waiters.append(waiter)
        timer = loop.call_at(deadline, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if self._waiters.get(key) is waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[key]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _check_key(key: StreamKey) -> None:
    for field, name in zip(key._fields, key, strict=True):
        if not name:
            raise StreamArgumentError(f"{field} must not be empty")


def _check_message(key: StreamKey, value: bytes, source: str, capacity: int) -> int:
    _check_key(key)
    if not source:
        raise StreamArgumentError("source must not be empty")
    if capacity <= 0:
        raise StreamArgumentError("stream_capacity_bytes must be positive")
    if not value:
        raise StreamArgumentError("value must be set")
    if len(value) > MAX_VALUE_BYTES:
        raise StreamArgumentError(
            f"a value of {len(value)} bytes is over the limit of {MAX_VALUE_BYTES} bytes"
        )
    cost = len(value) + len(key.flow_id.encode()) + len(source.encode()) + MESSAGE_OVERHEAD
    if cost > capacity:
        raise StreamOverCapacity(key.stream_name, cost, capacity)
    return cost


def _scope(key: StreamKey) -> bytes:
    return hashlib.blake2b(repr(tuple(key)).encode(), digest_size=8).digest()


def _encode(scope: bytes, sequence: int) -> str:
    return base64.urlsafe_b64encode(scope + sequence.to_bytes(8, "big")).decode().rstrip("=")


def _decode(key: StreamKey, token: str) -> int:
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars="-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16 or raw[:8] != _scope(key):
        raise StreamTokenError(
            f"{token!r} is no token of Stream {key.stream_name!r} of this Flow id"
        )
    return int.from_bytes(raw[8:], "big")
