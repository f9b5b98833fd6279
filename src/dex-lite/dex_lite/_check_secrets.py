"""What ``dex-lite check`` looks at in the table of hard-delete Attributes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dex_lite import _schema
from dex_lite._machine.model import RunState


class SecretRows:
    """The Attributes in the table, without their values."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._rows: dict[int, set[str]] = {}
        newest = connection.execute("SELECT max(id) FROM runs GROUP BY flow_id")
        self._newest = {key for (key,) in newest}
        if _schema.has_secrets(connection):
            for key, attribute in connection.execute("SELECT run, attribute FROM secrets"):
                self._rows.setdefault(key, set()).add(attribute)

    def faults(self, key: int, state: RunState) -> Iterator[str]:
        """What is wrong with those of one run, whose facts give this state."""
        # The values go over to the next run of the Flow, which may delete them.
        wanted = state.secrets.keys() if key in self._newest else set()
        found = self._rows.get(key, set())
        for attribute in sorted(wanted - found):
            yield f"hard-delete Attribute {attribute!r} has no value"
        for attribute in sorted(found - wanted):
            yield f"hard-delete Attribute {attribute!r} has a value, and should not have one"

    def orphans(self, keys: set[int]) -> Iterator[str]:
        """Values of runs that do not exist."""
        for key in sorted(self._rows.keys() - keys):
            yield f"hard-delete Attributes belong to run number {key}, which does not exist"
