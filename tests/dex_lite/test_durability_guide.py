"""Every promise of the durability guide names a test, and the test is there."""

from __future__ import annotations

import re

from support.requirements import REPOSITORY, why_no_test

GUIDE = REPOSITORY / "docs" / "guide" / "dex-lite-durability.md"


def test_every_promise_has_its_test() -> None:
    lines = GUIDE.read_text().splitlines()
    start = lines.index("| Promise | Test |")
    rows = [line for line in lines[start + 2 : lines.index("", start)] if line]
    assert len(rows) > 10
    named = {row: re.findall(r"`(tests/[^`]+::[^`]+)`", row) for row in rows}
    assert {row for row, tests in named.items() if not tests} == set()
    faults = [
        fault
        for tests in named.values()
        for test in tests
        if (fault := why_no_test(test, REPOSITORY))
    ]
    assert faults == []
