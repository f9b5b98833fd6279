"""Verification of runs: their rows, the numbers of their facts, and the state that these give."""

from __future__ import annotations

import sqlite3
from typing import Any, Protocol

import msgspec
from dex.dexpb import dex_pb2 as pb

from dex_lite._check_indexes import IndexRows
from dex_lite._check_secrets import SecretRows
from dex_lite._journal_sql import NUMBER_BITS, NUMBER_MASK, all_rows
from dex_lite._machine.facts import AnyFact, RunStarted, decode_fact, decode_state
from dex_lite._machine.fold import fold
from dex_lite._machine.invariants import Link, chain_faults, faults, link_of
from dex_lite._machine.ledger import Ledger
from dex_lite._machine.model import RUNNING, Parent, RunState
from dex_lite._records import RunRow
from dex_lite._wire.history import HistoryReader

_STATUSES = frozenset(pb.FlowStatus.values()) - {0}


class Result(Protocol):
    """Where a check counts and reports."""

    count: int

    def fault(self, text: str) -> None:
        """Something is wrong."""


def check_runs(connection: sqlite3.Connection, result: Result) -> None:
    """Every row is possible by itself."""
    for _, row in all_rows(connection):
        result.count += 1
        named = _named(row)
        if not row.flow_id or not row.flow_type or not row.run_id:
            result.fault(f"{named} has no Flow id, Flow type or run id")
        if row.status not in _STATUSES:
            result.fault(f"{named} has status {row.status!r}")
        if (row.close_ms is None) != (row.status == RUNNING):
            result.fault(f"{named} has status {row.status!r} and close time {row.close_ms!r}")
        if not isinstance(row.run_attempt, int) or row.run_attempt < 1:
            result.fault(f"{named} has attempt {row.run_attempt!r}")


def check_flow_ids(connection: sqlite3.Connection, result: Result) -> None:
    """Runs of one Flow id fit together: only the newest may be open, and the first exists."""
    # Through the index of Flow ids and past it: both have to give the same.
    indexed = "SELECT id, flow_id FROM runs INDEXED BY runs_of_flow ORDER BY flow_id, id"
    newest = {flow_id: key for key, flow_id in connection.execute(indexed)}
    runs: dict[str, str] = {}
    latest: dict[str, int] = {}
    for key, row in all_rows(connection):
        runs[row.run_id] = row.flow_id
        latest[row.flow_id] = key
    result.count = len(latest)
    if newest != latest:
        result.fault("the index of Flow ids does not name the same runs as their table")
    for key, row in all_rows(connection):
        if row.close_ms is None and latest[row.flow_id] != key:
            result.fault(f"{_named(row)} is open, and there is a newer run")
        first = runs.get(row.first_run_id)
        # The first of a chain of retries may be gone: its retention ends before that of the others.
        if first != row.flow_id and (first is not None or row.run_attempt == 1):
            result.fault(f"{_named(row)} names a first run that this Flow id does not have")


def check_facts(connection: sqlite3.Connection, result: Result) -> None:
    """Facts are numbered without gaps, decode, and give the state that rows and snapshots say."""
    rows = dict(all_rows(connection))
    keys = {key for (key,) in connection.execute("SELECT run FROM snapshots")}
    for key in sorted(keys - rows.keys()):
        result.fault(f"a snapshot belongs to run number {key}, which does not exist")
    # Also what lies outside of all runs: one pass over the table in order of its ids.
    folding: _Folding | None = None
    family = _Family({row.run_id for row in rows.values()})
    indexes, secrets = IndexRows(connection), SecretRows(connection)
    for fault in secrets.orphans(set(rows)):
        result.fault(fault)
    seen: set[int] = set()
    for number, payload in connection.execute("SELECT id, payload FROM facts ORDER BY id"):
        result.count += 1
        key = number >> NUMBER_BITS
        if folding is None or folding.key != key:
            if folding is not None:
                folding.finish(family)
            seen.add(key)
            folding = _Folding(connection, result, key, rows.get(key), indexes, secrets)
        folding.add(number & NUMBER_MASK, payload)
    if folding is not None:
        folding.finish(family)
    family.report(result)
    for key in sorted(rows.keys() - seen):
        result.fault(f"{_named(rows[key])} has no facts")


class _Family:
    """What runs have to know of each other."""

    def __init__(self, run_ids: set[str]) -> None:
        self.run_ids = run_ids
        self._waits: list[tuple[str, str, Parent]] = []  # run, Flow id of the SubFlow, place
        self._parents: set[tuple[str, Parent]] = set()  # that open SubFlows will tell of their end
        self._links: dict[str, Link] = {}

    def add(self, named: str, state: RunState) -> None:
        """A run without faults of its own."""
        self._links[state.run_id] = link_of(state)
        if not state.is_open:
            return
        self._parents |= {(state.flow_id, parent) for parent in state.parents}
        for step in state.steps.values():
            if step.phase != "waiting" or step.condition is None:
                continue
            for index, (sub_flow, end) in enumerate(
                zip(step.condition.sub_flows, step.sub_flow_ends, strict=True)
            ):
                if end is None:
                    place = Parent(state.run_id, step.execution_id, index)
                    self._waits.append((named, sub_flow.flow_id, place))

    def report(self, result: Result) -> None:
        """Every wait for a SubFlow has an open one that will end it, and runs follow each other."""
        for named, flow_id, place in self._waits:
            if (flow_id, place) not in self._parents:
                result.fault(f"{named} waits for SubFlow {flow_id!r}, which does not know of it")
        for before in self._links.values():
            after = self._links.get(before.next_run_id)
            if after is not None:
                for fault in chain_faults(before, after):
                    result.fault(f"run {before.run_id} of Flow {before.flow_id!r}: {fault}")


