"""Reads the table of docs/requirements.md and checks that the tests it names exist and passed."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
REQUIREMENTS_FILE = REPOSITORY / "docs" / "requirements.md"
ROW_IDS = tuple(f"R{number:03}" for number in range(1, 307))
STATES = ("done", "part", "open")


@dataclass(frozen=True)
class RequirementRow:
    """One requirement, its state and the tests that prove it (``path::test_name``)."""

    row_id: str
    text: str
    state: str
    tests: tuple[str, ...]


def read_rows(path: Path) -> list[RequirementRow]:
    """All rows of the table, in order; a line that starts like a row but is none is refused."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not re.match(r"\s*\|\s*R\d", line):
            continue
        cells = [
            cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")
        ]
        if len(cells) != 4 or not re.fullmatch(r"R\d{3}", cells[0]):
            raise ValueError(f"{path.name}:{number} is not | id | requirement | state | tests |")
        names = re.findall(r"`([^`]+)`", cells[3])
        if ", ".join(f"`{name}`" for name in names) != cells[3]:
            raise ValueError(f"{path.name}:{number}: tests are `path::name`, separated by commas")
        rows.append(RequirementRow(cells[0], cells[1], cells[2], tuple(names)))
    return rows


def faults(rows: Sequence[RequirementRow], root: Path) -> list[str]:
    """What is wrong with the table itself: ids, states, tests that do not exist."""
    found = []
    ids = [row.row_id for row in rows]
    if tuple(ids) != ROW_IDS:
        missing = sorted(set(ROW_IDS) - set(ids))
        twice = sorted({row_id for row_id in ids if ids.count(row_id) > 1})
        found.append(f"the ids are not R001 to R306 in order; missing {missing}, twice {twice}")
    for row in rows:
        if row.state not in STATES:
            found.append(f"{row.row_id} has the unknown state {row.state!r}")
        if row.state == "done" and not row.tests:
            found.append(f"{row.row_id} is done without a test")
        found += [
            f"{row.row_id}: {fault}" for test in row.tests if (fault := why_no_test(test, root))
        ]
    return found


def why_no_test(test: str, root: Path) -> str:
    """Why ``path::name`` or ``path::Class::name`` is no test below ``root``; empty if it is one."""
    path_text, _, name = test.partition("::")
    path = root / path_text
    if not path.is_file():
        return f"no file {path_text}"
    *classes, function = name.split("::")
    body: Sequence[ast.stmt] = ast.parse(path.read_text()).body
    for part in classes:
        inner = [node for node in body if isinstance(node, ast.ClassDef) and node.name == part]
        body = inner[0].body if inner else []
    if function.startswith("test") and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        for node in body
    ):
        return ""
    return f"no test {name} in {path_text}"


def rows_without_a_passed_test(
    rows: Sequence[RequirementRow], passed: Collection[str]
) -> list[tuple[str, str]]:
    """Pairs of row id and named test for each test that is not among the passed ones."""
    return [(row.row_id, test) for row in rows for test in row.tests if test not in passed]


class ProofOfRequirements:
    """Pytest plugin: a run of the whole suite fails unless every named test passed.

    A test with parameters counts when some of its cases passed and none was skipped.
    """

    def __init__(self, requirements_file: Path) -> None:
        self._file = requirements_file
        self._passed: set[str] = set()
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember how each test ended."""
        name = report.nodeid.split("[")[0]
        if report.skipped:
            self._skipped.add(name)
        elif report.when == "call" and report.passed:
            self._passed.add(name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn an otherwise good run into a failed one if a proof is missing."""
        if exitstatus != pytest.ExitCode.OK or not _ran_the_whole_suite(session.config):
            return
        missing = rows_without_a_passed_test(read_rows(self._file), self._passed - self._skipped)
        if not missing:
            return
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.write_sep("=", "requirements whose test did not pass", red=True)
        for row_id, test in missing:
            how = "was skipped" if test in self._skipped else "did not run"
            reporter.write_line(f"{row_id} names {test}, which {how}")


def _ran_the_whole_suite(config: pytest.Config) -> bool:
    """No path was given and nothing was left out but the long tests."""
    narrowing = (
        "keyword", "collectonly", "deselect", "ignore", "ignore_glob", "lf", "maxfail", "stepwise",
    )  # fmt: skip
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and config.option.markexpr == "not long"
        and not any(getattr(config.option, name, None) for name in narrowing)
    )
