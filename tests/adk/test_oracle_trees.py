"""Agent trees and Workflows by hand, against plain ADK."""

from __future__ import annotations

import pytest

from support.tree_cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("name", CASES)
async def test_tree_equals_plain_adk(name: str) -> None:
    await CASES[name].compare()
