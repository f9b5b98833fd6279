"""Ids and times of one ``RunModel`` execution.

ADK asks a provider for every id and time. Ours derive them from what is stored, so a repeated
attempt that gets the same model answer makes byte-identical events:

* an id is a UUIDv5 of session, turn, Step execution and a counter: unique in the session, and still
  a UUID, which keeps ``adk-<id>`` within the 40 characters and the alphabet that model providers
  accept for call ids;
* a time is the newest time already stored (an event of the session, the user message, the end of a
  tool's Step) plus one microsecond for each event of this attempt. Event times are therefore
  ordered and at most one model call behind the clock.

The providers live in ContextVars. :func:`run_isolated` gives each attempt a context of its own, so
that nothing has to be put back and any number of attempts run side by side in one loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

from google.adk.platform import time as adk_time
from google.adk.platform import uuid as adk_uuid

from dex_agents_google_adk._exit_guard import guard_turn

_NAMESPACE = uuid.UUID("6f1b6c5c-6f0c-5d0e-9a55-0d3f6d6b7a11")
_TICK_S = 1e-6

T = TypeVar("T")


class AttemptIds:
    """Deterministic ids and times for one attempt.

    Args:
        prefix: Text that no other Step execution has.
        base_time: Newest time already stored.
    """

    def __init__(self, prefix: str, base_time: float) -> None:
        self._prefix = prefix
        self._count = 0
        self._base_time = base_time
        self._events = 0

    def new_id(self) -> str:
        """The next id."""
        self._count += 1
        return str(uuid.uuid5(_NAMESPACE, f"{self._prefix}/{self._count}"))

    def now(self) -> float:
        """The time of what happens before the next event."""
        return self._base_time + (self._events + 1) * _TICK_S

    def event_appended(self) -> None:
        """Step the time; counting events, not questions, keeps it free of the number of streamed
        chunks.
        """
        self._events += 1


async def run_isolated(ids: AttemptIds, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` in a context of its own in which ADK takes ids and times from ``ids``."""
    context = contextvars.copy_context()
    context.run(adk_uuid.set_id_provider, ids.new_id)
    context.run(adk_time.set_time_provider, ids.now)
    guard_turn(context)
    return await asyncio.create_task(work, context=context)
