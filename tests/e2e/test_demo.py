"""The demo, as it runs when nobody sits at the terminal, and the invariants it checks."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dex_agents import AgentSnapshot, FinishedTurn
from dex_agents_google_adk.demo._provider import PaymentProvider
from dex_agents_google_adk.demo._report import broken_invariants


async def run_demo(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from dex_agents_google_adk.demo import main; main()",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={k: v for k, v in os.environ.items() if k != "GOOGLE_API_KEY"} | {"COLUMNS": "160"},
    )
    out, _ = await asyncio.wait_for(process.communicate(), 100)
    return process.returncode, out.decode()


async def test_the_demo_survives_its_own_kill(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    code, text = await run_demo("--data", str(folder))
    assert code == 0, text
    assert "a scripted model, no key needed" in text
    assert "died while the refund ran" in text
    assert "Done: order 7 refunded." in text
    assert "attempt 2 of CallTool-2" in text
    assert str(folder) in text
    provider = PaymentProvider(folder / "payments.jsonl")
    assert [entry["event"] for entry in provider.entries()] == [
        "asked",
        "refunded",
        "asked",
        "answered",
    ]
    assert len({entry["key"] for entry in provider.entries()}) == 1
    assert len({entry["pid"] for entry in provider.entries()}) == 2

    code, text = await run_demo("--data", str(folder))
    assert code == 2
    assert "holds an earlier demo" in text


def _snapshot(status: str = "idle", error: str = "") -> AgentSnapshot:
    turn = FinishedTurn("t1", "Done.", error)
    return AgentSnapshot("s", status, "", 1, 2, last_turn=turn)  # type: ignore[arg-type]


def test_a_broken_invariant_is_found(tmp_path: Path) -> None:
    provider = PaymentProvider(tmp_path / "payments.jsonl")
    assert provider.request_refund("7", "k1") == provider.request_refund("7", "k1")
    assert broken_invariants(_snapshot(), provider) == []
    provider.request_refund("7", "k2")
    assert broken_invariants(_snapshot(), provider) == ["order 7 was refunded 2 times"]
    assert "not idle" in broken_invariants(_snapshot("running"), provider)[1]
    assert "failed" in broken_invariants(_snapshot(error="down"), provider)[1]
