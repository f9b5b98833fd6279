"""Verification of Attribute indexes: they hold what the facts say, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from dex_lite import _schema
from dex_lite._journal_sql import index_types
from dex_lite._machine.model import RunState
from dex_lite._search._terms import Term, all_indexed

_Rows = dict[str, tuple[str, bytes, frozenset[Term]]]  # index, value and terms by Attribute


class IndexRows:
    """The index rows of a file, to compare with states."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._has_any = _schema.has_indexes(connection)
        self._types: Mapping[str, int] = index_types(connection) if self._has_any else {}
        self._is_filled = self._has_any and _schema.are_indexes_filled(connection)

    def faults(self, key: int, state: RunState) -> Iterator[str]:
        """What is wrong with the rows of one run, given the state that its facts make."""
        if not self._has_any:
            return
        wanted: _Rows = {
            attribute: (found.name, found.value, frozenset(found.terms))
            for attribute, found in all_indexed(state, self._types)
        }
        rows = self._rows(key)
        for attribute in sorted(wanted.keys() | rows.keys()):
            if attribute not in wanted:
                yield f"Attribute {attribute!r} is in an index, and should not be"
            elif attribute not in rows:
                # A new index is being filled with what was there before it.
                if self._is_filled or state.is_open:
                    yield f"Attribute {attribute!r} is missing in index {wanted[attribute][0]!r}"
            elif rows[attribute] != wanted[attribute]:
                yield (
                    f"index {rows[attribute][0]!r} does not hold what Attribute {attribute!r} is"
                )

    def _rows(self, key: int) -> _Rows:
        terms: dict[str, set[tuple[str, Term]]] = {}
        # By the other index of this table than searches use: both have to give the same.
        for attribute, name, term in self._connection.execute(
            "SELECT attribute, name, term FROM index_terms INDEXED BY terms_of_run WHERE run = ?",
            (key,),
        ):
            terms.setdefault(attribute, set()).add((name, term))
        rows: _Rows = {}
        for attribute, name, value in self._connection.execute(
            "SELECT attribute, name, value FROM indexed_attributes WHERE run = ?", (key,)
        ):
            found = terms.pop(attribute, set())
            same = frozenset(term for of, term in found if of == name)
            rows[attribute] = (name if len(same) == len(found) else "", value, same)
        for attribute in terms:
            rows[attribute] = ("", b"", frozenset())
        return rows


def orphans(connection: sqlite3.Connection) -> Iterator[str]:
    """Rows of runs that do not exist."""
    if not _schema.has_indexes(connection):
        return
    for table in ("indexed_attributes", "index_terms"):
        for (key,) in connection.execute(
            f"SELECT DISTINCT run FROM {table} WHERE run NOT IN (SELECT id FROM runs)"
        ):
            yield f"{table} has rows of run number {key}, which does not exist"
