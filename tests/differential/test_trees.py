"""Random and hand-written trees and Workflows through Flow, Worker and engine, against plain ADK.

``DEX_SESSIONS=tree-17,workflow-3`` plays these instead, in each of the tests that you choose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from differential.playing import (
    ENGINE,
    WORKER,
    check_killed_in_lanes,
    check_undisturbed,
    chosen,
)
from support.custom_trees import TREES

CUSTOM = [f"custom-{name.replace(' ', '-')}" for name in TREES]
pytestmark = pytest.mark.filterwarnings("ignore")


_KINDS = ("tree", "tree", "workflow", "tree", "graph", "session")


def sessions(count: int, start: int = 0) -> Iterable[str]:
    """Session ids of every kind; the environment may name others."""
    return chosen() or [
        f"{_KINDS[number % len(_KINDS)]}-{number}" for number in range(start, start + count)
    ]


def graphs(start: int, count: int) -> Iterable[str]:
    """Session ids of Workflows of everything, half of them with what waits and fails."""
    return chosen() or [
        f"{'session' if number % 2 else 'graph'}-{number}" for number in range(start, start + count)
    ]


async def test_undisturbed(tmp_path: Path) -> None:
    await check_undisturbed(tmp_path, sessions(1_000), 40)


async def test_run_loops_of_their_own(tmp_path: Path) -> None:
    ids = chosen() or CUSTOM[::4]
    await check_undisturbed(tmp_path, ids, len(ids))


async def test_killed(tmp_path: Path) -> None:
    await asyncio.gather(
        check_killed_in_lanes(tmp_path, sessions(200, 10_000), 15, WORKER, 3),
        check_killed_in_lanes(tmp_path, sessions(200, 20_000), 6, ENGINE, 3),
    )


@pytest.mark.long
@pytest.mark.parametrize("start", range(100_000, 160_000, 1_500))
async def test_many_undisturbed(tmp_path: Path, start: int) -> None:
    await check_undisturbed(tmp_path, sessions(1_500, start), 40)


@pytest.mark.long
@pytest.mark.parametrize("start", range(200_000, 230_000, 1_500))
async def test_many_killed(tmp_path: Path, start: int) -> None:
    await asyncio.gather(
        check_killed_in_lanes(tmp_path, sessions(1_500, start), 15, WORKER, 3),
        check_killed_in_lanes(tmp_path, sessions(1_500, start + 700_000), 5, ENGINE, 1),
    )


@pytest.mark.long
async def test_all_run_loops_of_their_own(tmp_path: Path) -> None:
    ids = chosen() or CUSTOM
    await check_undisturbed(tmp_path / "undisturbed", ids, len(ids))
    await check_killed_in_lanes(tmp_path / "killed", ids, len(ids), WORKER, 3)


@pytest.mark.long
@pytest.mark.parametrize("start", range(300_000, 303_000, 300))
async def test_many_graphs(tmp_path: Path, start: int) -> None:
    await check_undisturbed(tmp_path / "undisturbed", graphs(start, 300), 30)
    await check_killed_in_lanes(tmp_path / "killed", graphs(start + 150, 300), 12, WORKER, 3)
