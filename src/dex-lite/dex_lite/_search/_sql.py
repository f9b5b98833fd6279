"""A query as parameterised SQL. No text of a query ever becomes text of a statement.

Every condition is true or false, never unknown: a comparison with a field that a run does not have is false, and so
is its negated form (``!=``, ``NOT IN`` ...); ``NOT (...)`` turns any of them round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dex_lite._search._fields import Field, check_operator, find, term
from dex_lite._search._query import Comparison, Condition, Not, Query, QueryError
from dex_lite._search._terms import TEXT, Term, words

_NULLABLE = ("close_ms",)
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


class Part(msgspec.Struct, frozen=True):
    """A piece of SQL and the values of its parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class SortKey(msgspec.Struct, frozen=True):
    """An expression to sort by, and to go on after."""

    part: Part
    is_descending: bool


class Compiled(msgspec.Struct, frozen=True):
    condition: Part
    sort: tuple[SortKey, ...]
    needs_indexes: bool


ActiveSteps = Callable[[], Mapping[str, frozenset[str]]]
"""Types of the active Steps of each open run, by run id."""


def compile_query(query: Query, types: Mapping[str, int], active_steps: ActiveSteps) -> Compiled:
    """The condition and the order of a query on the table ``runs AS r``.

    Raises:
        QueryError: It names a field that does not exist, or compares one with what it cannot be.
    """
    compiler = _Compiler(types, active_steps)
    condition = Part("1") if query.condition is None else compiler.condition(query.condition)
    sort = [key for order in query.order for key in compiler.sort_keys(order)]
    if not sort:
        sort.append(SortKey(Part("r.start_ms"), True))
    sort.append(SortKey(Part("r.id"), True))
    return Compiled(condition, tuple(sort), compiler.needs_indexes)


class _Compiler:
    def __init__(self, types: Mapping[str, int], active_steps: ActiveSteps) -> None:
        self._types = types
        self._active_steps = active_steps
        self.needs_indexes = False

    def condition(self, condition: Condition) -> Part:
        if isinstance(condition, Comparison):
            return self._comparison(condition)
        if isinstance(condition, Not):
            part = self.condition(condition.part)
            return Part(f"NOT ({part.sql})", part.parameters)
        return _joined([self.condition(part) for part in condition.parts], condition.joint)

    def sort_keys(self, order: Any) -> list[SortKey]:
        field = self._find(order.field)
        if not field.is_sortable:
            raise QueryError(
                f"{field.name} has no order; sort by a KEYWORD, a number or a time",
                order.field.position,
            )
        if field.source == "column":
            part = Part(f"r.{field.column}")
            if field.column not in _NULLABLE:
                return [SortKey(part, order.is_descending)]
        else:
            part = Part(
                "(SELECT min(term) FROM index_terms WHERE run = r.id AND name = ?)", (field.name,)
            )
        # Runs without a value come last, in either direction.
        absent = Part(f"{part.sql} IS NULL", part.parameters)
        return [SortKey(absent, False), SortKey(part, order.is_descending)]

    def _find(self, name: Any) -> Field:
        field = find(name, self._types)
        self.needs_indexes |= field.source == "index"
        return field

    def _comparison(self, comparison: Comparison) -> Part:
        field = self._find(comparison.field)
        check_operator(field, comparison.operator, comparison.field.position)
        if comparison.operator == "null":
            present = self._present(field)
            if comparison.is_negated:
                return present
            return Part(f"NOT {present.sql}", present.parameters)
        values = [term(field, written) for written in comparison.values]
        if field.type == TEXT:
            positive = self._words(field, str(values[0]), comparison.values[0].position)
        elif field.source == "active steps":
            positive = self._with_active(lambda step: _holds(step, comparison.operator, values))
        else:
            column = f"r.{field.column}" if field.source == "column" else "term"
            test = _test(column, comparison.operator, values)
            if field.source == "column":
                present = self._present(field)
                positive = _joined([present, test], "AND")
            else:
                positive = _in_index(field.name, test)
        if not comparison.is_negated:
            return positive
        negated = Part(f"NOT ({positive.sql})", positive.parameters)
        return _joined([self._present(field), negated], "AND")

    def _present(self, field: Field) -> Part:
        if field.source == "column":
            return Part(f"(r.{field.column} IS NOT NULL)")
        if field.source == "active steps":
            return self._with_active(lambda step: True)
        return Part("(r.id IN (SELECT run FROM indexed_attributes WHERE name = ?))", (field.name,))

    def _with_active(self, holds: Callable[[str], bool]) -> Part:
        runs = [run for run, steps in self._active_steps().items() if any(map(holds, steps))]
        return Part("(r.run_id IN (SELECT value FROM json_each(?)))", (json.dumps(runs),))

    def _words(self, field: Field, text: str, position: int) -> Part:
        found = words(text)
        if not found:
            raise QueryError(f"{field.name} is searched by words, and this has none", position)
        tests = [_in_index(field.name, Part("term = ?", (word,))) for word in found]
        return _joined(tests, "AND")


def _in_index(name: str, test: Part) -> Part:
    return Part(
        f"(r.id IN (SELECT run FROM index_terms WHERE name = ? AND {test.sql}))",
        (name, *test.parameters),
    )


def _test(column: str, operator: str, values: Sequence[Term]) -> Part:
    if operator == "in":
        return Part(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))
    if operator == "between":
        return Part(f"{column} BETWEEN ? AND ?", tuple(values))
    if operator == "starts":
        start = str(values[0])
        end = _after_all_with(start)
        if end is None:
            return Part(f"{column} >= ?", (start,))
        return Part(f"({column} >= ? AND {column} < ?)", (start, end))
    return Part(f"{column} {operator} ?", tuple(values))


def _after_all_with(start: str) -> str | None:
    """The first text, in the order of code points, after all that start so."""
    while start:
        code = ord(start[-1]) + 1
        if _SURROGATES[0] <= code <= _SURROGATES[1]:
            code = _SURROGATES[1] + 1
        if code <= _LAST_CODE_POINT:
            return start[:-1] + chr(code)
        start = start[:-1]
    return None


def _holds(step_type: str, operator: str, values: Sequence[Term]) -> bool:
    if operator == "starts":
        return step_type.startswith(str(values[0]))
    return step_type in values


def _joined(parts: Sequence[Part], joint: str) -> Part:
    sql = f" {joint} ".join(part.sql for part in parts)
    parameters = tuple(value for part in parts for value in part.parameters)
    return Part(f"({sql})", parameters)
