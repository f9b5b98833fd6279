"""Live events: gathered for a moment, then one Stream message for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from typing import Any

from dex import AsyncContext, Stream

from dex_agents._contract import Json

_LOGGER = logging.getLogger("dex_agents")
GATHER_S = 0.04
GATHER_BYTES = 2_048
MAX_MESSAGE_BYTES = 90 * 1024
"""A Stream message may have 100 KiB."""
_to_text = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class StepEvents:
    """The events of one attempt of one Step. Never blocks and never fails."""

    def __init__(
        self, stream: Stream[str], context: AsyncContext, turn_id: str, *, first_seq: int = 0
    ) -> None:
        self._stream = stream
        self._context = context
        self._common = {
            "turn_id": turn_id,
            "step_execution_id": context.step_execution_id,
            "attempt": context.attempt,
        }
        self._sequence = first_seq
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: list[str] = []
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def emit(self, event_type: str, **fields: Json) -> None:
        """Add an event; see :class:`dex_agents.AgentEventWriter`."""
        if threading.get_ident() != self._thread:
            # From a tool or model client in a thread; too late is as good as never.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._add, event_type, fields)
            return
        self._add(event_type, fields)

    def _add(self, event_type: str, fields: dict[str, Json]) -> None:
        if self._is_closed:
            return
        text = self._encode(event_type, fields)
        if text is None:
            return
        if self._waiting_bytes + len(text) > MAX_MESSAGE_BYTES:
            self.flush()
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        if self._waiting_bytes >= GATHER_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_S, self.flush)

    def _encode(self, event_type: str, fields: dict[str, Json]) -> str | None:
        event: dict[str, Any] = {
            **fields,
            "type": event_type,
            **self._common,
            "seq": self._sequence,
        }
        try:
            text = _to_text(event)
        except (TypeError, ValueError, RecursionError):
            _LOGGER.warning("live event %s dropped: it is no JSON", event_type)
            return None
        if len(text) > MAX_MESSAGE_BYTES:
            short = {k: v for k, v in event.items() if len(json.dumps(v)) < 1_024}
            text = _to_text({**short, "is_cut": True})
        self._sequence += 1
        return text

    def flush(self) -> None:
        """Send what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting or self._is_closed:
            return
        value = "[" + ",".join(self._waiting) + "]"
        self._waiting.clear()
        self._waiting_bytes = 0
        try:
            self._stream.write(self._context, value)
        except Exception:
            _LOGGER.warning("live events dropped", exc_info=True)

    def close(self) -> None:
        """Send the rest; nothing after this is sent."""
        self.flush()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
