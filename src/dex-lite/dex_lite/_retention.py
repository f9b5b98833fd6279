"""Deletes closed runs whose time is over, a few with each commit."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from dex_lite._errors import DexLiteError
from dex_lite._logs import event
from dex_lite._records import DropRun
from dex_lite._timers import now_ms

if TYPE_CHECKING:
    from dex_lite._engine import Engine

_RUNS_A_COMMIT = 50
_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S = 600.0, 0.05


class Retention:
    """Looks for what is too old from time to time, ten times within the retention."""

    def __init__(self, engine: Engine, retention_s: float | None) -> None:
        self._engine = engine
        self._retention_s = retention_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if closed runs are not kept for ever."""
        if self._retention_s is not None:
            self._task = asyncio.get_running_loop().create_task(self._go_on(self._retention_s))

    def close(self) -> None:
        """Delete no more."""
        if self._task is not None:
            self._task.cancel()

    async def _go_on(self, retention_s: float) -> None:
        pause_s = min(max(retention_s / 10, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        try:
            while True:
                if not await self._delete(now_ms() - int(retention_s * 1_000)):
                    await asyncio.sleep(pause_s)
        except DexLiteError:  # the file cannot be read any more; the engine stops for that itself
            return

    async def _delete(self, closed_before_ms: int) -> bool:
        """Delete some runs; whether there may be more."""
        engine = self._engine
        rows = await engine.journal.closed_before(closed_before_ms, _RUNS_A_COMMIT)
        # A run that is still in memory has an RPC in flight: its turn comes later.
        ripe = [row for row in rows if row.run_id not in engine.runs]
        if not ripe:
            return False
        for row in ripe:
            engine.forget(row)
        await engine.durable(engine.journal.submit([DropRun(row.run_id) for row in ripe]))
        event(
            logging.INFO,
            "runs_deleted",
            "closed runs were deleted, their retention is over",
            count=len(ripe),
        )
        return len(rows) == _RUNS_A_COMMIT
