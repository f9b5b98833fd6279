"""Pages of finished turns.

Decoded pages are kept by content: a pure cache that changes nothing but time. Whoever reads them
must not change them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from dex import Context

from dex_agents._contract import AgentMessage, HistorySummary, Json
from dex_agents._session import resources
from dex_agents._session.encoding import decode
from dex_agents._session.records import (
    Round,
    message_from_json,
    summary_from_json,
)

CACHE_BYTES = 16 * 1024 * 1024
"""Budget, counted as stored; decoded and in use a page takes ten times as much and more."""


class PageCache:
    """The pages read last, up to a number of stored bytes."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pages: OrderedDict[bytes, tuple[AgentMessage, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def read(self, data: bytes) -> Sequence[AgentMessage]:
        """The messages of one page."""
        found = self._pages.get(data)
        if found is not None:
            self._pages.move_to_end(data)
            return found
        found = tuple(message_from_json(item) for item in decode(data))
        self._pages[data] = found
        self._bytes += len(data)
        while self._bytes > self._max_bytes:
            dropped, _ = self._pages.popitem(last=False)
            self._bytes -= len(dropped)
        return found


_cache = PageCache()
read_page = _cache.read


def read_summary(context: Context, before: Round) -> HistorySummary | None:
    """The summary that the model reads, if there is one."""
    if not before.summarized_turns:
        return None
    stored = resources.summaries.get(context, resources.page_key(before.summarized_turns))
    assert stored, f"there is no summary of {before.summarized_turns} turns"
    return summary_from_json(decode(stored))


def read_removal_note(context: Context, before: Round) -> Json:
    """What the runner must know of removed turns."""
    if not before.removed:
        return None
    stored = resources.removal_note.get(context, resources.REMOVAL_NOTE_KEY)
    return decode(stored) if stored else None


def read_history(context: Context, before: Round) -> list[AgentMessage]:
    """Messages of the finished turns behind the summary, oldest first."""
    if before.pages is not None:
        return read_turns(context, before.pages)
    keys = sorted(resources.messages.get_all_instance_keys(context))
    return [message for key in keys for message in read_page(resources.messages.get(context, key))]


def read_turns(context: Context, numbers: Iterable[int]) -> list[AgentMessage]:
    """Messages of the given turns, as far as they are there."""
    found: list[AgentMessage] = []
    for number in numbers:
        data = resources.messages.get(context, resources.page_key(number))
        if data:
            found += read_page(data)
    return found
