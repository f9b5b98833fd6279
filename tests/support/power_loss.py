"""A disk that loses power: it records what SQLite writes and syncs, and makes up what is left of it.

What was not synced may be there, missing, torn at sectors or newer than what came before it; an entry of a folder
that was not synced may be missing.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

_SECTOR = 512
_NEW_LOG_FLAGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


class Event(NamedTuple):
    """One thing that happened, in order."""

    kind: str  # write, truncate, sync; create, delete, rename, folder_sync; acknowledged
    file: int = -1  # the content, whatever its name is
    name: str = ""
    offset: int = 0  # of a write; the size for truncate; the number for acknowledged
    data: bytes = b""
    new_name: str = ""


class Disk:
    """A folder whose files are recorded from now on. What is in it now is safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self._files: dict[str, int] = {}
        self._count = 0
        self.safe: dict[int, bytes] = {}
        self.safe_names: dict[str, int] = {}
        for path in sorted(folder.iterdir()):
            if path.name.endswith((".lock", "-shm")):
                continue
            self.safe[self._count] = path.read_bytes()
            self.safe_names[path.name] = self._files[path.name] = self._count
            self._count += 1

    def opened(self, name: str) -> int:
        """The content behind a name; a new one if there is none."""
        if name not in self._files:
            self._files[name] = self._count
            self._count += 1
            self.events.append(Event("create", self._files[name], name))
        return self._files[name]

    def deleted(self, name: str) -> None:
        """The name is gone."""
        if self._files.pop(name, None) is not None:
            self.events.append(Event("delete", name=name))

    def renamed(self, name: str, new_name: str) -> None:
        """One name instead of another."""
        self._files[new_name] = self._files.pop(name)
        self.events.append(Event("rename", self._files[new_name], name, new_name=new_name))

    def after_power_loss(self, length: int, chance: random.Random) -> dict[str, bytes]:
        """Files by name, if power is lost after so many events."""
        events = self.events[:length]
        names = self._names(events, chance)
        keep_share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        return {name: self._content(file, events, keep_share, chance) for name, file in names}

    def _names(self, events: list[Event], chance: random.Random) -> list[tuple[str, int]]:
        names = dict(self.safe_names)
        entries = [e for e in events if e.kind in ("create", "delete", "rename", "folder_sync")]
        synced = max((i for i, e in enumerate(entries) if e.kind == "folder_sync"), default=-1)
        open_ones = len(entries) - synced - 1
        # In order up to a point, or any of them.
        kept = chance.randint(0, open_ones) if chance.random() < 0.5 else -1
        for index, event in enumerate(entries):
            if index > synced:
                number = index - synced - 1
                is_kept = number < kept if kept >= 0 else chance.random() < 0.5
                if not is_kept:
                    continue
            if event.kind == "create":
                names[event.name] = event.file
            elif event.kind == "delete":
                names.pop(event.name, None)
            elif event.kind == "rename":
                names.pop(event.name, None)
                names[event.new_name] = event.file
        return list(names.items())

    def _content(
        self, file: int, events: list[Event], keep_share: float, chance: random.Random
    ) -> bytes:
        content = bytearray(self.safe.get(file, b""))
        own = [e for e in events if e.file == file and e.kind in ("write", "truncate", "sync")]
        synced = max((i for i, e in enumerate(own) if e.kind == "sync"), default=-1)
        for index, event in enumerate(own):
            is_safe = index < synced
            if event.kind == "truncate":
                if is_safe or chance.random() < keep_share:
                    del content[event.offset :]
                    content.extend(bytes(event.offset - len(content)))
            elif event.kind == "write":
                for start, data in _sectors(event):
                    if is_safe or chance.random() < keep_share:
                        content.extend(bytes(max(0, start - len(content))))
                        content[start : start + len(data)] = data
        return bytes(content)


def _sectors(event: Event) -> list[tuple[int, bytes]]:
    pieces = []
    start = event.offset
    end = start + len(event.data)
    while start < end:
        stop = min(end, (start // _SECTOR + 1) * _SECTOR)
        pieces.append((start, event.data[start - event.offset : stop - event.offset]))
        start = stop
    return pieces


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, filename: Any, flags: list[int]) -> None:
        path = filename.filename() if isinstance(filename, apsw.URIFilename) else filename
        self._disk = disk
        self._number = disk.opened(os.path.basename(path)) if path else -1
        # SQLite syncs the folder with the first sync of a log file that it made.
        self._is_folder_sync_due = bool(flags[0] & _NEW_LOG_FLAGS)
        super().__init__("unix", filename, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        super().xWrite(data, offset)
        if self._number >= 0:
            self._disk.events.append(Event("write", self._number, "", offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.events.append(Event("truncate", self._number, "", newsize))

    def xSync(self, flags: int) -> None:
        # Not passed on: the real disk is not what this is about.
        self._disk.events.append(Event("sync", self._number))
        if self._is_folder_sync_due:
            self._is_folder_sync_due = False
            self._disk.events.append(Event("folder_sync"))


class _Vfs(apsw.VFS):
    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        super().__init__(name, "unix")

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._disk.deleted(os.path.basename(filename))
        if syncdir:
            self._disk.events.append(Event("folder_sync"))


class RecordedOs:
    """Stands in for the module ``os`` where the engine makes its data file."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def replace(self, source: str, target: str) -> None:
        """As ``os.replace``."""
        os.replace(source, target)
        self._disk.renamed(os.path.basename(source), os.path.basename(target))

    def unlink(self, path: str) -> None:
        """As ``os.unlink``."""
        os.unlink(path)
        self._disk.deleted(os.path.basename(path))

    def fsync(self, descriptor: int) -> None:
        """Of the folder: the engine syncs nothing else by itself."""
        self._disk.events.append(Event("folder_sync"))


class _Rows:
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows


class _Connection:
    """What the journal uses of ``sqlite3.Connection``, on a recorded disk."""

    def __init__(self, path: str, vfs: str) -> None:
        self._connection = apsw.Connection(path, vfs=vfs)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> _Rows:
        try:
            return _Rows(list(self._connection.execute(sql, tuple(parameters))))
        except apsw.Error as error:
            translated = sqlite3.OperationalError(str(error))
            translated.sqlite_errorcode = getattr(error, "extendedresult", 0)
            raise translated from error

    executescript = execute

    def close(self) -> None:
        self._connection.close()


class Recorder:
    """``connect`` for the journal; everything it opens is recorded on `disk`."""

    def __init__(self, disk: Disk, override: dict[str, str] | None = None) -> None:
        self._name = f"recorder-{id(self):x}"
        self._vfs = _Vfs(self._name, disk)
        self._override = override or {}

    def __call__(self, path: str, **options: Any) -> Any:
        connection = _Connection(path, self._name)
        if self._override:
            return _Overridden(connection, self._override)
        return connection

    def close(self) -> None:
        """Forget the VFS."""
        self._vfs.unregister()


class _Overridden:
    """Puts other statements in the place of some: for proving that a loss would be seen."""

    def __init__(self, connection: _Connection, statements: dict[str, str]) -> None:
        self._connection = connection
        self._statements = statements

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> _Rows:
        return self._connection.execute(self._statements.get(sql, sql), parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