class _Folding:
    """The facts of one run, one after the other. It reports the first fault only: the rest of a
    run follows from it.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        result: Result,
        key: int,
        row: RunRow | None,
        indexes: IndexRows,
        secrets: SecretRows,
    ) -> None:
        self.key = key
        self._indexes = indexes
        self._secrets = secrets
        self._row = row
        self._result = result
        self._state: RunState | None = None
        self._reader = HistoryReader()
        self._ledger = Ledger()
        self._next = 1
        self._is_faulty = False
        if row is None:
            self._fault(f"facts belong to run number {key}, which does not exist")
        self._snapshot: tuple[int, Any] | None = connection.execute(
            "SELECT number, payload FROM snapshots WHERE run = ?", (key,)
        ).fetchone()

    def add(self, number: int, payload: Any) -> None:
        """The next fact of the run."""
        if self._is_faulty:
            return
        if number != self._next:
            self._fault(f"{self._run()} has fact {number} where fact {self._next} should be")
            return
        self._next += 1
        try:
            fact = decode_fact(payload)
        except (msgspec.MsgspecError, TypeError) as error:
            self._fault(f"fact {number} of {self._run()} cannot be decoded: {error}")
            return
        if (number == 1) != isinstance(fact, RunStarted):
            self._fault(f"fact {number} of {self._run()} is a {type(fact).__name__}")
            return
        self._fold(number, fact)
        if self._snapshot is not None and self._snapshot[0] == number and not self._is_faulty:
            self._compare_snapshot(self._snapshot[1])
            self._snapshot = None

    def finish(self, family: _Family) -> None:
        """There are no more facts."""
        if self._is_faulty or self._state is None or self._row is None:
            return
        if self._snapshot is not None:
            self._fault(
                f"the snapshot of {self._run()} is of fact {self._snapshot[0]}, the last fact is "
                f"{self._next - 1}"
            )
            return
        row, state = self._row, self._state
        for name, in_row, in_facts in (
            ("Flow id", row.flow_id, state.flow_id),
            ("run id", row.run_id, state.run_id),
            ("Flow type", row.flow_type, state.flow_type),
            ("status", row.status, state.status),
            ("request id", row.request_id, state.request_id),
            ("attempt", row.run_attempt, state.run_attempt),
            ("first run", row.first_run_id, state.first_run_id or state.run_id),
            ("start time", row.start_ms, state.start_ms),
            ("close time", row.close_ms or 0, state.close_ms),
        ):
            if in_row != in_facts:
                self._fault(f"{self._run()} has {name} {in_row!r}, but its facts say {in_facts!r}")
                return
        if state.next_run_id and state.next_run_id not in family.run_ids:
            self._fault(f"{self._run()} is followed by run {state.next_run_id}, which is missing")
            return
        for fault in (
            # Nobody knows which locks RPCs held when the file was written.
            *faults(state, rpc_locks=None),
            *self._ledger.imbalance(state),
            *self._secrets.faults(self.key, state),
            *self._indexes.faults(self.key, state),
        ):
            self._fault(f"{self._run()}: {fault}")
            return
        family.add(self._run(), state)

    def _fold(self, number: int, fact: AnyFact) -> None:
        try:
            for fault in self._ledger.follow(self._state, fact):
                self._fault(f"fact {number} of {self._run()}: {fault}")
                return
            self._state = fold(self._state, fact)
            # The history, too: it decodes the values that folding only moves.
            for _ in self._reader.read([(number, fact)]):
                pass
        except Exception as error:
            # Whatever a fact that does not fit makes the fold do.
            self._fault(
                f"fact {number} of {self._run()} does not fit what was before it: {error!r}"
            )

    def _compare_snapshot(self, payload: Any) -> None:
        try:
            kept = decode_state(payload)
        except (msgspec.MsgspecError, TypeError) as error:
            self._fault(f"the snapshot of {self._run()} cannot be decoded: {error}")
            return
        if kept != self._state:
            self._fault(f"the snapshot of {self._run()} is not the state that its facts give")

    def _run(self) -> str:
        return f"run number {self.key}" if self._row is None else _named(self._row)

    def _fault(self, text: str) -> None:
        self._is_faulty = True
        self._result.fault(text)


def _named(row: RunRow) -> str:
    return f"run {row.run_id} of Flow {row.flow_id!r}"
