"""Plays many sessions and says of each that differs how to see it again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

from differential.judge import PlainRun, choose_place, play_plain
from differential.plans import plan_of
from differential.stage import Stage, open_stage

_AT_ONCE = 6
WORKER, ENGINE = "kill", "engine"


def chosen() -> list[str] | None:
    """Session ids that the environment names, for a replay."""
    named = os.environ.get("DEX_SESSIONS")
    return named.split(",") if named else None


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
                failures.append(
                    f"{session_id}: {plan_of(session_id).shown}\n{type(error).__name__}: {error}\n"
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
    assert found, "no session to kill anything in"
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
