"""Worker options, and the processes that ``run_agent_workers`` looks after."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dex_agents import agent_worker_options, run_agent_workers
from dex_agents._worker import _missing, _Place, _Supervisor, run_with_uvloop
from dex_agents._worker_main import build_flows
from dex_agents.testing import Ledger, PrivateEngine, private_engine
from support.kit_flow import KitFlow, kit_client
from support.processes import is_running

MAIN = """
import sys
from dex_agents import run_agent_workers
sys.exit(run_agent_workers(sys.argv[1], server_address=sys.argv[2],
                           processes=int(sys.argv[3]), cache_dir=sys.argv[4]))
"""
READY = re.compile(r"dex-agents worker ready (\d+)")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[PrivateEngine]:
    async with private_engine(tmp_path / "engine.db") as running:
        yield running


class Program:
    """A program that calls ``run_agent_workers``, its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def text(self) -> str:
        return self._log.read_text()

    def ready(self) -> list[int]:
        """Ids of the children that said they were ready, oldest first."""
        return [int(pid) for pid in READY.findall(self.text())]

    def wait_for(self, what: Callable[[], bool], within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)


@contextlib.contextmanager
def program(
    engine: PrivateEngine,
    folder: Path,
    processes: int = 1,
    flows: str = "support.kit_flow:build_flows",
) -> Iterator[Program]:
    log = folder / "program.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, flows, engine.address, str(processes), str(folder / "c")],
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                "KIT_DATA_DIR": str(folder),
            },
        )
    try:
        yield Program(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def test_options() -> None:
    options = agent_worker_options("somewhere:1")
    assert options.server_address == "somewhere:1"
    assert options.pull is not None
    assert options.pull.max_concurrent_tasks == 64
    assert options.pull.idle_streams_per_queue == 16
    assert options.pull.reserved_rpc_tasks is None  # the SDK then keeps one free
    assert options.pull.app_worker_id == ""
    named = agent_worker_options(
        "somewhere:1", max_concurrent_tasks=8, idle_streams_per_queue=2, app_worker_id="w1"
    ).pull
    assert named is not None
    assert (named.max_concurrent_tasks, named.idle_streams_per_queue, named.app_worker_id) == (
        8,
        2,
        "w1",
    )
    with pytest.raises(ValueError, match="app_worker_id"):
        agent_worker_options("somewhere:1", app_worker_id="no spaces")


@pytest.mark.parametrize("flows", ["module", ":function", "module:", ""])
def test_wrong_name_of_flows(flows: str) -> None:
    with pytest.raises(ValueError, match="module:function"):
        run_agent_workers(flows, server_address="somewhere:1")
    with pytest.raises(ValueError, match="module:function"):
        build_flows(flows, None)


def test_wrong_number_of_processes() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        run_agent_workers("a:b", server_address="somewhere:1", processes=0)


def test_build_flows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [flow] = build_flows("support.kit_flow:build_flow", tmp_path)
    assert isinstance(flow, KitFlow)
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path))
    for folder in (tmp_path, None):
        assert len(build_flows("support.kit_flow:build_flows", folder)) == 1
    with pytest.raises(ValueError, match="wants a data folder"):
        build_flows("support.kit_flow:build_flow", None)
    with pytest.raises(ValueError, match="no function 'nothing'"):
        build_flows("support.kit_flow:nothing", None)


def test_run_with_uvloop_returns_the_result() -> None:
    async def work() -> int:
        return 7

    assert run_with_uvloop(work()) == 7


