"""How many Steps a Worker takes at once, learned from its refusals.

A Worker never tells its number of slots; it refuses with NO_CAPACITY. Offering again at once would
be refused again and again, so the number of its tasks at the last refusal is the limit for Steps.
The limit may be too low (a refusal also comes from a stream that was about to retire), so it is
tried again: after some of the Worker's tasks have ended, or after some time, and less often the
more of these probes are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

_MAX_LEVEL = 6
_FIRST_PROBE_AFTER_S = 0.25
_LAST_PROBE_AFTER_S = 5.0


class Ticket(NamedTuple):
    """One counted task."""

    number: int
    is_step: bool
    is_probe: bool


class WorkerLoad:
    """The tasks of one Worker, and the limit for Steps."""

    __slots__ = (
        "_ends",
        "_level",
        "_next_number",
        "_on_probe",
        "_rpcs",
        "_timer",
        "in_flight",
        "is_probe_due",
        "limit",
    )

    def __init__(self, on_probe: Callable[[], None]) -> None:
        self.in_flight = 0
        self.limit: int | None = None
        self.is_probe_due = False
        self._on_probe = on_probe
        self._next_number = 0
        self._rpcs: set[int] = set()
        self._level = 0
        self._ends = 0
        self._timer: asyncio.TimerHandle | None = None

    def takes_steps(self) -> bool:
        limit = self.limit
        return (
            limit is None
            or self.in_flight < limit
            or (self.is_probe_due and self.in_flight == limit)
        )

    def begin(self, is_step: bool) -> Ticket:
        """Count a task."""
        is_probe = is_step and self.limit is not None and self.in_flight >= self.limit
        if is_probe:
            self.is_probe_due = False
        self.in_flight += 1
        self._next_number += 1
        if not is_step:
            self._rpcs.add(self._next_number)
        return Ticket(self._next_number, is_step, is_probe)

    def end(self, ticket: Ticket) -> None:
        self.in_flight -= 1
        self._rpcs.discard(ticket.number)
        if self.limit is not None and not self.is_probe_due:
            self._ends += 1
            if self._ends >= 1 << self._level:
                self.is_probe_due = True

    def step_refused(self, ticket: Ticket) -> int | None:
        """Learn from a refused Step (no longer counted); returns the former limit for `restore`."""
        before = self.limit
        # Steps sent later count, they may have come first. An RPC sent later does not: it may use
        # the slots that a Worker keeps from Steps.
        later_rpcs = sum(number > ticket.number for number in self._rpcs)
        found = max(1, self.in_flight - later_rpcs)
        self.limit = found if before is None else min(before, found)
        self._level = min(self._level + 1, _MAX_LEVEL)
        self._ends = 0
        self.is_probe_due = False
        self._start_timer()
        return before

    def probe_accepted(self) -> None:
        """The limit was too low: raise it, and try the next one soon."""
        if self.limit is not None:
            self.limit += 1
            self._level = 0
            self._ends = 0
            self.is_probe_due = True

    def restore(self, limit: int | None) -> None:
        """A refusal turned out to be the farewell of a retiring stream."""
        if limit is None:
            self.limit = None
            self.stop()
        elif self.limit is not None:
            self.limit = max(self.limit, limit)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        self.stop()
        delay = min(_FIRST_PROBE_AFTER_S * (1 << (self._level - 1)), _LAST_PROBE_AFTER_S)
        self._timer = asyncio.get_running_loop().call_later(delay, self._probe)

    def _probe(self) -> None:
        self._timer = None
        self.is_probe_due = True
        self._on_probe()
