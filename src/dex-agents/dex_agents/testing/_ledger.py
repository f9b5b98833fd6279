"""What really ran, written outside the process with a sync, so that it survives any kill."""

from __future__ import annotations

import json
import os
from typing import Any

from dex_agents._arguments import path_of


class Ledger:
    """An append-only file of JSON lines, for any number of processes.

    Args:
        path: The file; the first entry makes it.

    Raises:
        TypeError, ValueError: The path is none.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_of("path", path)

    def record(self, name: str, **fields: Any) -> None:
        """Append one entry; it is on disk when this returns.

        Args:
            name: What was done.
            fields: Any JSON values.

        Raises:
            TypeError: A field is no JSON value.
            OSError: The file cannot be written.
        """
        line = json.dumps({"name": name, **fields}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entries(self) -> list[dict[str, Any]]:
        """All entries, oldest first."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def count(self, name: str, **fields: Any) -> int:
        """How many entries have this name and these fields."""
        return sum(
            entry["name"] == name and all(entry.get(k) == v for k, v in fields.items())
            for entry in self.entries()
        )