def test_restarts_come_later_each_time_and_start_over_after_health() -> None:
    place = _Place(1)
    delays = [place.schedule_restart(0.0) for _ in range(8)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30]
    place.process = subprocess.Popen([sys.executable, "-c", ""])
    place.process.wait()
    place.started_at = 100.0
    assert place.schedule_restart(131.0) == 0.5
    assert place.start_at == 131.5


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    supervisor = _Supervisor("a:b", "somewhere:1", 1, tmp_path)

    def refuse(*args: object, **kwargs: object) -> None:
        supervisor._signalled(signal.SIGTERM, None)
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert supervisor.run() == 0
    assert handlers == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_running_steps_end_before_the_program_does(
    engine: PrivateEngine, tmp_path: Path, number: signal.Signals
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with program(engine, tmp_path, processes=2) as running:
        running.wait_for(lambda: len(running.ready()) == 2)
        async with kit_client(engine, tmp_path) as (client, flow):
            await client.start_flow(flow, "one", 1.5)
            running.wait_for(lambda: ledger.count("began") == 1)
            running.process.send_signal(number)
            assert running.process.wait(30) == 0
            assert ledger.count("worked") == ledger.count("began") == 1
        assert not any(is_running(pid) for pid in running.ready())
        assert "Stopping 2 Worker process(es)" in running.text()


async def test_dead_child_is_replaced(engine: PrivateEngine, tmp_path: Path) -> None:
    with program(engine, tmp_path) as running:
        running.wait_for(lambda: len(running.ready()) == 1)
        [first] = running.ready()
        os.kill(first, signal.SIGKILL)
        running.wait_for(lambda: len(running.ready()) == 2)
        assert f"{first} ended with code -9, a new one starts in 0.5 s" in running.text()
        async with kit_client(engine, tmp_path) as (client, flow):
            await client.start_flow(flow, "one", 0.0)
            await client.wait_for_flow("one", timedelta(seconds=30))
        assert Ledger(tmp_path / "ledger.jsonl").count("worked", pid=running.ready()[1]) == 1


async def test_flows_that_do_not_load_are_tried_again(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    with program(engine, tmp_path, flows="support.kit_flow:die") as running:
        running.wait_for(lambda: "a new one starts in 1.0 s" in running.text())
        assert "nothing to serve here" in running.text()
        running.process.terminate()
        assert running.process.wait(30) == 0


async def test_a_function_that_only_a_child_can_miss_ends_the_program(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    # The word stands there, so it is no function of the module only when it is imported.
    with program(engine, tmp_path, flows="support.kit_flow:data_dir", processes=2) as running:
        assert running.process.wait(60) == 1
        assert "module 'support.kit_flow' has no function 'data_dir'" in running.text()
        assert "Traceback" not in running.text()
        assert "a new one starts" not in running.text()


@pytest.mark.parametrize(
    ("body", "why", "traces"),
    [
        (
            "return 5",
            r"flows_of_mine:build gave int; it has to return a Flow or a list of Flows",
            0,
        ),
        ("return []", r"flows_of_mine:build gave an empty list; it has to return a Flow or a ", 0),
        ("raise ValueError('no such effect')", r"flows_of_mine:build cannot build its Flows$", 1),
        ("return undefined", r"^NameError: name 'undefined' is not defined$", 1),
    ],
)
async def test_a_function_with_a_mistake_ends_the_program(
    body: str, why: str, traces: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flows_of_mine.py").write_text(f"def build():\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    engine = PrivateEngine("127.0.0.1:1", None, None)
    with program(engine, tmp_path, flows="flows_of_mine:build") as running:
        assert running.process.wait(60) == 1
        assert len(re.findall(why, running.text(), re.M)) == 1
        assert running.text().count("Traceback") == traces
        assert "a new one starts" not in running.text()


def test_what_cannot_be_built_any_more_stops_no_workers_that_serve(tmp_path: Path) -> None:
    supervisor = _Supervisor("a:b", "somewhere:1", 2, tmp_path)
    serving, ended = supervisor._places
    command = [sys.executable, "-c", "import sys; sys.exit(78)"]
    serving.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended.process = subprocess.Popen(command, stdin=subprocess.PIPE)
    ended.process.wait()
    serving.started_at = time.monotonic() - 31
    ended.started_at = time.monotonic()
    try:
        for place in (serving, ended):
            supervisor._look_after(place)
        assert not supervisor._is_hopeless and ended.start_at > 0
    finally:
        serving.process.kill()
        serving.process.wait()


@pytest.mark.parametrize(
    ("flows", "why"),
    [
        ("support.kit_flow:nope", "module 'support.kit_flow' has no function 'nope'; flows names"),
        ("no_such_app:build_flow", "there is no module 'no_such_app' on the path of this program;"),
        ("no_such_app.flows:build", "this program (No module named 'no_such_app'); flows names"),
    ],
)
def test_what_is_not_there_is_refused_before_any_process_starts(
    flows: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_agent_workers(flows, server_address="somewhere:1") == 1
    (line,) = caplog.messages
    assert why in line


@pytest.mark.parametrize(
    "source",
    [
        "def build(): ...",
        "from elsewhere import *",
        "from elsewhere import ( * )",
        "def __getattr__(name): ...",
        "globals()['bui' + 'ld'] = list",
    ],
)
def test_a_function_that_may_be_there_is_left_to_the_child(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_flows.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert _missing("module_of_flows", "build") == ""


async def test_children_stop_when_their_parent_is_killed(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    with program(engine, tmp_path, processes=2) as running:
        running.wait_for(lambda: len(running.ready()) == 2)
        running.process.kill()
        running.wait_for(lambda: not any(is_running(pid) for pid in running.ready()))


async def test_second_signal_ends_at_once(engine: PrivateEngine, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with program(engine, tmp_path) as running:
        running.wait_for(lambda: len(running.ready()) == 1)
        async with kit_client(engine, tmp_path) as (client, flow):
            await client.start_flow(flow, "one", 25.0)
            running.wait_for(lambda: ledger.count("began") == 1)
        running.process.terminate()
        running.wait_for(lambda: "Stopping" in running.text())
        time.sleep(0.5)
        assert running.process.poll() is None
        running.process.terminate()
        assert running.process.wait(5) == 1
        assert not any(is_running(pid) for pid in running.ready())
        assert "still runs and is killed" in running.text()
