"""The arithmetic of removed turns, against a list of the turns that count."""

from __future__ import annotations

import itertools
import random

import pytest

from dex_agents._session.live_turns import is_removed, live_turns, removed_with
from dex_agents._session.records import Header
from dex_agents._session.rewind import find_summary


@pytest.mark.parametrize("seed", range(200))
def test_ranges_say_what_a_list_says(seed: int) -> None:
    chance = random.Random(seed)
    removed: list[list[int]] = []
    live: list[int] = []
    newest = 0
    for _ in range(30):
        if live and chance.random() < 0.4:
            target = chance.choice(live)
            removed = removed_with(removed, target, newest)
            live = [turn for turn in live if turn < target]
        else:
            newest += 1
            live.append(newest)
        first, last = sorted(chance.choices(range(newest + 1), k=2))
        assert live_turns(removed, first, last) == [t for t in [0, *live] if first <= t <= last]
        assert [is_removed(removed, turn) for turn in range(1, newest + 1)] == [
            turn not in live for turn in range(1, newest + 1)
        ]
        assert all(pair[1] + 1 < after[0] for pair, after in itertools.pairwise(removed))


def test_the_summary_to_read_is_the_newest_of_turns_that_count() -> None:
    header = Header(turns_started=20, summarized_turns=15, removed=[[8, 10]])
    assert find_summary(header, [4, 7, 9, 15], 20) == 15
    assert find_summary(header, [4, 7, 9, 15], 14) == 7
    assert find_summary(header, [4, 9], 12) == 4
    assert find_summary(header, [], 3) == 0
    header.forgotten_turns = 4
    assert find_summary(header, [4, 7], 6) == 4
    assert find_summary(header, [7], 6) is None
    assert find_summary(header, [], 3) is None


def test_a_header_of_an_older_release_counts_on_no_page_behind_its_summary() -> None:
    stored = Header(turns_started=9, summarized_turns=5).to_json()
    del stored["forgotten_turns"], stored["removed"]
    header = Header.from_json(stored)
    assert (header.removed, header.forgotten_turns) == ([], 5)
    assert find_summary(header, [], 9) == 5
    assert find_summary(header, [], 4) is None
