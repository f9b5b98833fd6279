"""What the journal does with a disk that fails and with files that are not its own."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dex_lite._errors import (
    DataFileCorruptError,
    DataFileInUseError,
    DataFileLinkedError,
    DataFileReplacedError,
    DataFileVersionError,
    DataFileWriteError,
    DataFolderError,
    DexLiteError,
)
from dex_lite._journal import AddFacts, Journal, PutRun, PutSnapshot, RunRow
from dex_lite._schema import FORMAT

ROW = RunRow("r", "flow", "Type", 1, 1, "", "r", 1, None)


def open_journal(path: Path, **options: Any) -> Journal:
    def failed(error: BaseException) -> None:
        raise AssertionError("the journal failed") from error

    options.setdefault("on_failed", failed)
    return Journal.open(str(path), loop=asyncio.get_running_loop(), **options)


async def make_file(path: Path, payload: bytes = b"a" * 5000) -> None:
    journal = open_journal(path)
    journal.submit([PutRun(ROW), AddFacts("r", 0, [payload] * 20), PutSnapshot("r", 3, b"s")])
    await journal.close()


class Failures:
    """Hears of the failure, and notices when something is released after it."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.happened = asyncio.get_running_loop().create_future()
        self.released: list[int] = []

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        self.happened.set_result(None)

    def release(self, number: int) -> Callable[[], None]:
        return lambda: self.released.append(number)


async def check_stopped(journal: Journal, failures: Failures, path: Path) -> None:
    """After a failed commit nothing is released any more, and the file has all that was."""
    async with asyncio.timeout(10):
        await failures.happened
    assert len(failures.errors) == 1
    assert isinstance(failures.errors[0], DataFileWriteError)
    assert str(path) in str(failures.errors[0])
    released = list(failures.released)
    for number in (1000, 1001):
        commit = journal.submit([AddFacts("r", number, [b"dropped"])])
        journal.when_durable(commit, failures.release(number))
    journal.when_durable(journal.durable, failures.release(1002))
    await journal.close()
    assert failures.released == released
    assert len(failures.errors) == 1
    journal = open_journal(path)
    assert [number for number, _ in await journal.facts("r", 0, -1)] == sorted(released)
    await journal.close()


