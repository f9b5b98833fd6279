"""What the log of a Worker has of a turn that fails: a line an attempt, and one at the end."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.runners import InMemoryRunner

from dex_agents import AgentSessionFlow, AgentSessionOptions, ToolEffect, ToolPolicy
from dex_agents.testing import private_engine
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import ScriptedLlm, World, call, text
from support.serving import serve

TURN_S = 60.0
OPTIONS = AgentSessionOptions(model_attempts=3, model_retry_interval=timedelta(seconds=1))


def down(**fields: Any) -> LlmAgent:
    """An agent whose model fails each time."""
    world = World([RuntimeError("provider down") for _ in range(OPTIONS.model_attempts)])
    return LlmAgent(name="root", model=ScriptedLlm(world=world), **fields)


def broken(**_: Any) -> None:
    raise ValueError("a bug")


async def failed_turn(agent: LlmAgent, folder: Path) -> None:
    flow = AgentSessionFlow(AdkAgentRunner(agent), flow_type="F", options=OPTIONS)
    async with (
        private_engine(folder / "engine.db") as engine,
        serve(engine.address, flow, folder) as sessions,
    ):
        await sessions.start_session("s", "hello")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.error


def lines_of(reason: str) -> list[str]:
    attempts = [
        f"attempt {n} of 3 of a model call of turn t1 of session s failed: {reason}"
        for n in (1, 2, 3)
    ]
    return [*attempts, f"turn t1 of session s failed: {reason}"]


async def test_a_model_that_is_down_is_a_line_an_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await failed_turn(down(), tmp_path)
    assert caplog.text.splitlines() == [
        f"{record.levelname:8} {record.name}:{record.filename}:{record.lineno} {line}"
        for record, line in zip(
            caplog.records, lines_of("RuntimeError: provider down"), strict=True
        )
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def test_each_attempt_has_its_trace_at_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dex_agents")
    await failed_turn(down(), tmp_path)
    traced = [record.getMessage() for record in caplog.records if record.exc_info]
    assert traced == lines_of("RuntimeError: provider down")[:-1]


async def test_a_bug_in_a_callback_leaves_one_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await failed_turn(down(before_model_callback=broken), tmp_path)
    (traced,) = [record for record in caplog.records if record.exc_info]
    assert caplog.text.count("raise ValueError") == 1
    ours = [record.getMessage() for record in caplog.records if record.name == "dex_agents"]
    assert ours == lines_of("ValueError: a bug")
    assert [record for record in caplog.records if record.name != "dex_agents"] == [traced]


async def test_a_tool_with_a_bug_is_a_line_an_attempt_and_one_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World([call("broken"), text("done")])
    agent = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[broken])
    flow = AgentSessionFlow(
        AdkAgentRunner(agent, tool_policies={"broken": ToolPolicy(ToolEffect.READ)}),
        flow_type="F",
        options=AgentSessionOptions(tool_retry_interval=timedelta(seconds=1)),
    )
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "hello")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "done"
    assert [record.getMessage() for record in caplog.records] == [
        f"attempt {n} of 3 of tool broken of turn t1 of session s failed: ValueError: a bug"
        for n in (1, 2, 3)
    ]
    assert caplog.text.count("raise ValueError") == 1


async def test_plain_adk_logs_both_of_its_traces(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="provider down"):
        await InMemoryRunner(agent=down()).run_debug("go", quiet=True)
    assert len([record for record in caplog.records if record.exc_info]) == 2
