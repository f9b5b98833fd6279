"""Random scripts through plain ADK and through AdkAgentRunner."""

from __future__ import annotations

import pytest

from dex_agents._effects import ToolEffect
from support.adk_oracle import compare
from support.random_scripts import build, random_script


@pytest.mark.parametrize("seed", range(40))
async def test_random_scripts(seed: int) -> None:
    script, messages = random_script(seed)
    await compare(build, script, messages, default_tool_effect=ToolEffect.READ)
