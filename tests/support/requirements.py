"""Reads tables of requirements, rules and promises; checks that the tests they name exist and passed."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
REQUIREMENTS_FILE = REPOSITORY / "docs" / "requirements.md"
PROTOCOL_FILE = REPOSITORY / "docs" / "design" / "dex-lite-protocol.md"
DURABILITY_FILE = REPOSITORY / "docs" / "guide" / "dex-lite-durability.md"
ROW_IDS = tuple(f"R{number:03}" for number in range(1, 307))
STATES = ("done", "part", "open")
_ROW_ID = re.compile(r"R\d{3}|P\d+(\.\d+)*")


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
        if not re.match(r"\s*\|\s*[RP]\d", line):
            continue
        cells = [
            cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")
        ]
        if len(cells) != 4 or not _ROW_ID.fullmatch(cells[0]):
            raise ValueError(f"{path.name}:{number} is not | id | requirement | state | tests |")
        names = re.findall(r"`([^`]+)`", cells[3])
        if ", ".join(f"`{name}`" for name in names) != cells[3]:
            raise ValueError(f"{path.name}:{number}: tests are `path::name`, separated by commas")
        rows.append(RequirementRow(cells[0], cells[1], cells[2], tuple(names)))
    return rows


def read_promises(path: Path) -> list[RequirementRow]:
    """Rows of the table ``| Promise | Test |`` of a guide; the promise is their id."""
    lines = path.read_text().splitlines()
    start = lines.index("| Promise | Test |")
    rows = []
    for line in lines[start + 2 : lines.index("", start)]:
        promise, tests = (cell.strip() for cell in line.strip("|").rsplit("|", 1))
        rows.append(
            RequirementRow(promise, promise, "done", tuple(re.findall(r"`([^`]+)`", tests)))
        )
    return rows


def other_rows() -> list[RequirementRow]:
    """Rows beside those of the requirements whose tests have to pass, too."""
    return [*read_rows(PROTOCOL_FILE), *read_promises(DURABILITY_FILE)]


def faults(
    rows: Sequence[RequirementRow], root: Path, expected: Sequence[str] = ROW_IDS
) -> list[str]:
    """What is wrong with the table itself: ids, states, tests that do not exist."""
    found = []
    ids = [row.row_id for row in rows]
    if ids != [*expected]:
        missing = sorted(set(expected) - set(ids))
        twice = sorted({row_id for row_id in ids if ids.count(row_id) > 1})
        found.append(
            f"the ids are not {expected[0]} to {expected[-1]} in order; "
            f"missing {missing}, twice {twice}"
        )
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
    body: Sequence[ast.stmt] = _parsed(path.read_text()).body
    for part in classes:
        inner = [node for node in body if isinstance(node, ast.ClassDef) and node.name == part]
        body = inner[0].body if inner else []
    if function.startswith("test") and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        for node in body
    ):
        return ""
    return f"no test {name} in {path_text}"


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def rows_without_a_passed_test(
    rows: Sequence[RequirementRow], passed: Collection[str]
) -> list[tuple[str, str]]:
    """Pairs of row id and named test for each test that is not among the passed ones."""
    return [(row.row_id, test) for row in rows for test in row.tests if test not in passed]


@dataclass
class Outcomes:
    """Names of tests by how they ended. Tests with parameters are known by one name."""

    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def missing_proofs(self, rows: Sequence[RequirementRow]) -> list[str]:
        """A line for each named test without a passed case or with a skipped one."""
        return [
            f"{row_id} names {test}, which {'was skipped' if test in self.skipped else 'did not run'}"
            for row_id, test in rows_without_a_passed_test(rows, self.passed - self.skipped)
        ]


class ProofOfRequirements:
    """Pytest plugin: a run of the whole suite fails unless every named test passed."""

    def __init__(
        self,
        requirements_file: Path,
        others: Callable[[], Sequence[RequirementRow]] = tuple,
    ) -> None:
        self._file = requirements_file
        self._others = others
        self._outcomes = Outcomes()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember how each test ended."""
        name = report.nodeid.split("[")[0]
        if report.skipped:
            self._outcomes.skipped.add(name)
        elif report.when == "call" and report.passed:
            self._outcomes.passed.add(name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn an otherwise good run into a failed one if a proof is missing."""
        if exitstatus != pytest.ExitCode.OK or not _ran_the_whole_suite(session.config):
            return
        missing = self._outcomes.missing_proofs([*read_rows(self._file), *self._others()])
        if not missing:
            return
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.write_sep("=", "requirements whose test did not pass", red=True)
        for line in missing:
            reporter.write_line(line)


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
