"""Which finished turns count: arithmetic on the ranges of turns that rewinds have removed.

Ranges are ``[first, last]`` pairs of turn numbers, sorted, disjoint and not adjacent. A rewind always
removes what counts from a turn on, so a turn that counts has the same turns before it for ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Ranges = Sequence[Sequence[int]]


def removed_with(removed: Ranges, first: int, last: int) -> list[list[int]]:
    """The ranges after the turns from ``first`` to ``last``, the newest one, were removed too."""
    kept = [list(pair) for pair in removed if pair[1] < first - 1]
    starts = [pair[0] for pair in removed if pair[1] >= first - 1]
    return [*kept, [min([first, *starts]), last]]


def is_removed(removed: Ranges, turn: int) -> bool:
    """Whether a rewind has removed the turn."""
    index = bisect_right(removed, turn, key=lambda pair: pair[0]) - 1
    return index >= 0 and turn <= removed[index][1]


def live_turns(removed: Ranges, first: int, last: int) -> list[int]:
    """The turns from ``first`` to ``last`` that count, in order."""
    found: list[int] = []
    for start, end in removed:
        found += range(first, min(start, last + 1))
        first = max(first, end + 1)
    return [*found, *range(first, last + 1)]
