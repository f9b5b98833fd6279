"""Every test that a page of the documentation names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.requirements import REPOSITORY, why_no_test

NAME = re.compile(r"`(tests/[\w/]+\.py::[\w:]+)`")
PAGES = sorted(
    path for path in (REPOSITORY / "docs").rglob("*.md") if NAME.search(path.read_text())
)


def test_some_pages_name_tests() -> None:
    assert {"requirements.md", "reported-cases.md"} <= {path.name for path in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_named_in_a_page_exist(page: Path) -> None:
    names = sorted(set(NAME.findall(page.read_text())))
    faults = [why for name in names if (why := why_no_test(name, REPOSITORY))]
    assert faults == []
