"""Fewer log lines: while an engine is away the SDK reports every try of every stream, with traces."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import grpc

_EVERY_S = 10.0
_PLACES_KEPT = 1_000
_SDK_STREAMS = "dex._pull_worker"
_OF_A_LOST_STREAM = (
    "Worker task stream disconnected: %s",
    "send Worker error frame failed",
    "send Worker keepalive Pong failed",
)


class LostEngineFilter(logging.Filter):
    """Says in one warning what the SDK says of an engine that went away in several, with traces.

    A handler needs it in front of its :class:`RepeatFilter`.

    Args:
        server_address: What the line names.

    Attributes:
        is_lost: Whether it has said so; to be reset when the engine is back.
    """

    def __init__(self, server_address: str) -> None:
        super().__init__()
        self.is_lost = False
        self._text = (
            f"the engine at {server_address} is away; the Worker connects again as soon as it is "
            "back, and what ran is attempted again"
        )

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true; the record may become another one."""
        if record.name == _SDK_STREAMS and record.msg in _OF_A_LOST_STREAM and _is_loss(record):
            self.is_lost = True
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args = self._text, ()
            record.exc_info = record.exc_text = None
        return True


def _is_loss(record: logging.LogRecord) -> bool:
    error: object = record.exc_info[1] if record.exc_info else None
    if error is None and isinstance(record.args, tuple) and record.args:
        error = record.args[0]
    if isinstance(error, grpc.RpcError):
        return bool(error.code() is grpc.StatusCode.UNAVAILABLE)
    return isinstance(error, asyncio.InvalidStateError)  # its stream has ended before


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
