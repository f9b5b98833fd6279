"""docs/requirements.md names real tests; that they ran is checked when the whole suite ends."""

from __future__ import annotations

from pathlib import Path

from support.requirements import (
    REPOSITORY,
    REQUIREMENTS_FILE,
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
    ]
    found = [fault for fault in faults(rows, tmp_path) if "ids" not in fault]
    assert found == [
        "R002: no test TestIt::test_no in test_real.py",
        "R003: no file test_gone.py",
        "R004 is done without a test",
        "R005 has the unknown state 'perhaps'",
    ]


def test_a_named_test_that_did_not_pass_is_found() -> None:
    rows = [RequirementRow("R001", "", "done", ("a.py::test_ran", "a.py::test_skipped"))]
    assert rows_without_a_passed_test(rows, {"a.py::test_ran"}) == [
        ("R001", "a.py::test_skipped")
    ]