async def test_full_disk_stops_the_engine_for_good(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    failures = Failures()

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 60")
        return connection

    journal = open_journal(path, connect=connect, on_failed=failures)
    journal.submit([PutRun(ROW)])
    number = 0
    while not failures.happened.done():
        commit = journal.submit([AddFacts("r", number, [b"x" * 3000])])
        committed = asyncio.get_running_loop().create_future()
        journal.when_durable(commit, failures.release(number))
        journal.when_durable(commit, functools.partial(committed.set_result, None))
        number += 1
        await asyncio.wait(
            (committed, failures.happened), return_when=asyncio.FIRST_COMPLETED, timeout=10
        )
    assert "full" in str(failures.errors[0])
    assert failures.released
    await check_stopped(journal, failures, path)


@pytest.mark.parametrize("statement", ["BEGIN", "INSERT INTO facts", "COMMIT"])
async def test_any_error_of_a_commit_stops_the_engine(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "a.db"
    failures = Failures()
    is_broken = False

    class Faulty(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if is_broken and arguments[0].startswith(statement):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(*arguments)

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return sqlite3.connect(*arguments, factory=Faulty, **options)

    journal = open_journal(path, connect=connect, on_failed=failures)
    commit = journal.submit([PutRun(ROW), AddFacts("r", 0, [b"kept"])])
    kept = asyncio.get_running_loop().create_future()
    journal.when_durable(commit, failures.release(0))
    journal.when_durable(commit, lambda: kept.set_result(None))
    await kept
    is_broken = True
    # A snapshot with the facts: more than one statement, so a transaction.
    commit = journal.submit([AddFacts("r", 1, [b"lost"]), PutSnapshot("r", 1, b"lost")])
    journal.when_durable(commit, failures.release(1))
    await check_stopped(journal, failures, path)


def remove(path: Path) -> None:
    path.unlink()


def put_a_copy_in_its_place(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


def remove_its_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def remove_its_lock(path: Path) -> None:
    path.with_name(path.name + ".lock").unlink()


@pytest.mark.parametrize(
    "change", [remove, put_a_copy_in_its_place, remove_its_log, remove_its_lock]
)
async def test_nothing_is_acknowledged_into_a_file_without_a_name(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "a.db"
    failures = Failures()
    journal = open_journal(path, on_failed=failures)
    kept = asyncio.get_running_loop().create_future()
    journal.when_durable(journal.submit([PutRun(ROW)]), lambda: kept.set_result(None))
    await kept
    change(path)
    commit = journal.submit([AddFacts("r", 0, [b"lost"])])
    journal.when_durable(commit, failures.release(0))
    async with asyncio.timeout(10):
        await failures.happened
    (error,) = failures.errors
    assert isinstance(error, DataFileReplacedError)
    assert "was removed or replaced while the engine ran" in str(error)
    assert failures.released == []
    await journal.close()


async def test_who_has_lost_the_lock_file_writes_nothing_more(tmp_path: Path) -> None:
    """Another engine takes the file then, and what it has read must not change behind it."""
    path = tmp_path / "a.db"
    failures = Failures()
    journal = open_journal(path, on_failed=failures)
    kept = asyncio.get_running_loop().create_future()
    journal.when_durable(journal.submit([PutRun(ROW)]), lambda: kept.set_result(None))
    await kept
    remove_its_lock(path)
    second = open_journal(path)
    journal.submit([AddFacts("r", 0, [b"lost"])])
    async with asyncio.timeout(10):
        await failures.happened
    (error,) = failures.errors
    assert "another one could serve the data file at the same time" in str(error)
    assert await second.facts("r", 0, 10) == []
    await journal.close()
    await second.close()


async def test_a_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "a.db", tmp_path / "other.db"
    await open_journal(path).close()
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(DataFileLinkedError, match="has 2 names"):
            open_journal(name)
    other.unlink()
    await open_journal(path).close()


async def test_a_bug_of_the_caller_stops_the_engine_too(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    failures = Failures()
    journal = open_journal(path, on_failed=failures)
    journal.submit([AddFacts("unknown", 0, [b"x"])])
    async with asyncio.timeout(10):
        await failures.happened
    assert "unknown" in str(failures.errors[0])
    await journal.close()
    await make_file(path)


async def test_folder_problems(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderError, match="file"):
        open_journal(tmp_path / "file" / "a.db")
    with pytest.raises(DataFolderError, match="it is a folder"):
        open_journal(tmp_path)


async def _check_refused(path: Path, error: type[DexLiteError], match: str) -> None:
    before = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(error, match=match) as caught:
        open_journal(path)
    assert str(path) in str(caught.value)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    # The lock was given back.
    with pytest.raises(error):
        open_journal(path)


async def test_garbage(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(os.urandom(20000))
    await _check_refused(path, DataFileCorruptError, "not a dex-lite data file")
    path.write_text("hello")
    await _check_refused(path, DataFileCorruptError, "not a dex-lite data file")


async def test_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    await _check_refused(path, DataFileCorruptError, "another program")


async def test_newer_format(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await make_file(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    await _check_refused(path, DataFileVersionError, f"format 99.*up to format {FORMAT}")


@pytest.mark.parametrize("kept", [0.3, 0.9])
async def test_truncated_file(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "a.db"
    await make_file(path)
    os.truncate(path, int(path.stat().st_size * kept))
    await _check_refused(path, DataFileCorruptError, "malformed|quick|page|missing")


async def test_truncated_big_file(tmp_path: Path) -> None:
    # Too big for the check of the content after a clean stop.
    path = tmp_path / "a.db"
    await make_file(path, b"a" * 300_000)
    os.truncate(path, path.stat().st_size - 8192)
    await _check_refused(path, DataFileCorruptError, "malformed")


async def test_overwritten_page(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await make_file(path)
    for page in range(1, path.stat().st_size // 4096):
        with path.open("r+b") as file:
            file.seek(page * 4096)
            kept = file.read(4096)
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)
        try:
            with pytest.raises(DataFileCorruptError):
                open_journal(path)
        finally:
            with path.open("r+b") as file:
                file.seek(page * 4096)
                file.write(kept)


async def test_damage_found_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await make_file(path, b"a" * 300_000)
    size = path.stat().st_size
    with path.open("r+b") as file:  # spare the first pages: the start reads them
        file.seek(size // 2)
        file.write(b"\xa5" * (size // 4))
    journal = open_journal(path)
    with pytest.raises(DataFileCorruptError, match=str(path)):
        list(journal.open_runs())
    with pytest.raises(DataFileCorruptError, match=str(path)):
        await journal.facts("r", 0, -1)
    await journal.close()


async def test_empty_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    await make_file(path)


async def test_log_of_a_deleted_file_is_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journal = open_journal(path)
    journal.submit([PutRun(ROW)])
    await journal.run("r")
    saved = {}
    async with asyncio.timeout(10):
        while journal.durable < 1:
            await journal.run("r")
    for name in ("a.db-wal", "a.db-shm"):
        saved[name] = (tmp_path / name).read_bytes()
    await journal.close()
    path.unlink()
    for name, content in saved.items():
        (tmp_path / name).write_bytes(content)
    journal = open_journal(path)
    assert list(journal.open_runs()) == []
    await journal.close()


async def test_unfinished_creation_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "a.db.new").write_bytes(b"half")
    await make_file(tmp_path / "a.db")
    assert not (tmp_path / "a.db.new").exists()


async def test_second_engine_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    link = tmp_path / "link.db"
    journal = open_journal(path, address="starting")
    link.symlink_to(path)
    journal.set_address("127.0.0.1:4711")
    script = """
import asyncio, sys
from dex_lite._errors import DataFileInUseError
from dex_lite._journal import Journal

async def main():
    try:
        Journal.open(sys.argv[1], loop=asyncio.get_running_loop(), on_failed=print)
    except DataFileInUseError as error:
        print(error.pid, error.address)

asyncio.run(main())
"""
    for name in (path, link):
        found = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script, str(name)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout == f"{os.getpid()} 127.0.0.1:4711\n"
    with pytest.raises(DataFileInUseError):
        open_journal(path)
    await journal.close()
    await make_file(path)
