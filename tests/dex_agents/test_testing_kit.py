"""The testing kit itself: processes that die when told to, a ledger, Step history."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dex_agents.testing import (
    Ledger,
    PrivateEngine,
    WorkerProcess,
    failpoint_env,
    is_failpoint_reached,
    private_engine,
    read_step_history,
    read_step_shape,
)
from dex_agents.testing._process import ChildProcess
from support.kit_flow import AFTER_WORK, NOISE_ENV, kit_client
from support.polling import until
from support.processes import is_running

BUILD = "support.kit_flow:build_flow"
SHAPE = ["Begin", "Work", "Refuse", "Rescue"]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[PrivateEngine]:
    async with private_engine(tmp_path / "engine.db") as running:
        yield running


async def test_history_of_a_flow(engine: PrivateEngine, tmp_path: Path) -> None:
    before = datetime.now(UTC)
    worker = await WorkerProcess.start(BUILD, server_address=engine.address, data_dir=tmp_path)
    async with kit_client(engine, tmp_path) as (client, flow):
        await client.start_flow(flow, "one", 0.2)
        await client.wait_for_flow("one", timedelta(seconds=30))
    # A command that a tool runs inherits it, and would wait for ever for the end of a pipe.
    assert os.readlink(f"/proc/{worker.pid}/fd/0") == os.devnull
    rows = await read_step_history(engine.address, "one")
    assert await worker.stop() == 0
    assert worker.ready_line == f"dex-agents worker ready {worker.pid}"
    assert [(row.step_type, row.method) for row in rows][:2] == [
        ("Begin", "wait_for"),
        ("Begin", "execute"),
    ]
    execute = [row for row in rows if row.method == "execute"]
    assert [row.step_type for row in execute] == SHAPE
    assert await read_step_shape(engine.address, "one") == SHAPE
    assert [row.outcome for row in execute] == ["completed", "completed", "failed", "completed"]
    assert [row.attempts for row in execute] == [1, 1, 1, 1]
    assert "this Step refuses" in execute[2].error
    assert not any(row.error for row in execute if row.outcome == "completed")
    assert execute[1].duration_s == pytest.approx(0.2, abs=0.19)
    assert all(before <= row.started_at <= datetime.now(UTC) for row in rows)
    parents = {row.step_execution_id: row.from_step_execution_id for row in execute}
    assert parents[execute[1].step_execution_id] == execute[0].step_execution_id


async def test_failpoint_kills_once(engine: PrivateEngine, tmp_path: Path) -> None:
    assert not is_failpoint_reached(AFTER_WORK, tmp_path)

    async def start() -> WorkerProcess:
        return await WorkerProcess.start(
            BUILD, server_address=engine.address, data_dir=tmp_path, failpoints=[AFTER_WORK]
        )

    first = await start()
    async with kit_client(engine, tmp_path) as (client, flow):
        await client.start_flow(flow, "one", 0.0)
        assert await first.wait() == -signal.SIGKILL
        assert is_failpoint_reached(AFTER_WORK, tmp_path)
        second = await start()
        await client.wait_for_flow("one", timedelta(seconds=40))
    assert await second.stop() == 0
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert [entry["pid"] for entry in ledger.entries() if entry["name"] == "worked"] == [
        first.pid,
        second.pid,
    ]
    work = [r for r in await read_step_history(engine.address, "one") if r.step_type == "Work"]
    assert [(row.attempts, row.outcome) for row in work] == [(2, "completed")]


async def test_killed_worker_and_engine(engine: PrivateEngine, tmp_path: Path) -> None:
    worker = await WorkerProcess.start(BUILD, server_address=engine.address, data_dir=tmp_path)
    address = engine.address
    with pytest.raises(RuntimeError, match="still runs"):
        await engine.restart()
    async with kit_client(engine, tmp_path) as (client, flow):
        await client.start_flow(flow, "one", 0.0)
        await client.wait_for_flow("one", timedelta(seconds=30))
    worker.kill()
    assert await worker.wait() == worker.returncode == -signal.SIGKILL
    await engine.kill()
    await engine.restart()
    assert engine.address == address
    assert await read_step_shape(address, "one") == SHAPE


async def test_worker_that_prints_a_lot_goes_on(engine: PrivateEngine, tmp_path: Path) -> None:
    worker = await WorkerProcess.start(
        BUILD, server_address=engine.address, data_dir=tmp_path, env={NOISE_ENV: "1000000"}
    )
    async with kit_client(engine, tmp_path) as (client, flow):
        await client.start_flow(flow, "one", 0.0)
        await client.wait_for_flow("one", timedelta(seconds=30))
    assert await worker.stop() == 0
    assert (tmp_path / "worker.log").stat().st_size >= 1_000_000


async def test_a_worker_ends_with_the_process_that_started_it(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    program = (
        "import asyncio, sys\n"
        "from dex_agents.testing import WorkerProcess\n"
        "async def main():\n"
        "    worker = await WorkerProcess.start(\n"
        "        sys.argv[1], server_address=sys.argv[2], data_dir=sys.argv[3])\n"
        "    print(worker.pid, flush=True)\n"
        "    await worker.wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        BUILD,
        engine.address,
        str(tmp_path),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    worker = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    assert is_running(worker)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_running(worker))


async def test_worker_that_cannot_start_says_why(engine: PrivateEngine, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 1.*nothing to serve here"):
        await WorkerProcess.start(
            "support.kit_flow:die", server_address=engine.address, data_dir=tmp_path
        )
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "only_here.py").write_text("def flow(): raise KeyError('found me')\n")
    with pytest.raises(RuntimeError, match="found me"):
        await WorkerProcess.start(
            "only_here:flow",
            server_address=engine.address,
            data_dir=tmp_path,
            python_path=[tmp_path / "more"],
        )


async def test_silent_child_is_ended(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(60)",
    ]
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match=r"the child was not ready within 2 s"):
        await ChildProcess.spawn("the child", command, ready="never", log=log, timeout_s=2)
    assert not Path(f"/proc/{int(log.read_text())}").exists()


async def test_named_server_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEX_TEST_SERVER_ADDRESS", "somewhere:1")
    async with private_engine() as engine:
        assert (engine.address, engine.data_file, engine.can_be_killed) == (
            "somewhere:1",
            None,
            False,
        )
        with pytest.raises(RuntimeError, match="DEX_TEST_SERVER_ADDRESS"):
            await engine.kill()
        with pytest.raises(RuntimeError, match="DEX_TEST_SERVER_ADDRESS"):
            await engine.restart()


async def test_command_of_dexcli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text("import sys, time; print('ready', sys.argv[1:], flush=True); time.sleep(60)")
    monkeypatch.setenv("DEXCLI", f"{sys.executable} {fake}")
    async with private_engine(tmp_path / "engine.db") as engine:
        assert engine._process is not None
        port = engine.address.rpartition(":")[2]
        assert engine._process.ready_line == f"ready ['dev', '--engine', 'zd', '--port', '{port}']"


def test_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.entries() == []
    ledger.record("pay", order="1", amount=2)
    ledger.record("pay", order="2\n\u2028", amount=2)
    Ledger(tmp_path / "ledger.jsonl").record("look")
    assert ledger.entries()[1] == {"name": "pay", "order": "2\n\u2028", "amount": 2}
    assert ledger.count("pay") == ledger.count("pay", amount=2) == 2
    assert ledger.count("pay", order="1") == 1
    assert ledger.count("look", order="1") == 0


def test_failpoints(tmp_path: Path) -> None:
    assert failpoint_env([], tmp_path) == {}
    code = (
        "from dex_agents import _failpoints\n"
        "for name in ('other', 'a', 'b'):\n"
        "    _failpoints.reach(name)\n"
        "    print(name, flush=True)\n"
    )
    seen = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={
                "PYTHONPATH": ":".join(p for p in sys.path if p),
                **failpoint_env(["a", "b=kill"], tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        seen.append((done.returncode, done.stdout.split()))
    assert json.dumps(seen) == json.dumps(
        [
            (-signal.SIGKILL, ["other"]),
            (-signal.SIGKILL, ["other", "a"]),
            (0, ["other", "a", "b"]),
        ]
    )
