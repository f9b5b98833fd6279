"""What an engine that runs for long keeps in memory of what is over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb

from dex_lite import _engine, _runs, _timers
from dex_lite._journal import Journal
from dex_lite._machine.model import RunState
from dex_lite._runs import ClosedStates
from dex_lite._stream_log import MESSAGE_OVERHEAD, StreamKey, StreamLog
from dex_lite._timers import Timers
from support.frame_flow import frames, go, message, step, wait

LONG_S = 30 * 24 * 3600


async def test_timers_of_waits_that_something_else_has_won_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Timers] = []

    class Seen(Timers):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(_engine, "Timers", Seen)
    monkeypatch.setattr(_timers, "_FEW", 8)
    waiting = pb.StepOptions()
    condition = wait(
        "any",
        timer_conditions=[pb.TimerCondition(duration_seconds=LONG_S)],
        channel_conditions=[pb.ChannelCondition(channel_name="c")],
    )
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        patient = await engine.start(flow_id="patient", options=waiting)
        await (await worker.task()).wait_for(condition)
        await engine.start(options=waiting)
        for _ in range(30):
            await (await worker.task()).wait_for(condition)
            await engine.publish(message("c", "news"))
            await (await worker.task()).execute(go(step("S", waiting)))
        await worker.task()
        (timers,) = made
        assert len(timers) <= 9
        assert patient in [timer[1] for timer in timers._heap]  # it still counts


async def test_a_stream_forgets_flows_whose_messages_are_all_trimmed(tmp_path: Path) -> None:
    def failed(error: BaseException) -> None:
        raise AssertionError("the journal failed") from error

    path = str(tmp_path / "a.db")
    journal = Journal.open(path, loop=asyncio.get_running_loop(), on_failed=failed)
    log = StreamLog(journal)
    capacity = 10 * (MESSAGE_OVERHEAD + 20)
    tokens = []
    for number in range(200):
        key = StreamKey("Flow", "events", f"flow-{number:04d}")
        log.append(key, b"value", "#s-1", capacity, 1000)
        first = await log.read(key, "", 0)
        assert first is not None
        tokens.append((key, first.resume_token))
    (group,) = log._groups.values()
    assert len(group.logs) == len(group.order) <= 10
    # Whoever reads on behind what is gone gets what comes next.
    key, token = tokens[0]
    assert await log.list(key, 5, "") == ([], "")
    log.append(key, b"later", "#s-1", capacity, 1000)
    later = await log.read(key, token, 0)
    assert later is not None and later.value == b"later"
    await journal.close()


def test_closed_runs_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runs, "_CLOSED_BYTES_KEPT", 1_000)
    kept = ClosedStates()

    def state(run_id: str, size: int) -> RunState:
        return RunState(run_id, run_id, "Flow", "", 0, attributes={"a": bytes(size)})

    for number in range(10):
        kept.keep(state(f"r{number}", 300))
    assert [n for n in range(10) if kept.get(f"r{n}") is not None] == [7, 8, 9]
    kept.keep(state("r9", 900))  # known before, and larger now
    assert [n for n in range(10) if kept.get(f"r{n}") is not None] == [9]
    kept.keep(state("large", 5_000))  # the newest one stays, whatever its size
    assert kept.get("r9") is None and kept.get("large") is not None
    kept.keep(state("r1", 1))
    assert kept.get("large") is None
    kept.drop("r1")
    kept.drop("r1")
    kept.keep(state("r2", 900))
    kept.keep(state("r3", 100))
    assert kept.get("r2") is not None and kept.get("r3") is not None
