"""Writes that keep the model's order, and what attempts of a call leave each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from core.conftest import TURN_S, Stages
from core.scripted_runner import ONE_CALL
from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentSessionFlow,
    AgentSessionOptions,
    DeferredToolExecution,
    MessageRole,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    ToolCallRecord,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
    ToolOutcomeUnknownError,
    TurnCompleted,
)
from dex_agents.testing import private_engine, read_step_history, step_shape
from support.serving import serve

WRITE, READ = ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.READ
Run = Callable[[DeferredToolExecution], Awaitable[Any]]


def write(name: str, **fields: Any) -> RequestedToolCall:
    settings: dict[str, Any] = {"effect": WRITE, "requires_approval": False}
    return RequestedToolCall(name, name, {}, is_ordered_write=True, **settings | fields)


class CallsRunner:
    """Requests the given calls, then answers with their records."""

    def __init__(self, calls: Sequence[RequestedToolCall], run: Run) -> None:
        self.calls, self.run = calls, run
        self.records: Sequence[ToolCallRecord] = ()
        self.running: list[str] = []
        self.overlaps = 0
        self.log: list[str] = []

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        if request.run_state is None:
            return ToolCallsRequested(self.calls, {"called": True}, None, ONE_CALL)
        self.records = request.records
        return TurnCompleted([self.build_user_message("x")], "done", ONE_CALL)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        self.overlaps += bool(self.running)
        self.running.append(call.tool_name)
        self.log.append(call.tool_name)
        try:
            return ToolExecutionResult(await self.run(call))
        finally:
            self.running.remove(call.tool_name)

    def build_user_message(self, text: str) -> AgentMessage:
        return AgentMessage(MessageRole.USER, {"text": text}, text)

    def shown(self) -> list[tuple[str, str, bool]]:
        return [(r.tool_name, str(r.status), r.skipped) for r in self.records]


@dataclass
class Play:
    """A served runner, and what it did."""

    runner: CallsRunner
    sessions: AgentSessionClient
    stages: Stages

    async def finish(self, session_id: str, decide: Callable[[str], bool] = lambda _: True) -> None:
        """Answer what is asked until the turn is over."""
        while True:
            snapshot = await self.sessions.wait_until_settled(
                session_id, turns_done=1, timeout_s=TURN_S
            )
            if not snapshot.pending_interrupts:
                break
            for pending in snapshot.pending_interrupts:
                await self.sessions.resolve_interrupt(
                    session_id, pending.interrupt_id, approved=decide(pending.tool_name)
                )

    async def shape(self, session_id: str) -> list[str]:
        return step_shape(await read_step_history(self.stages.engine.address, session_id))


async def slow(call: DeferredToolExecution) -> Any:
    await asyncio.sleep(0.05)
    return call.tool_name


async def play(
    stages: Stages,
    calls: Sequence[RequestedToolCall],
    run: Run = slow,
    decide: Callable[[str], bool] = lambda _: True,
    **options: Any,
) -> CallsRunner:
    runner = CallsRunner(calls, run)
    flow = AgentSessionFlow(
        runner, flow_type=f"Calls{id(runner)}", options=AgentSessionOptions(**options)
    )
    async with serve(stages.engine.address, flow, stages.folder) as sessions:
        await sessions.start_session(f"s{id(runner)}", "go")
        await Play(runner, sessions, stages).finish(f"s{id(runner)}", decide)
    return runner


@pytest.mark.parametrize("width", [1, 16])
async def test_writes_run_one_at_a_time_in_the_models_order(stages: Stages, width: int) -> None:
    calls = [
        write("a", requires_approval=True),
        write("b"),
        write("c", effect=ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
        write("d"),
    ]
    runner = await play(stages, calls, max_parallel_calls=width)
    assert (runner.log, runner.overlaps) == (["a", "b", "c", "d"], 0)
    assert runner.shown() == [(n, "succeeded", False) for n in "abcd"]


async def test_reads_do_not_wait_for_writes(stages: Stages) -> None:
    read_began = asyncio.Event()

    async def run(call: DeferredToolExecution) -> Any:
        if call.tool_name == "look":
            read_began.set()
        else:
            await asyncio.wait_for(read_began.wait(), TURN_S)
        return None

    look = RequestedToolCall("look", "look", {}, READ, False)
    runner = await play(stages, [write("a"), write("b"), look], run)
    assert runner.shown() == [(n, "succeeded", False) for n in ("a", "b", "look")]


async def _failed(call: DeferredToolExecution) -> Any:
    raise ToolExecutionError("no money")


async def _crashed(call: DeferredToolExecution) -> Any:
    raise ConnectionError("gone")


async def _unknown(call: DeferredToolExecution) -> Any:
    raise ToolOutcomeUnknownError("it started task 7")


@pytest.mark.parametrize(
    ("first", "approved", "status"),
    [
        (_failed, True, "failed"),
        (_crashed, True, "outcome_unknown"),
        (_unknown, True, "outcome_unknown"),
        (slow, False, "rejected"),
    ],
)
async def test_after_a_write_that_did_not_succeed_the_rest_is_skipped(
    stages: Stages, first: Run, approved: bool, status: str
) -> None:
    async def run(call: DeferredToolExecution) -> Any:
        return await (first if call.tool_name == "b" else slow)(call)

    asked: list[str] = []

    def decide(name: str) -> bool:
        asked.append(name)
        return approved

    calls = [
        write("a"),
        write("b", requires_approval=True),
        write("c", requires_approval=True),
        write("d"),
        RequestedToolCall("look", "look", {}, READ, False),
    ]
    runner = await play(stages, calls, run, decide)
    assert runner.shown() == [
        ("a", "succeeded", False),
        ("b", status, False),
        ("c", "failed", True),
        ("d", "failed", True),
        ("look", "succeeded", False),
    ]
    # Nobody is asked for a write that will not run.
    assert asked == ["b"]
    assert sorted(runner.log) == sorted(["a", "look", *(["b"] if approved else [])])
    skipped = runner.records[2]
    assert skipped.not_run
    assert skipped.error == (
        "The tool did not run: an earlier write of the same response did not succeed, so this one "
        "was skipped"
    )


async def test_an_unknown_outcome_of_a_read_is_a_failure_and_final(stages: Stages) -> None:
    look = RequestedToolCall("look", "look", {}, READ, False)
    runner = await play(stages, [look], _unknown)
    assert runner.shown() == [("look", "failed", False)]
    assert (runner.log, runner.records[0].error) == (["look"], "it started task 7")


@pytest.mark.long
async def test_a_call_has_its_own_attempts_and_time_limit(stages: Stages) -> None:
    async def run(call: DeferredToolExecution) -> Any:
        if call.tool_name == "slow":
            await asyncio.sleep(3_600)
        raise ConnectionError("again")

    calls = [
        RequestedToolCall("five", "five", {}, READ, False, maximum_attempts=5),
        RequestedToolCall("one", "one", {}, READ, False, maximum_attempts=1),
        RequestedToolCall("slow", "slow", {}, READ, False, timeout_s=1, maximum_attempts=2),
    ]
    calls = [
        RequestedToolCall(
            c.call_id,
            c.tool_name,
            {},
            READ,
            False,
            timeout_s=c.timeout_s,
            maximum_attempts=c.maximum_attempts,
            retry_interval_s=1,
            maximum_retry_interval_s=1,
        )
        for c in calls
    ]
    runner = await play(stages, calls, run)
    assert [runner.log.count(name) for name in ("five", "one", "slow")] == [5, 1, 2]
    assert {str(record.status) for record in runner.records} == {"failed"}


async def test_a_write_that_never_repeats_cannot_ask_for_attempts(stages: Stages) -> None:
    runner = CallsRunner([write("a", maximum_attempts=2)], slow)
    flow = AgentSessionFlow(runner, flow_type="TwoAttempts")
    async with serve(stages.engine.address, flow, stages.folder) as sessions:
        await sessions.start_session("two", "go")
        snapshot = await sessions.wait_for_turn("two", 1, timeout_s=TURN_S)
    assert snapshot.last_turn is not None
    assert "effect non_idempotent_write never runs twice" in snapshot.last_turn.error
    assert runner.log == []


async def test_a_checkpoint_reaches_the_next_attempt(stages: Stages) -> None:
    seen: list[Any] = []

    async def run(call: DeferredToolExecution) -> Any:
        assert call.checkpoint is not None
        seen.append(call.checkpoint.last)
        if call.attempt == 3:
            return "done"
        if call.attempt == 1:
            await call.checkpoint.keep({"sent": 1})
            with pytest.raises(ValueError, match="larger than 8192"):
                await call.checkpoint.keep([str(n) * 9 for n in range(9_000)])
            # Longer than a heartbeat, which must carry it on.
            await asyncio.sleep(1)
        raise ConnectionError("again")

    look = RequestedToolCall("look", "look", {}, READ, False)
    runner = await play(stages, [look], run, heartbeat_timeout=timedelta(seconds=1))
    assert runner.shown() == [("look", "succeeded", False)]
    assert seen == [None, {"sent": 1}, {"sent": 1}]


async def test_a_cancelled_turn_knows_which_writes_never_began(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def run(call: DeferredToolExecution) -> Any:
        began.set()
        await asyncio.sleep(3_600)

    runner = CallsRunner([write("a"), write("b"), write("c", requires_approval=True)], run)
    flow = AgentSessionFlow(runner, flow_type="Cancelled")
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "go")
        await asyncio.wait_for(began.wait(), TURN_S)
        await sessions.cancel_turn("s")
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        page = await sessions.list_messages("s")
    note = page.messages[-1].text
    assert "- a (a): outcome_unknown" in note
    assert "- b (b): failed: The tool did not run" in note
    assert "- c (c): failed: The tool did not run" in note
