"""Random queries on random runs: SQL finds what a plain reading of the query finds, page by page."""

from __future__ import annotations

import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb

from dex_lite import _schema
from dex_lite._journal_sql import BatchWriter
from dex_lite._machine.model import RUNNING
from dex_lite._records import PutIndexed, PutRun, RunRow, Write
from dex_lite._search._page import position_of, read_page, token
from dex_lite._search._query import parse
from dex_lite._search._sql import compile_query
from dex_lite._search._terms import INT, KEYWORD, KEYWORD_ARRAY, TEXT, terms, words

TYPES = {"city": KEYWORD, "amount": INT, "tags": KEYWORD_ARRAY, "notes": TEXT}
CITIES = ("Basel", "Bern", "Chur", "Zug")
WORDS = ("red", "green", "blue")
Fields = Mapping[str, object]


def _runs(pick: random.Random, count: int) -> Iterator[tuple[RunRow, Fields]]:
    for number in range(count):
        status = pick.choice((RUNNING, 2, 3))
        start = pick.randrange(50) * 1_000
        name = f"{number:05}"
        row = RunRow(
            f"r{name}", f"f{name}", pick.choice("AB"), status, 1, "q", f"r{name}", start, None
        )
        every: dict[str, object] = {
            "city": pick.choice(CITIES),
            "amount": pick.randrange(-5, 5),
            "tags": pick.sample(WORDS, pick.randrange(3)),
            "notes": " ".join(pick.sample(WORDS, pick.randrange(1, 3))),
        }
        kept = {key: value for key, value in every.items() if pick.random() < 0.7}
        yield row, {"FlowId": row.flow_id, "FlowType": row.flow_type, **kept}


def _value(value: object) -> pb.Value:
    if isinstance(value, int):
        return pb.Value(int_value=value)
    if isinstance(value, list):
        data = str(value).replace("'", '"').encode()
        return pb.Value(obj_value=pb.EncodedObject(encoding="json", payload=data))
    return pb.Value(string_value=str(value))


def _file(runs: Sequence[tuple[RunRow, Fields]]) -> sqlite3.Connection:
    connection = _schema.empty()
    connection.isolation_level = None
    writer = BatchWriter(connection)
    writes: list[Write] = []
    for row, fields in runs:
        writes.append(PutRun(row))
        for name in fields.keys() & TYPES.keys():
            value = _value(fields[name])
            found = terms(TYPES[name], value)
            assert found is not None
            writes.append(PutIndexed(row.run_id, name, name, value.SerializeToString(), found))
    writer.commit(writes)
    return connection


Test = Callable[[Fields], bool]


def _condition(pick: random.Random, depth: int) -> tuple[str, Test]:
    if depth and pick.random() < 0.6:
        left, right = _condition(pick, depth - 1), _condition(pick, depth - 1)
        joint = pick.choice(("AND", "OR", "NOT"))
        if joint == "NOT":
            return f"NOT ({left[0]})", lambda run: not left[1](run)
        both = joint == "AND"
        return (
            f"({left[0]} {joint} {right[0]})",
            lambda run: (
                (left[1](run) and right[1](run)) if both else (left[1](run) or right[1](run))
            ),
        )
    return _comparison(pick)


def _comparison(pick: random.Random) -> tuple[str, Test]:
    name = pick.choice(("city", "amount", "tags", "notes", "FlowType"))
    if name == "notes":
        wanted = " ".join(pick.sample(WORDS, pick.randrange(1, 3)))
        return _with(name, f"= '{wanted}'", lambda v: set(words(wanted)) <= set(words(str(v))))
    if name == "tags":
        tag = pick.choice(WORDS)
        if pick.random() < 0.5:
            return _with(name, f"!= '{tag}'", lambda v: isinstance(v, list) and tag not in v)
        return _with(name, f"= '{tag}'", lambda v: isinstance(v, list) and tag in v)
    if pick.random() < 0.15:
        return f"{name} IS NULL", lambda run: name not in run
    low, high = sorted(pick.sample(range(-5, 5), 2))
    if name == "amount":
        return pick.choice(
            (
                _with(name, f"< {high}", lambda v: _number(v) < high),
                _with(name, f"!= {low}", lambda v: v != low),
                _with(name, f"BETWEEN {low} AND {high}", lambda v: low <= _number(v) <= high),
                _with(name, f"NOT IN ({low}, {high})", lambda v: v not in (low, high)),
            )
        )
    choices = CITIES if name == "city" else ("A", "B", "C")
    one, other = pick.sample(choices, 2)
    return pick.choice(
        (
            _with(name, f"= '{one}'", lambda v: v == one),
            _with(name, f">= '{one}'", lambda v: str(v) >= one),
            _with(name, f"IN ('{one}', '{other}')", lambda v: v in (one, other)),
            _with(name, f"NOT STARTS_WITH '{one[0]}'", lambda v: not str(v).startswith(one[0])),
        )
    )


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _with(name: str, rest: str, test: Callable[[object], bool]) -> tuple[str, Test]:
    return f"{name} {rest}", lambda run: name in run and test(run[name])


def _search(connection: sqlite3.Connection, query: str, size: int) -> list[str]:
    compiled = compile_query(parse(query), TYPES, dict)
    found, given = [], ""
    while True:
        after = position_of(query, given, len(compiled.sort))
        page, has_more = read_page(connection, compiled, after, size, 1 << 22)
        found += [row.row.flow_id for row in page]
        if not has_more:
            return found
        given = token(query, page[-1].position)


@pytest.mark.parametrize("seed", range(4))
def test_random_queries(seed: int) -> None:
    pick = random.Random(seed)
    runs = list(_runs(pick, 60))
    with closing(_file(runs)) as connection:
        for _ in range(100):
            text, test = _condition(pick, 3)
            wanted = [row for row, fields in reversed(runs) if test(fields)]
            name = pick.choice(("", "city", "amount", "FlowType"))
            is_descending = pick.random() < 0.5
            if name:
                _sort(
                    wanted, {row.flow_id: fields.get(name) for row, fields in runs}, is_descending
                )
            else:
                wanted.sort(key=lambda row: row.start_ms, reverse=True)
            order = f" ORDER BY {name} {'DESC' if is_descending else ''}" if name else ""
            found = _search(connection, text + order, pick.choice((1, 7, 100)))
            assert (text + order, found) == (text + order, [row.flow_id for row in wanted])


def _sort(rows: list[RunRow], values: Mapping[str, Any], is_descending: bool) -> None:
    """Newest rows are first among equals, and those without a value come last."""
    without = [row for row in rows if values[row.flow_id] is None]
    rows[:] = [row for row in rows if values[row.flow_id] is not None]
    # A reversed sort of Python keeps the order among equals, too.
    rows.sort(key=lambda row: values[row.flow_id], reverse=is_descending)
    rows += without


@pytest.mark.long
def test_ten_thousand_runs_are_searched_fast() -> None:
    pick = random.Random(0)
    with closing(_file(list(_runs(pick, 10_000)))) as connection:
        for query in (
            "",
            "FlowId = 'f00077'",
            "city = 'Bern' AND amount > 2",
            "NOT (city = 'Bern' OR tags = 'red') AND notes = 'blue'",
            "ExecutionStatus = 'Running' ORDER BY amount DESC, city",
        ):
            compiled = compile_query(parse(query), TYPES, dict)
            times = []
            for _ in range(9):
                began = time.perf_counter()
                read_page(connection, compiled, None, 100, 1 << 22)
                times.append((time.perf_counter() - began) * 1_000)
            print(f"{query!r}: {statistics.median(times):.1f} ms")
            assert statistics.median(times) < 200
