"""A verified copy of a data file, also of one that an engine is writing to."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from dex_lite import _schema
from dex_lite._check import CheckResult, check
from dex_lite._errors import BackupError, DataFileMissingError


def backup(source: str, target: str, *, is_replacing: bool = False) -> list[CheckResult]:
    """Copy `source` to `target` as it is at one moment, and check the copy.

    For a process of its own: closing the file here would take the locks of an engine in the same
    process away. The copy has its name only once it is whole, checked and on disk. Raises BackupError, and the
    named errors of the data file.
    """
    if not os.path.isfile(source):
        raise DataFileMissingError(source)
    _schema.check_header(source)
    if os.path.exists(target):
        if os.path.samefile(source, target):
            raise BackupError(target, "it is the data file itself. Name another file")
        if not is_replacing:
            raise BackupError(target, "the file exists. Name another one, or add --force")
    unfinished = target + ".unfinished"
    try:
        _remove(unfinished)
        _copy(source, unfinished)
        results = check(unfinished)
        for result in results:
            if result.faults:
                raise BackupError(
                    target,
                    f"the copy failed the check of {result.name}: {result.faults[0]}. "
                    f"See what `dex-lite check {source}` says",
                )
        _sync(unfinished)
        # Logs of a file that is replaced would be taken for those of the new one.
        for ending in ("-wal", "-shm"):
            _remove(target + ending)
        os.replace(unfinished, target)
        _sync(os.path.dirname(os.path.abspath(target)))
    except sqlite3.Error as error:
        raise BackupError(
            target, f"{error}. See that the disk has room and the folder can be written to"
        ) from error
    except OSError as error:
        raise BackupError(
            target, f"{error.strerror}. Name a file in a folder that can be written to"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            for ending in ("", "-journal", "-wal", "-shm"):
                _remove(unfinished + ending)
    return results


def _copy(source: str, target: str) -> None:
    # As one step: a single moment of the file, and the engine's writer goes on meanwhile, because
    # readers of a write-ahead log do not hold it up. Not opened read-only: SQLite could then not
    # remove the files beside it that a reader needs.
    address = Path(source).absolute().as_uri() + "?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=10)) as original:
        original.execute("PRAGMA query_only = ON")
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            original.backup(copy, pages=-1)
            # One file, without a log beside it; the engine turns the log on again.
            copy.execute("PRAGMA journal_mode = DELETE").fetchone()


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
