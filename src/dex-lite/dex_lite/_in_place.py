"""Whether the data file, its log and its lock file are still the files that were opened.

SQLite goes on writing into files that were removed or replaced, such as by a backup that is restored
while the engine runs. What is acknowledged then has no name any more, and ends with the process.
Whoever finds no lock file makes a new one, and would serve the file beside the engine that has the old one.
"""

from __future__ import annotations

import os

from dex_lite._errors import DataFileLinkedError, DataFileReplacedError
from dex_lite._lockfile import LOCK_SUFFIX


class FilesInPlace:
    """Remembers which files they are.

    Args:
        path: The data file, open; a file that is not there is not looked at.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        names = (path, path + "-wal", path + LOCK_SUFFIX)
        self._files = {name: file for name in names if (file := _identity(name)) is not None}

    def check(self) -> None:
        """Look again; cheap enough for each commit.

        Raises:
            DataFileReplacedError: One is another one, or none.
        """
        for name, file in self._files.items():
            if _identity(name) != file:
                raise DataFileReplacedError(self._path, name)


def check_only_name(path: str) -> None:
    """Refuse a file that has other names: under each it would have a lock and a log of its own.

    Raises:
        DataFileLinkedError: It has.
    """
    links = os.stat(path).st_nlink
    if links > 1:
        raise DataFileLinkedError(path, links)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
