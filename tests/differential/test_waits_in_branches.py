"""What waits in several branches is answered one by one, in every order, all at once, by others.

Whatever the order, the session does what plain ADK does, and no branch goes on before all that
waits is answered.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dex_agents import AgentSessionClient, PendingInterrupt
from dex_agents.testing import (
    Approve,
    Ledger,
    PlayedSession,
    Reply,
    WorkerProcess,
    private_engine,
    session_client,
)
from differential.judge import judge, play_plain
from differential.plans import plan_of
from differential.served import build_flow, world_file
from differential.stage import Stage, open_stage

pytestmark = pytest.mark.filterwarnings("ignore")
TURN_S = 60.0
LOOK_EVERY_S = 0.02
# How much waits at the quiet points of each turn.
WAITS = {
    "parallel": (3,),
    "nested": (3, 2),
    "rejected": (4,),
    "workflow": (3,),
    "transfer": (2,),
    "loop": (1, 1),
}
IN_ANY_ORDER = ("parallel", "nested", "rejected", "workflow")
BY_OTHERS = ("waits-workflow-other", "waits-transfer-other", "waits-loop-other")
TOGETHER = "together"
AT_ONCE = 6


def sessions() -> Iterator[str]:
    """Ids with the places of what waits in the order of the answers."""
    for name in IN_ANY_ORDER:
        most = max(WAITS[name])
        for order in itertools.permutations(range(most)):
            if most == 3 or order in ((3, 2, 1, 0), (1, 3, 0, 2)):
                yield f"waits-{name}-{''.join(map(str, order))}"
        yield f"waits-{name}-{TOGETHER}"


async def _pending(
    sessions: AgentSessionClient, session_id: str, count: int
) -> Sequence[PendingInterrupt]:
    """What waits, when so much does; some of it comes when its tool has begun."""
    async with asyncio.timeout(TURN_S):
        while True:
            snapshot = await sessions.get_agent_snapshot(session_id)
            if len(snapshot.pending_interrupts) == count:
                return snapshot.pending_interrupts
            await asyncio.sleep(LOOK_EVERY_S)


def _asked(file: Path) -> int:
    return sum(entry["name"] == "asked" for entry in Ledger(file).entries())


async def _answer(
    sessions: AgentSessionClient, session_id: str, interrupt: PendingInterrupt
) -> None:
    given = plan_of(session_id).answer(interrupt)
    target = (session_id, interrupt.interrupt_id)
    if isinstance(given, Reply):
        await sessions.answer_question(*target, given.value)
    else:
        fields: dict[str, Any] = (
            {"approved": True, "arguments": given.arguments}
            if isinstance(given, Approve)
            else {"approved": False, "message": given.message}
        )
        await sessions.resolve_interrupt(*target, **fields)


async def _answer_all(stage: Stage, session_id: str, waiting: Sequence[PendingInterrupt]) -> None:
    order, file = session_id.rpartition("-")[2], world_file(stage.folder, session_id)
    if order == TOGETHER:
        await asyncio.gather(*(_answer(stage.sessions, session_id, item) for item in waiting))
        return
    asked = _asked(file)
    places = [int(place) for place in order if int(place) < len(waiting)]
    for count, place in enumerate(places, start=1):
        await _answer(stage.sessions, session_id, waiting[place])
        if count < len(waiting):
            snapshot = await stage.sessions.wait_until_settled(
                session_id, turns_done=99, timeout_s=TURN_S
            )
            rest = [waiting[later] for later in sorted(places[count:])]
            assert list(snapshot.pending_interrupts) == rest
            assert _asked(file) == asked, "a branch went on before all was answered"


async def _play(stage: Stage, session_id: str) -> None:
    messages, errors = plan_of(session_id).messages, []
    for number, message in enumerate(messages, start=1):
        if number == 1:
            await stage.sessions.start_session(session_id, message)
        else:
            await stage.sessions.send_user_message(session_id, message)
        for count in WAITS[session_id.split("-")[1]]:
            await _answer_all(stage, session_id, await _pending(stage.sessions, session_id, count))
        snapshot = await stage.sessions.wait_for_turn(session_id, number, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        errors.append(snapshot.last_turn.error)
    await _judge(stage.sessions, stage.folder, session_id, errors)


async def _judge(
    sessions: AgentSessionClient, folder: Path, session_id: str, errors: Sequence[str]
) -> None:
    plain = await play_plain(session_id)
    assert plain is not None
    page = await sessions.list_messages(session_id)
    assert page.next_before_turn is None
    played = PlayedSession(page.messages, errors)
    await judge(session_id, plain, played, world_file(folder, session_id), was_killed=False)


async def _play_all(folder: Path, ids: Sequence[str]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)
    async with open_stage(folder) as stage:

        async def one(session_id: str) -> None:
            async with slots:
                try:
                    await _play(stage, session_id)
                except Exception as error:
                    error.add_note(session_id)
                    raise

        await asyncio.gather(*map(one, ids))


async def test_in_every_order_and_together(tmp_path: Path) -> None:
    """All orders of one tree, some of the others."""
    ids = list(sessions())
    await _play_all(tmp_path, [*(i for i in ids if "-parallel-" in i), *ids[8::5]])


@pytest.mark.long
async def test_all_in_every_order_and_together(tmp_path: Path) -> None:
    await _play_all(tmp_path, list(sessions()))


async def test_each_answer_finds_another_process(tmp_path: Path) -> None:
    """A Worker waits, the next one has the answers and waits, the next one again."""
    waits = {session_id: WAITS[session_id.split("-")[1]] for session_id in BY_OTHERS}
    rounds = max(map(len, waits.values()))
    async with (
        private_engine(tmp_path / "e.db") as engine,
        session_client(build_flow(tmp_path), server_address=engine.address) as sessions,
    ):
        for session_id in BY_OTHERS:
            await sessions.start_session(session_id, *plan_of(session_id).messages)
        for number in range(rounds + 1):
            worker = await WorkerProcess.start(
                "differential.served:build_flow", server_address=engine.address, data_dir=tmp_path
            )
            try:
                for session_id, counts in waits.items():
                    for count in counts[number - 1 : number] if number else ():
                        for interrupt in await _pending(sessions, session_id, count):
                            await _answer(sessions, session_id, interrupt)
                for session_id, counts in waits.items():
                    if number < len(counts):
                        await _pending(sessions, session_id, counts[number])
                    else:
                        await sessions.wait_for_turn(session_id, 1, timeout_s=TURN_S)
                if number == rounds:
                    for session_id in BY_OTHERS:
                        await _judge(sessions, tmp_path, session_id, [""])
            finally:
                await worker.stop()
