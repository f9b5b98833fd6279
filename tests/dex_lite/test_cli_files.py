"""`dex-lite backup` on a live file, and `dex-lite check` on whole and on damaged ones."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dex_lite_samples import Chain, serve
from support.cli import Done, command, spawn, write_stream

chain = Chain()


async def live_command(*arguments: str | Path) -> Done:
    """As its own process: SQLite's locks are those of a process."""
    process = await spawn(*arguments)
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def test_backup_of_a_live_file_is_whole(tmp_path: Path) -> None:
    data, copy = tmp_path / "engine.db", tmp_path / "copy.db"
    async with serve(tmp_path, chain) as app:
        await app.client.start_flow(chain, "before", 3)
        await app.client.wait_for_flow("before")
        done = await live_command("backup", copy, "--data", data)
        assert done.code == 0, done.err
        # The engine goes on, and its file is its own.
        await app.client.start_flow(chain, "after", 3)
        await app.client.wait_for_flow("after")
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    assert sqlite3.connect(copy).execute("SELECT flow_id FROM runs").fetchall() == [("before",)]
    restored = tmp_path / "restored"
    restored.mkdir()
    shutil.copy(copy, restored / "engine.db")
    async with serve(restored, chain) as app:
        assert (await app.client.wait_for_flow("before")).single_output(int) == 0
    assert (await command("check", data, "--json")).json["ok"]


async def test_backup_refuses_what_would_lose_a_file(tmp_path: Path) -> None:
    await _made(tmp_path)
    data, other = tmp_path / "engine.db", tmp_path / "other.db"
    other.write_text("precious")
    assert "--force" in (await command("backup", other, "--data", data)).refusal(1)
    assert other.read_text() == "precious"
    assert "itself" in (await command("backup", data, "--data", data, "--force")).refusal(1)
    line = (await command("backup", other, "--data", "none")).refusal(1)
    assert f"no data file none: there is no such file ({os.path.abspath('none')})" in line
    assert "its --data, else .dex-lite/dev.db" in line
    nowhere = tmp_path / "none" / "b.db"
    assert "can be written to" in (await command("backup", nowhere, "--data", data)).refusal(1)
    assert (await command("backup", other, "--data", data, "--force")).code == 0
    assert (await command("check", other)).code == 0


async def test_backup_of_a_damaged_file_keeps_the_old_backup(tmp_path: Path) -> None:
    await _made(tmp_path)
    data, copy = tmp_path / "engine.db", tmp_path / "copy.db"
    assert (await command("backup", copy, "--data", data)).code == 0
    before = copy.read_bytes()
    _sql("DELETE FROM facts WHERE id = (SELECT max(id) FROM facts)")(data)
    line = (await command("backup", copy, "--data", data, "--force")).refusal(1)
    assert "facts and snapshots" in line
    assert copy.read_bytes() == before
    assert not list(tmp_path.glob("*.unfinished*"))


async def test_check_leaves_a_whole_file_as_it_is(tmp_path: Path) -> None:
    await _made(tmp_path)
    data = tmp_path / "engine.db"
    before, names = data.read_bytes(), sorted(os.listdir(tmp_path))
    report = (await command("check", data, "--json")).json
    assert report["ok"]
    counts = {check["name"]: check["count"] for check in report["checks"]}
    assert (counts["runs"], counts["Streams"], counts["Stream messages"]) == (2, 1, 1)
    assert counts["facts and snapshots"] > 200
    done = await command("check", data)
    assert done.code == 0
    assert len(done.out.splitlines()) == 1 + len(counts)
    assert "failed" not in done.out
    assert (data.read_bytes(), sorted(os.listdir(tmp_path))) == (before, names)


