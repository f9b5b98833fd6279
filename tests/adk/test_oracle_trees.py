"""Agent trees and Workflows by hand, against plain ADK."""

from __future__ import annotations

from collections import Counter

import pytest

from support.dynamic_cases import DYNAMIC
from support.graph_cases import GRAPHS
from support.tree_cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SIDE_BY_SIDE = {
    "parallel root",
    "parallel root of five",
    "transfer to parallel agents",
    "two tasks",
}


@pytest.mark.parametrize("name", [*CASES, *GRAPHS, *DYNAMIC])
async def test_tree_equals_plain_adk(name: str) -> None:
    case = (CASES | GRAPHS | DYNAMIC)[name]
    driver = await case.compare()
    # Each execution had a Step of its own; nothing else had one, as control tools and sub-agents.
    steps = Counter(item.tool_name for item in driver.requested)
    assert steps == Counter(tool for tool, _ in driver.world.executed)
    # Only branches side by side may ask their models in one RunModel.
    if not case.any_order and name not in SIDE_BY_SIDE:
        assert max(outcome.usage.model_calls for outcome in driver.outcomes) == 1
