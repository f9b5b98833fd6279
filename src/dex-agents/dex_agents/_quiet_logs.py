"""Fewer log lines: while an engine is away the SDK reports every try of every stream."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_EVERY_S = 10.0
_PLACES_KEPT = 1_000


class RepeatFilter(logging.Filter):
    """Lets one place of the code log at most once in ten seconds below ``ERROR``.

    The next line of that place says how many were left out. Add it to a handler: a logger's filter
    does not see what its children log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown; it may get a note."""
        if record.levelno >= logging.ERROR:
            return True
        place = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        last, left_out = self._places.get(place, (now - _EVERY_S, 0))
        if now - last < _EVERY_S:
            self._places[place] = (last, left_out + 1)
            return False
        if len(self._places) >= _PLACES_KEPT:
            self._places.clear()
        self._places[place] = (now, 0)
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like this)"
            record.args = ()
        return True