def _sql(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        connection = sqlite3.connect(path)
        for statement in statements:
            assert connection.execute(statement).rowcount != 0, statement
        connection.commit()
        connection.close()

    return change


def _overwrite(path: Path) -> None:
    """Half of the file becomes noise."""
    with path.open("r+b") as file:
        size = os.path.getsize(path)
        file.seek(size // 2)
        file.write(b"\xa5" * (size - size // 2))


_MIDDLE = "(SELECT id FROM facts ORDER BY id LIMIT 1 OFFSET 9)"


@pytest.mark.parametrize(
    ("damage", "check", "told"),
    [
        (_overwrite, "SQLite integrity", ""),
        (_sql("DROP INDEX runs_open"), "tables and indexes", "runs_open is missing"),
        (_sql("DELETE FROM meta WHERE key = 'boots'"), "settings", "boots is None"),
        (_sql("UPDATE runs SET status = 99 WHERE flow_id = 'a'"), "runs", "status 99"),
        (_sql("UPDATE runs SET close_ms = NULL WHERE flow_id = 'a'"), "runs", "close time None"),
        (_sql("UPDATE runs SET first_run_id = 'x' WHERE flow_id = 'a'"), "Flow ids", "first run"),
        (
            _sql("UPDATE runs SET run_attempt = 2 WHERE flow_id = 'a'"),
            "facts and snapshots",
            "attempt 2",
        ),
        (
            _sql(f"DELETE FROM facts WHERE id = {_MIDDLE}"),
            "facts and snapshots",
            "has fact 11 where fact 10 should be",
        ),
        (
            _sql(f"UPDATE facts SET payload = x'c1' WHERE id = {_MIDDLE}"),
            "facts and snapshots",
            "fact 10 of run",
        ),
        (
            _sql(
                "UPDATE facts SET payload = (SELECT payload FROM facts ORDER BY id LIMIT 1)"
                f" WHERE id = {_MIDDLE}"
            ),
            "facts and snapshots",
            "is a RunStarted",
        ),
        (
            _sql("DELETE FROM facts WHERE id = (SELECT max(id) FROM facts)"),
            "facts and snapshots",
            "but its facts say",
        ),
        (_sql("DELETE FROM runs WHERE flow_id = 'a'"), "facts and snapshots", "does not exist"),
        (
            _sql(
                "INSERT INTO facts (id, payload) SELECT id + 1, payload FROM facts"
                " WHERE id = (SELECT max(id) FROM facts)"
            ),
            "facts and snapshots",
            "comes after the end of the run",
        ),
        (_sql("DELETE FROM facts"), "facts and snapshots", "has no facts"),
        (
            _sql("INSERT INTO snapshots VALUES (77, 1, x'80')"),
            "facts and snapshots",
            "snapshot belongs to run number 77",
        ),
        (
            _sql("INSERT OR REPLACE INTO snapshots VALUES (1, 3, x'80')"),
            "facts and snapshots",
            "snapshot of run",
        ),
        (_sql("INSERT INTO index_types VALUES ('city', 99)"), "Attribute indexes", "type 99"),
        (_sql("UPDATE stream_groups SET capacity = 0"), "Streams", "capacity 0"),
        (_sql("DELETE FROM stream_groups"), "Stream messages", "does not exist"),
        (_sql("UPDATE stream_messages SET value = x'ff'"), "Stream messages", "no readable value"),
    ],
)
async def test_check_finds_damage(
    tmp_path: Path, damage: Callable[[Path], None], check: str, told: str
) -> None:
    await _made(tmp_path)
    data = tmp_path / "engine.db"
    damage(data)
    done = await command("check", data)
    assert (done.code, done.err) == (1, "")
    rows = [line for line in done.out.splitlines() if line.startswith(check)]
    assert "failed" in rows[0]
    assert told in done.out


async def test_check_refuses_other_files(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert f"no data file {missing}: there is no such file. Name" in (
        await command("check", missing)
    ).refusal(1)
    assert f"no data file {tmp_path}: it is a folder" in (await command("check", tmp_path)).refusal(
        1
    )
    text = tmp_path / "text"
    text.write_text("hello")
    for done in (
        await command("check", text),
        await command("backup", tmp_path / "copy", "--data", text),
    ):
        line = done.refusal(1)
        assert f"data file {text} cannot be read: it is not a dex-lite data file" in line
        assert "choose another data file" in line
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    assert "another program" in (await command("check", other)).refusal(1)


_kept: list[bytes] = []


async def _made(folder: Path) -> None:
    """A stopped engine's file with two runs and a Stream message; made once, then copied."""
    data = folder / "engine.db"
    if not _kept:
        async with serve(folder, chain) as app:
            for flow_id, hops in (("a", 60), ("b", 3)):
                await app.client.start_flow(chain, flow_id, hops)
                await app.client.wait_for_flow(flow_id)
            await write_stream(app.address, "a", "Chain", "one")
        _kept.append(data.read_bytes())
    data.write_bytes(_kept[0])
