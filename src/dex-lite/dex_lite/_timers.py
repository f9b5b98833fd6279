"""One heap of due times for the whole engine. A timer that is no longer wanted fires into nothing."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable

_LONGEST_SLEEP_S = 30.0
_FEW = 1_024


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class Timers:
    """Calls ``fire(run_id, execution_id, index)`` when due by the wall clock, never earlier.

    The clock is looked at again at least every 30 s, so that a clock step or a suspended machine is noticed.
    Timers that ``is_wanted(run_id, execution_id, index)`` has no use for are dropped whenever their number has
    doubled: a wait with a long deadline is mostly won by something else.
    """

    def __init__(
        self, fire: Callable[[str, str, int], None], is_wanted: Callable[[str, str, int], bool]
    ) -> None:
        self._fire = fire
        self._is_wanted = is_wanted
        self._heap: list[tuple[int, str, str, int]] = []
        self._most = _FEW  # from here on the heap is looked through
        self._handle: asyncio.TimerHandle | None = None
        self._is_closed = False

    def set(self, due_ms: int, run_id: str, execution_id: str, index: int) -> None:
        """Add a timer."""
        if self._is_closed:
            return
        heapq.heappush(self._heap, (due_ms, run_id, execution_id, index))
        if self._heap[0][0] == due_ms:
            self._arm()
        if len(self._heap) > self._most:
            self._heap = [timer for timer in self._heap if self._is_wanted(*timer[1:])]
            heapq.heapify(self._heap)
            self._most = max(_FEW, 2 * len(self._heap))

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._heap)

    def close(self) -> None:
        """Fire no more."""
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        delay = max(0.0, (self._heap[0][0] - now_ms()) / 1_000)
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(min(delay, _LONGEST_SLEEP_S), self._due)

    def _due(self) -> None:
        self._handle = None
        now = now_ms()
        while self._heap and self._heap[0][0] <= now and not self._is_closed:
            _, run_id, execution_id, index = heapq.heappop(self._heap)
            self._fire(run_id, execution_id, index)
        if self._heap and not self._is_closed:
            self._arm()
