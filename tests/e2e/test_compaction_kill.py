"""A Worker that dies in the summary call: the turn behind it goes on, one summary is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dex_agents.testing import (
    WorkerProcess,
    private_engine,
    read_step_history,
    session_client,
    step_shape,
)
from dex_agents.ui_stream import AiSdkEncoder, open_ui_stream
from e2e.long_agent import BULK, build_flow, ledger
from ui_stream.test_follow import collect, payloads
from ui_stream.test_waits_in_streams import ENCODERS, streams_behind_each_event

TURN_S = 60.0


@pytest.mark.parametrize(
    ("place", "asked_for"), [("compaction.before_call", 1), ("compaction.after_call", 2)]
)
async def test_one_summary_is_stored_and_the_turn_uses_its_tool(
    place: str, asked_for: int, tmp_path: Path
) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        session_client(build_flow(tmp_path), server_address=engine.address) as sessions,
    ):
        start: Any = {"server_address": engine.address, "data_dir": tmp_path}
        flow = "e2e.long_agent:build_flow"
        worker = await WorkerProcess.start(flow, **start)
        await sessions.start_session("s", f"0 {BULK}")
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await sessions.send_user_message("s", f"1 {BULK}")
        await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        await worker.stop()
        killed = await WorkerProcess.start(flow, failpoints=[place], **start)
        await sessions.send_user_message("s", f"2 {BULK}")
        await killed.wait()
        worker = await WorkerProcess.start(flow, **start)
        await sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        # A UI is told of one summary, and comes back behind each event of it.
        stream = await open_ui_stream(sessions, "s", AiSdkEncoder("s"))
        frames = await collect(stream)
        notices = [part["data"]["name"] for part in payloads(frames) if "notice" in part["type"]]
        assert notices == ["compaction_started", "compaction_finished"]
        for make in ENCODERS.values():
            frames = await collect(await open_ui_stream(sessions, "s", make()))
            await streams_behind_each_event(sessions, make, frames)
        shape = step_shape(await read_step_history(engine.address, "s"))
        await worker.stop()
    entries = ledger(tmp_path)
    assert entries.count("summary") == asked_for
    assert entries.count("look") == 3
    assert shape.count("CompactHistory") == 1
    asked = [entry["first"] for entry in entries.entries() if entry["name"] == "asked"]
    assert len(asked) == 3
    assert asked[2].startswith("Summary of the conversation")
