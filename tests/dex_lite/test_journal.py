"""The journal: what is stored, what is released when, and how commits are grouped."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dex_lite._errors import DexLiteError, EngineStoppedError
from dex_lite._journal import (
    AddFacts,
    Journal,
    PutIndexTypes,
    PutRun,
    PutSnapshot,
    RunRow,
)


def row(run_id: str, flow_id: str = "flow", **fields: Any) -> RunRow:
    values: dict[str, Any] = {
        "flow_type": "Type",
        "status": 1,
        "run_attempt": 1,
        "request_id": "",
        "first_run_id": run_id,
        "start_ms": 1,
        "close_ms": None,
    }
    return RunRow(run_id=run_id, flow_id=flow_id, **(values | fields))


def unexpected_failure(error: BaseException) -> None:
    raise AssertionError("the journal failed") from error


def open_journal(path: Path, **options: Any) -> Journal:
    options.setdefault("on_failed", unexpected_failure)
    return Journal.open(str(path), loop=asyncio.get_running_loop(), **options)


async def durable(journal: Journal, commit: int) -> None:
    done = asyncio.get_running_loop().create_future()
    journal.when_durable(commit, lambda: done.set_result(None))
    async with asyncio.timeout(10):
        await done


class Gate(sqlite3.Connection):
    """A connection whose transactions wait until the test lets them go on."""

    closed_for_now = threading.Event()
    reached = threading.Event()

    @classmethod
    def reset(cls) -> None:
        cls.closed_for_now = threading.Event()
        cls.closed_for_now.set()
        cls.reached = threading.Event()

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if arguments[0].startswith(("INSERT", "BEGIN")):
            self.reached.set()
            assert self.closed_for_now.wait(10)
        return super().execute(*arguments)


def connect_gate(*arguments: Any, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(*arguments, factory=Gate, **options)


async def test_what_is_stored_is_found_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.db"
    journal = open_journal(path)
    first, second, closed = row("r1"), row("r2", "other"), row("r3", "third", close_ms=9)
    journal.submit([PutRun(first), AddFacts("r1", 0, [b"a", b"b", b"c"])])
    journal.submit([PutRun(second), AddFacts("r2", 0, [b"x"]), PutRun(closed)])
    journal.submit([PutSnapshot("r1", 0, b"old"), PutSnapshot("r1", 1, b"state after b")])
    journal.submit([PutIndexTypes({"k": 3, "l": 4})])
    await journal.close()

    journal = open_journal(path)
    runs = list(journal.open_runs())
    assert [run.row for run in runs] == [first, second]
    assert runs[0].snapshot == (1, b"state after b")
    assert runs[0].facts == [(2, b"c")]
    assert runs[1].snapshot is None
    assert runs[1].facts == [(0, b"x")]
    assert journal.index_types() == {"k": 3, "l": 4}
    assert list(journal.latest_runs()) == [first, second, closed]
    assert await journal.facts("r1", 1, 10) == [(1, b"b"), (2, b"c")]
    assert await journal.facts("r1", 0, 2) == [(0, b"a"), (1, b"b")]
    assert await journal.facts("nobody", 0, 2) == []
    assert await journal.run("r3") == closed
    assert await journal.run("nobody") is None
    await journal.close()


async def test_latest_run_of_a_flow_and_replaced_rows(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "a.db")
    journal.submit([PutRun(row("r1")), PutRun(row("r1", close_ms=5, status=2))])
    journal.submit([PutRun(row("r2"))])
    # A fact may come after the close, when the run's key is no longer in memory.
    last = journal.submit([AddFacts("r1", 0, [b"late"])])
    await durable(journal, last)
    assert list(journal.latest_runs()) == [row("r2")]
    assert [run.row for run in journal.open_runs()] == [row("r2")]
    assert await journal.run("r1") == row("r1", close_ms=5, status=2)
    assert await journal.facts("r1", 0, 10) == [(0, b"late")]
    await journal.close()


async def test_big_batches_and_values(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "a.db")
    payloads = [bytes([number % 251]) * (number % 97) for number in range(1000)]
    payloads[500] = b"z" * (3 << 20)
    await durable(journal, journal.submit([PutRun(row("r")), AddFacts("r", 0, payloads)]))
    assert await journal.facts("r", 0, -1) == list(enumerate(payloads))
    await journal.close()


async def test_actions_run_after_their_commit_in_order(tmp_path: Path) -> None:
    Gate.reset()
    journal = open_journal(tmp_path / "a.db", connect=connect_gate)
    Gate.closed_for_now.clear()
    ran: list[object] = []

    def note(what: object) -> Callable[[], None]:
        return lambda: ran.append((what, journal.durable))

    first = journal.submit([PutRun(row("r"))])
    await asyncio.to_thread(Gate.reached.wait)
    second = journal.submit([AddFacts("r", 0, [b"a"])])
    assert journal.submit([AddFacts("r", 1, [b"b"])]) == second == first + 1
    journal.when_durable(second, note("second"))
    journal.when_durable(first, note("first"))
    journal.when_durable(second, note("second again"))
    assert ran == []
    assert journal.durable == first - 1
    Gate.closed_for_now.set()
    await durable(journal, second)
    assert ran == [("first", first), ("second", second), ("second again", second)]
    journal.when_durable(first, note("at once"))
    assert ran[-1] == ("at once", second)
    await journal.close()


async def test_batch_is_what_came_while_the_last_commit_ran(tmp_path: Path) -> None:
    Gate.reset()
    journal = open_journal(tmp_path / "a.db", connect=connect_gate)
    Gate.closed_for_now.clear()
    # One turn of the loop: one commit.
    commits = {journal.submit([PutRun(row(f"r{number}"))]) for number in range(10)}
    assert len(commits) == 1
    await asyncio.to_thread(Gate.reached.wait)
    # Several turns, while that commit runs: the next one.
    later = set()
    for number in range(10):
        later.add(journal.submit([AddFacts(f"r{number}", 0, [b"x"])]))
        await asyncio.sleep(0)
    assert later == {commits.pop() + 1}
    Gate.closed_for_now.set()
    await durable(journal, later.pop())
    await journal.close()


async def test_empty_submit_names_the_last_commit(tmp_path: Path) -> None:
    Gate.reset()
    journal = open_journal(tmp_path / "a.db", connect=connect_gate)
    assert journal.submit([]) == journal.durable
    Gate.closed_for_now.clear()
    first = journal.submit([PutRun(row("r"))])
    assert journal.submit([]) == first
    await asyncio.to_thread(Gate.reached.wait)
    assert journal.submit([]) == first
    second = journal.submit([AddFacts("r", 0, [b"a"])])
    assert journal.submit([]) == second
    Gate.closed_for_now.set()
    await durable(journal, journal.submit([]))
    assert journal.durable == second
    await journal.close()


async def test_one_failing_action_does_not_harm_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = open_journal(tmp_path / "a.db")
    commit = journal.submit([PutRun(row("r"))])
    journal.when_durable(commit, lambda: [][0])
    await durable(journal, commit)
    assert "action after commit" in caplog.text
    await journal.close()


async def test_close_commits_what_is_open_and_runs_its_actions(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journal = open_journal(path)
    ran: list[int] = []
    journal.when_durable(journal.submit([PutRun(row("r"))]), lambda: ran.append(1))
    await asyncio.gather(journal.close(), journal.close())
    assert ran == [1]
    # A clean stop leaves one file, apart from the lock.
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.db", "a.db.lock"]
    never = journal.submit([PutRun(row("dropped"))])
    journal.when_durable(never, lambda: ran.append(2))
    with pytest.raises(EngineStoppedError):
        await journal.run("r")
    await journal.close()
    journal = open_journal(path)
    assert [run.row.run_id for run in journal.open_runs()] == ["r"]
    await journal.close()
    assert ran == [1]


async def test_idle_moment_checkpoints(tmp_path: Path) -> None:
    checkpointed = threading.Event()

    class Watched(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            result = super().execute(*arguments)
            if "wal_checkpoint(PASSIVE)" in arguments[0]:
                checkpointed.set()
            return result

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return sqlite3.connect(*arguments, factory=Watched, **options)

    path = tmp_path / "a.db"
    journal = open_journal(path, connect=connect)
    size = path.stat().st_size
    commit = journal.submit([PutRun(row("r")), AddFacts("r", 0, [b"x" * (1 << 20)])])
    await durable(journal, commit)
    assert path.stat().st_size == size
    assert await asyncio.to_thread(checkpointed.wait, 10)
    assert path.stat().st_size > size
    # The writer works on after it.
    await durable(journal, journal.submit([AddFacts("r", 1, [b"y"])]))
    await journal.close()


async def test_normal_durability_and_wrong_durability(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "a.db", durability="normal")
    await durable(journal, journal.submit([PutRun(row("r"))]))
    await journal.close()
    with pytest.raises(ValueError, match="sometimes"):
        open_journal(tmp_path / "a.db", durability="sometimes")


async def test_each_start_counts(tmp_path: Path) -> None:
    boots = []
    for _ in range(3):
        journal = open_journal(tmp_path / "a.db")
        boots.append(journal.boots)
        await journal.close()
    assert boots == [1, 2, 3]


_COMMIT_FOREVER = """
import asyncio, sys
from dex_lite._journal import AddFacts, Journal, PutRun, RunRow

