"""Single agents through Flow, Worker process and engine, against plain ADK.

``DEX_SESSIONS=case-approved,script-17`` plays these instead.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from differential.cases import CASES
from differential.playing import WORKER, check_killed_in_lanes, check_undisturbed, chosen

pytestmark = pytest.mark.filterwarnings("ignore")
_CASES = [f"case-{name}" for name in CASES]


def scripts(start: int, count: int) -> list[str]:
    """Ids of random sessions."""
    return [f"script-{seed}" for seed in range(start, start + count)]


async def test_hand_written_and_random_ones(tmp_path: Path) -> None:
    ids = chosen() or [*_CASES, *scripts(0, 100)]
    await check_undisturbed(tmp_path, ids, len(ids))


@pytest.mark.long
@pytest.mark.parametrize("start", range(100, 2_100, 200))
async def test_many_random_ones(tmp_path: Path, start: int) -> None:
    await check_undisturbed(tmp_path, chosen() or scripts(start, 200), 200)


@pytest.mark.long
@pytest.mark.parametrize("start", range(10_000, 10_200, 40))
async def test_random_ones_with_a_killed_worker(tmp_path: Path, start: int) -> None:
    await check_killed_in_lanes(tmp_path, chosen() or scripts(start, 40), 40, WORKER, 4)
