"""What an engine counts while it works. Plain numbers, so that counting costs next to nothing.

The writer thread counts commits, the loop counts everything else; nobody counts what another does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Upper bounds of the classes of durations."""

# Handlers choose the words of their own errors, which would be labels without number.
_ENGINE_REASONS = frozenset(
    {
        "INVALID_RESULT",
        "NO_WORKER_AVAILABLE",
        "TASK_TOO_LARGE",
        "TIMEOUT_TYPE_HEARTBEAT",
        "TIMEOUT_TYPE_START_TO_CLOSE",
        "UNKNOWN_NAME",
        "WORKER_DISCONNECTED",
    }
)


class Durations:
    """How many durations fell into which class, and their sum in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Upper bound and number of durations up to it, as Prometheus wants them."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


class Meter:
    """The counts of one engine since its start."""

    __slots__ = ("call_seconds", "calls", "commit_seconds", "failed", "steps", "writes")

    def __init__(self) -> None:
        self.commit_seconds = Durations()
        self.writes = 0
        self.steps: Counter[tuple[str, str]] = Counter()  # by what happened, and method
        self.failed: Counter[tuple[str, str]] = Counter()  # by method and reason
        self.calls: Counter[tuple[str, str]] = Counter()  # by method and status code
        self.call_seconds: dict[str, Durations] = {}

    def committed(self, seconds: float, writes: int) -> None:
        """A commit that succeeded (writer thread)."""
        self.commit_seconds.add(seconds)
        self.writes += writes

    def step_failed(self, method: str, error_type: str) -> None:
        """An attempt that was consumed without a result."""
        reason = error_type if error_type in _ENGINE_REASONS else "HANDLER_ERROR"
        self.failed[method, reason] += 1

    def called(self, method: str, code: str, seconds: float) -> None:
        """A call of a client that was answered."""
        self.calls[method, code] += 1
        durations = self.call_seconds.get(method)
        if durations is None:
            durations = self.call_seconds[method] = Durations()
        durations.add(seconds)