async def main():
    loop = asyncio.get_running_loop()
    journal = Journal.open(sys.argv[1], durability=sys.argv[2], loop=loop, on_failed=print)
    journal.submit([PutRun(RunRow("r", "f", "T", 1, 1, "", "r", 1, None))])
    number = 0
    while True:
        done = asyncio.get_running_loop().create_future()
        commit = journal.submit([AddFacts("r", number, [b"a" * 700, b"b"])])
        journal.when_durable(commit, lambda: done.set_result(None))
        number += 2
        await done
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("durability", "commits"), [("full", 1), ("full", 7), ("full", 60), ("normal", 60)]
)
async def test_a_killed_process_keeps_what_it_acknowledged(
    tmp_path: Path, durability: str, commits: int
) -> None:
    path = tmp_path / "a.db"
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMIT_FOREVER, str(path), durability],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    acknowledged = 0
    for _ in range(commits):
        acknowledged = int(process.stdout.readline())
    process.kill()
    rest = process.communicate()[0].splitlines()
    if rest and rest[-1].isdigit():
        acknowledged = max(acknowledged, *(int(line) for line in rest[:-1] or ["0"]))
    journal = open_journal(path)
    numbers = [number for number, _ in await journal.facts("r", 0, -1)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= acknowledged
    assert len(numbers) % 2 == 0
    await journal.close()


async def test_a_loop_that_ends_without_close_lets_the_program_end(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from dex_lite._journal import Journal, PutRun, RunRow

async def main():
    journal = Journal.open(sys.argv[1], loop=asyncio.get_running_loop(), on_failed=print)
    journal.submit([PutRun(RunRow("r", "f", "T", 1, 1, "", "r", 1, None))])

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path / "a.db"), stderr=subprocess.PIPE
    )
    async with asyncio.timeout(20):
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


def test_every_named_error_has_one_base() -> None:
    from dex_lite import _errors

    named = [value for value in vars(_errors).values() if isinstance(value, type)]
    assert all(issubclass(error, DexLiteError) for error in named)
