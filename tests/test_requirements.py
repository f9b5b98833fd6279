"""docs/requirements.md names real tests; that they ran is checked when the whole suite ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.inner_pytest import run_pytest
from support.requirements import (
    REPOSITORY,
    REQUIREMENTS_FILE,
    ROW_IDS,
    RequirementRow,
    faults,
    read_rows,
    rows_without_a_passed_test,
)


def test_every_row_is_there_and_names_tests_that_exist() -> None:
    assert faults(read_rows(REQUIREMENTS_FILE), REPOSITORY) == []


def test_a_row_with_a_missing_file_test_or_state_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_real.py").write_text("class TestIt:\n    def test_yes(self): ...\n")
    rows = [
        RequirementRow("R001", "", "done", ("test_real.py::TestIt::test_yes",)),
        RequirementRow("R002", "", "done", ("test_real.py::TestIt::test_no",)),
        RequirementRow("R003", "", "part", ("test_gone.py::test_yes",)),
        RequirementRow("R004", "", "done", ()),
        RequirementRow("R005", "", "perhaps", ()),
        RequirementRow("R006", "", "done", ("test_real.py::TestIt",)),
        RequirementRow("R007", "", "done", ("test_real.py::test_yes",)),
    ]
    found = [fault for fault in faults(rows, tmp_path) if "ids" not in fault]
    assert found == [
        "R002: no test TestIt::test_no in test_real.py",
        "R003: no file test_gone.py",
        "R004 is done without a test",
        "R005 has the unknown state 'perhaps'",
        "R006: no test TestIt in test_real.py",
        "R007: no test test_yes in test_real.py",
    ]


def test_missing_and_repeated_ids_are_found(tmp_path: Path) -> None:
    rows = [RequirementRow(row_id, "", "open", ()) for row_id in ROW_IDS]
    assert faults(rows, tmp_path) == []
    (fault,) = faults([*rows[:4], rows[0], *rows[5:]], tmp_path)
    assert fault.endswith("missing ['R005'], twice ['R001']")


@pytest.mark.parametrize(
    "line",
    [
        "| R001 | text | open |",
        "| R01 | text | open | |",
        "| R001 | text | done | tests/test_a.py::test_b |",
    ],
)
def test_a_malformed_row_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.md"
    path.write_text(f"# Rows\n\n{line}\n")
    with pytest.raises(ValueError, match=r"rows\.md:3"):
        read_rows(path)


def test_a_named_test_that_did_not_pass_is_found() -> None:
    rows = [RequirementRow("R001", "", "done", ("a.py::test_ran", "a.py::test_skipped"))]
    assert rows_without_a_passed_test(rows, {"a.py::test_ran"}) == [("R001", "a.py::test_skipped")]


@pytest.fixture
def small_suite(tmp_path: Path) -> Path:
    """A project whose table names a passed test, skipped ones and a long one."""
    names = ("test_ran", "test_skipped", "test_half_skipped", "test_long")
    (tmp_path / "rows.md").write_text(
        "".join(
            f"| R{number:03} | text | done | `tests/test_it.py::{name}` |\n"
            for number, name in enumerate(names, 1)
        )
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests\naddopts = -m 'not long'\nmarkers = long\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from support.requirements import ProofOfRequirements\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(ProofOfRequirements(Path('rows.md')))\n"
    )
    (tmp_path / "tests" / "test_it.py").write_text(
        "import pytest\n"
        "def test_ran(): ...\n"
        "def test_skipped(): pytest.skip()\n"
        "@pytest.mark.parametrize('skip', [False, True])\n"
        "def test_half_skipped(skip):\n"
        "    if skip: pytest.skip()\n"
        "@pytest.mark.long\n"
        "def test_long(): ...\n"
    )
    return tmp_path


def test_a_run_of_the_whole_suite_fails_without_its_proofs(small_suite: Path) -> None:
    done = run_pytest(small_suite)
    assert done.returncode == 1, done.stdout
    report = done.stdout.partition("requirements whose test did not pass")[2]
    assert [line for line in report.splitlines() if line.startswith("R")] == [
        "R002 names tests/test_it.py::test_skipped, which was skipped",
        "R003 names tests/test_it.py::test_half_skipped, which was skipped",
        "R004 names tests/test_it.py::test_long, which did not run",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("tests/test_it.py",),
        ("-k", "ran"),
        ("-m", "long"),
        ("--deselect", "a.py::test_x"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_run_of_a_part_needs_no_proofs(small_suite: Path, arguments: tuple[str, ...]) -> None:
    done = run_pytest(small_suite, *arguments)
    assert done.returncode == 0, done.stdout
    assert "requirements whose" not in done.stdout


def test_a_run_with_all_proofs_passes(small_suite: Path) -> None:
    rows = (small_suite / "rows.md").read_text().splitlines(keepends=True)
    (small_suite / "rows.md").write_text(rows[0])
    assert run_pytest(small_suite).returncode == 0
