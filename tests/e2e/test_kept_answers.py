"""A Worker dies while one branch has its model's answer and another waits for its own."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from dex_agents.testing import (
    WorkerProcess,
    is_failpoint_reached,
    play_session,
    private_engine,
    session_client,
)
from e2e.parallel_agent import SIGNATURE, build_agent, build_flow, ledger
from support.adk_oracle import World, run_plain
from support.tree_oracle import history_of

pytestmark = pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated")
PLACE = "checkpoint.kept"


async def test_an_answer_that_arrived_is_not_asked_for_again(tmp_path: Path) -> None:
    async with private_engine(tmp_path / "engine.db") as engine:
        worker = await WorkerProcess.start(
            "e2e.parallel_agent:build_flow",
            server_address=engine.address,
            data_dir=tmp_path,
            failpoints=[PLACE],
            respawn=True,
        )
        flow = build_flow(tmp_path)
        async with session_client(flow, server_address=engine.address) as sessions:
            played = await play_session(sessions, "s", ["go"])
            usage = (await sessions.get_agent_snapshot("s")).usage
        await worker.stop()
    assert is_failpoint_reached(PLACE, tmp_path)
    assert list(played.errors) == [""]
    entries = ledger(tmp_path).entries()
    asked = Counter(entry["agent"] for entry in entries if entry["name"] == "asked")
    # fast: its call and its report; slow: the attempt that died and the one that did not.
    assert asked == {"fast": 2, "slow": 2}
    assert ledger(tmp_path).count("look") == 1
    assert usage.model_calls == 3

    plain_ledger = ledger(tmp_path / "plain")
    (tmp_path / "plain").mkdir()
    plain_ledger.record("asked", agent="slow")
    plain = await run_plain(lambda _: build_agent(plain_ledger), World([]), ["go"])
    history = [message.framework_item for message in played.messages]
    assert history_of(history) == history_of(plain.events)
    assert SIGNATURE.hex() in _signatures(history)


def _signatures(history: list[dict[str, object]]) -> str:
    found = re.findall(r'"thought_signature": "([^"]+)"', json.dumps(history))
    return " ".join(base64.urlsafe_b64decode(item).hex() for item in found)
