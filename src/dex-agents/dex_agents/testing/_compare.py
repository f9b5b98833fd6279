"""Compares a run that met a kill with one that did not."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dex_agents._contract import Json
from dex_agents._errors import OUTCOME_UNKNOWN_TOOL_RESULT
from dex_agents.testing._script import PlayedSession

Verdict = Literal["same", "unknown outcome", "not reached", "DIFFERENT"]

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST_ATTEMPTS = 3
_MOST_CHARACTERS = 160
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Run:
    """What one run did, without ids, times and its own session id.

    Attributes:
        executions: Ledger entries as JSON, with how often they came.
        requests: What the model was asked, as JSON, with how often.
        history: Stored items as JSON, in order.
        errors: Why each turn failed, empty for those that did not.
        unknown: How many stored items say that the outcome of a call is unknown.
    """

    executions: Counter[str]
    requests: Counter[str]
    history: Sequence[str]
    errors: Sequence[str]
    unknown: int


@dataclass(frozen=True)
class CrashRow:
    """What a kill at one place did.

    Attributes:
        place: The failpoint and how manieth time it was passed, such as ``tool.after_call#2``.
        verdict: ``"same"``: the user and the world see no difference. ``"unknown outcome"``: a call
            that must not run twice was met, and its record says so. ``"not reached"``: this run did
            not get to the place. ``"DIFFERENT"``: see ``differences``.
        repeated: How often what may be repeated was.
    """

    place: str
    verdict: Verdict
    repeated: int = 0
    differences: Sequence[str] = ()


class CrashReport:
    """What :func:`explore_crashes` found; ``str`` of it is a table.

    Attributes:
        rows: One for each place, in the order in which the undisturbed session passed them.
    """

    def __init__(self, rows: Sequence[CrashRow]) -> None:
        self.rows = tuple(rows)

    @property
    def failures(self) -> list[CrashRow]:
        """Rows that say DIFFERENT."""
        return [row for row in self.rows if row.verdict == "DIFFERENT"]

    def check(self) -> None:
        """Fail a test if a kill changed what it must not change.

        Raises:
            AssertionError: It did; the text is the table.
        """
        if self.failures:
            raise AssertionError(f"{len(self.failures)} kills changed the session\n{self}")

    def __str__(self) -> str:
        width = max([len("place"), *(len(row.place) for row in self.rows)])
        lines = [f"{'place':<{width}}  {'verdict':<15}  repeated"]
        for row in self.rows:
            lines.append(f"{row.place:<{width}}  {row.verdict:<15}  {row.repeated:>8}")
            lines += [f"{'':<{width}}    {difference}" for difference in row.differences]
        return "\n".join(lines)


def read_run(
    session_id: str,
    played: PlayedSession,
    entries: Sequence[dict[str, Any]],
    *,
    asked: str,
    ignore: Collection[str],
) -> Run:
    """A run from what it left."""
    executions: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for entry in entries:
        kept = {key: value for key, value in entry.items() if key not in ignore}
        counter = requests if entry["name"] == asked else executions
        counter[_neutral(kept, session_id)] += 1
    history = [
        _neutral([str(message.role), message.text, message.framework_item], session_id)
        for message in played.messages
    ]
    unknown = sum(
        OUTCOME_UNKNOWN_TOOL_RESULT in json.dumps(message.framework_item)
        for message in played.messages
    )
    return Run(executions, requests, history, played.errors, unknown)


def recorded_names(run: Run) -> set[str]:
    """Names of the entries that tools have written."""
    return {json.loads(entry)["name"] for entry in run.executions}


def compare_runs(
    place: str, run: Run | None, reference: Run, repeatable: Collection[str]
) -> CrashRow:
    """Judge a run; ``None`` is one that never got to its place."""
    if run is None:
        return CrashRow(place, "not reached")
    repeated = sum((run.executions - reference.executions).values()) + sum(
        (run.requests - reference.requests).values()
    )
    found = [f"turn {n} failed: {error}" for n, error in enumerate(run.errors, 1) if error]
    found += _doubled(run, reference, repeatable)
    is_unknown = run.unknown > reference.unknown
    if not is_unknown:
        found += _changed(run, reference)
    if found:
        return CrashRow(place, "DIFFERENT", repeated, tuple(found[:_MOST_SHOWN]))
    return CrashRow(place, "unknown outcome" if is_unknown else "same", repeated)


def _doubled(run: Run, reference: Run, repeatable: Collection[str]) -> Iterator[str]:
    """Executions that a kill must not have added."""
    for entry, count in run.executions.items():
        expected = reference.executions[entry]
        most = expected * _MOST_ATTEMPTS if json.loads(entry)["name"] in repeatable else expected
        if count > most:
            yield f"ran {count} times, without a kill {expected}: {_short(entry)}"


def _changed(run: Run, reference: Run) -> Iterator[str]:
    """What is missing or other, in a run in which no record says that an outcome is unknown."""
    for entry, count in (reference.executions - run.executions).items():
        yield f"ran {count} times fewer: {_short(entry)}"
    for request in run.requests:
        if request not in reference.requests:
            yield f"the model was asked something else: {_short(request)}"
    for request, count in reference.requests.items():
        if not count <= run.requests[request] <= count + 1:
            yield f"asked {run.requests[request]} times, without a kill {count}: {_short(request)}"
    if len(run.history) != len(reference.history):
        yield f"{len(run.history)} messages in the history, without a kill {len(reference.history)}"
    for number, pair in enumerate(zip(run.history, reference.history, strict=False)):
        if pair[0] != pair[1]:
            yield f"message {number} is {_short(pair[0])}, without a kill {_short(pair[1])}"


def _neutral(value: Json, session_id: str) -> str:
    """JSON text without what is another one in every session: its id, made ids, times."""
    text = json.dumps(_without_times(value), sort_keys=True)
    return _UUID.sub("<id>", text.replace(session_id, "<session>"))


def _without_times(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key != "timestamp"}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
