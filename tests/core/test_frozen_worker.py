"""A Worker process that freezes in the middle of a call, and thaws when another has taken over."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from core.crash_agent import CrashRunner, ledger
from dex_agents import (
    AgentSessionFlow,
    AgentSessionOptions,
    DeferredToolExecution,
    ToolExecutionResult,
)
from dex_agents.testing import WorkerProcess, private_engine, session_client
from support.polling import until

TURN_S = 60.0
OPTIONS = AgentSessionOptions(heartbeat_timeout=timedelta(seconds=2))


class _SlowRunner(CrashRunner):
    """Its first attempts last until the test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(ledger(folder))
        self._folder = folder

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        result = await super().execute_deferred_tool_call(call)
        if call.attempt == 1:
            await until(thaw(self._folder).exists)
        ledger(self._folder).record("ended", turn=call.turn_id, attempt=call.attempt)
        return result


def thaw(folder: Path) -> Path:
    return folder / "thaw"


def build_flow(data_dir: Path) -> AgentSessionFlow:
    return AgentSessionFlow(_SlowRunner(data_dir), flow_type="Frozen", options=OPTIONS)


async def start_worker(address: str, folder: Path) -> WorkerProcess:
    return await WorkerProcess.start(
        "core.test_frozen_worker:build_flow", server_address=address, data_dir=folder
    )


@pytest.mark.parametrize(
    ("effect", "answer", "paid"),
    [("non_idempotent_write", "outcome_unknown", 1), ("idempotent_write", "succeeded", 2)],
)
async def test_another_takes_over_and_the_late_result_counts_no_more(
    tmp_path: Path, effect: str, answer: str, paid: int
) -> None:
    entries = ledger(tmp_path)
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        session_client(build_flow(tmp_path), server_address=engine.address) as sessions,
    ):
        frozen = await start_worker(engine.address, tmp_path)
        await sessions.start_session("s", effect)
        await until(lambda: entries.count("paid") == 1)
        os.killpg(frozen.pid, signal.SIGSTOP)
        other = await start_worker(engine.address, tmp_path)
        # Its connection stays open, so nothing but the missing heartbeat tells of it.
        before = (await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)).last_turn
        assert before is not None and (before.final_text, before.error) == (answer, "")
        thaw(tmp_path).touch()
        os.killpg(frozen.pid, signal.SIGCONT)
        await until(lambda: entries.count("ended", turn="t1", attempt=1) == 1)
        assert await frozen.stop() == 0  # what it had to say is said
        assert (await sessions.get_agent_snapshot("s")).last_turn == before
        assert entries.count("paid", key="s/t1/c") == paid
        await sessions.send_user_message("s", "read")
        after = (await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)).last_turn
        assert after is not None and after.final_text == "succeeded"
        assert await other.stop() == 0
