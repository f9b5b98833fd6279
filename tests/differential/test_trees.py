"""Random agent trees and Workflows through Flow, Worker process and engine, against plain ADK.

``DEX_SESSIONS=tree-17,workflow-3`` plays these instead, in each of the tests that you choose.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from differential.judge import PlainRun, choose_place, play_plain
from differential.plans import plan_of
from differential.stage import Stage, open_stage

pytestmark = pytest.mark.filterwarnings("ignore")
_AT_ONCE = 6
WORKER, ENGINE = "kill", "engine"


def sessions(count: int, start: int = 0) -> Iterable[str]:
    """Session ids, two trees to a Workflow; the environment may name others."""
    chosen = os.environ.get("DEX_SESSIONS")
    if chosen:
        return chosen.split(",")
    return (
        f"{'workflow' if number % 3 == 2 else 'tree'}-{number}"
        for number in range(start, start + count)
    )


async def comparable(ids: Iterable[str], count: int) -> AsyncIterator[tuple[str, PlainRun]]:
    """The first sessions that plain ADK plays the same every time."""
    for session_id in ids:
        plain = await play_plain(session_id)
        if plain is not None:
            yield session_id, plain
            count -= 1
        if not count:
            return


async def play_all(
    found: Iterable[tuple[str, PlainRun]],
    play: Callable[[str, PlainRun], Awaitable[None]],
    *,
    at_once: int = 1,
) -> None:
    """Play sessions, and fail with everything that differed and how to see it again."""
    slots = asyncio.Semaphore(at_once)
    failures: list[str] = []

    async def one(session_id: str, plain: PlainRun) -> None:
        async with slots:
            try:
                await play(session_id, plain)
            except Exception as error:
                tree = json.dumps(plan_of(session_id).tree)
                failures.append(
                    f"{session_id}: {tree}\n{type(error).__name__}: {error}\n"
                    f"replay: DEX_SESSIONS={session_id} ./ci.sh test "
                    f"{os.environ['PYTEST_CURRENT_TEST'].split(' ')[0]}"
                )

    await asyncio.gather(*(one(*item) for item in found))
    assert not failures, "\n\n".join(failures)


async def check_undisturbed(folder: Path, ids: Iterable[str], count: int) -> None:
    async with open_stage(folder) as stage:
        found = [item async for item in comparable(ids, count)]
        await play_all(found, stage.check, at_once=_AT_ONCE)


async def check_killed(folder: Path, ids: Iterable[str], count: int, victim: str) -> None:
    """One kill a session, at a place that the session id chooses, with no other session beside."""
    # Which calls a kill has changed is told by their ids, so both sides must have the same.
    ids = (session_id for session_id in ids if plan_of(session_id).has_ids)
    found = [item async for item in comparable(ids, count)]
    places = {session_id: choose_place(session_id, plain) for session_id, plain in found}
    armed = [f"{place}={victim}" for place in places.values()]
    async with open_stage(folder, armed) as stage:

        async def play(session_id: str, plain: PlainRun) -> None:
            playing = asyncio.create_task(stage.check(session_id, plain, place=places[session_id]))
            if victim == ENGINE:
                restarting = asyncio.create_task(_restart_once(stage))
                await asyncio.wait({playing, restarting}, return_when=asyncio.FIRST_COMPLETED)
                if restarting.done():
                    restarting.result()
                restarting.cancel()
            await playing

        await play_all(found, play)


async def _restart_once(stage: Stage) -> None:
    await stage.engine.wait()
    await stage.engine.restart()


async def check_killed_in_lanes(
    folder: Path, ids: Iterable[str], count: int, victim: str, width: int
) -> None:
    """Stages side by side, as most of the time goes into waiting for retries."""
    listed = list(ids)
    await asyncio.gather(
        *(
            check_killed(folder / f"{victim}{lane}", listed[lane::width], count // width, victim)
            for lane in range(width)
        )
    )


async def test_undisturbed(tmp_path: Path) -> None:
    await check_undisturbed(tmp_path, sessions(1_000), 40)


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
