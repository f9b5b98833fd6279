"""Every promise of the durability guide names a test, and the test is there."""

from __future__ import annotations

from support.requirements import DURABILITY_FILE, REPOSITORY, faults, read_promises


def test_every_promise_has_its_test() -> None:
    rows = read_promises(DURABILITY_FILE)
    assert len(rows) > 10
    assert faults(rows, REPOSITORY, [row.row_id for row in rows]) == []
