"""Reads the table of docs/requirements.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
REQUIREMENTS_FILE = REPOSITORY / "docs" / "requirements.md"
STATES = ("done", "part", "open")


@dataclass(frozen=True)
class RequirementRow:
    """One requirement, its state and the tests that prove it (``path::test_name``)."""

    row_id: str
    text: str
    state: str
    tests: tuple[str, ...]


def read_rows(path: Path) -> list[RequirementRow]:
    """All rows of the table, in order."""
    rows = []
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"R\d{3}", cells[0]):
            tests = tuple(re.findall(r"`([^`]+)`", cells[3]))
            rows.append(RequirementRow(cells[0], cells[1], cells[2], tests))
    return rows


def faults(rows: Sequence[RequirementRow], root: Path) -> list[str]:
    """What is wrong with the table itself: ids, states, tests that do not exist."""
    found = []
    expected = [f"R{number:03}" for number in range(1, 307)]
    if [row.row_id for row in rows] != expected:
        missing = sorted(set(expected) - {row.row_id for row in rows})
        found.append(f"the ids are not R001 to R306 in order; missing: {missing}")
    for row in rows:
        if row.state not in STATES:
            found.append(f"{row.row_id} has the unknown state {row.state!r}")
        if row.state == "done" and not row.tests:
            found.append(f"{row.row_id} is done without a test")
        found += [f"{row.row_id}: {fault}" for test in row.tests if (fault := _fault(test, root))]
    return found


def _fault(test: str, root: Path) -> str:
    path_text, _, name = test.partition("::")
    path = root / path_text
    if not path.is_file():
        return f"no file {path_text}"
    wanted = name.split("::")
    body: Sequence[ast.stmt] = ast.parse(path.read_text()).body
    for part in wanted:
        match = next(
            (
                node
                for node in body
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == part
            ),
            None,
        )
        if match is None:
            return f"no test {name} in {path_text}"
        body = match.body
    return ""


def rows_without_a_passed_test(
    rows: Sequence[RequirementRow], passed: Collection[str]
) -> list[tuple[str, str]]:
    """Pairs of row id and named test for each test that is not among the passed ones."""
    return [(row.row_id, test) for row in rows for test in row.tests if test not in passed]
