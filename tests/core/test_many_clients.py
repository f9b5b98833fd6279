"""Many clients at once, at random: whatever meets what, nothing acknowledged is lost and nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from core.conftest import TURN_S, Stage, Stages
from core.open_flow import OpenFlow, stored
from core.scripted_runner import ONE_CALL, ScriptedRunner, _message, _result
from dex_agents import (
    AgentSessionOptions,
    AgentSnapshot,
    AgentTurnError,
    DeferredToolExecution,
    InterruptError,
    InterruptKind,
    InterruptRequest,
    InvalidInputError,
    PendingInterrupt,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    SessionUnavailableError,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
    TurnCompleted,
    TurnOpenError,
)

_MAY_HAPPEN = (InterruptError, InvalidInputError, SessionUnavailableError, TurnOpenError)
_T = TypeVar("_T")


class RandomRunner(ScriptedRunner):
    """Answers and fails at random, each attempt of a Step in the same way."""

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        dice = random.Random(f"{request.session_id}/{request.step_execution_id}")
        await asyncio.sleep(dice.random() * 0.02)
        if dice.random() < 0.05 and request.attempt == 1:
            raise RuntimeError("it passes")
        if dice.random() < 0.03:
            raise AgentTurnError("it does not pass")
        items = [*(request.run_state or [request.user_message]), *map(_result, request.records)]
        took = bool(request.steering) and dice.random() < 0.8
        items += request.steering if took else []
        if sum("calls" in item for item in items) == 3 or dice.random() < 0.4:
            items.append({"role": "assistant", "text": "done"})
            return TurnCompleted(
                [_message(item) for item in items], "done", ONE_CALL, took_steering=took
            )
        calls = [_call(dice, number) for number in range(dice.randint(1, 4))]
        items.append({"role": "assistant", "text": "", "calls": [c.call_id for c in calls]})
        return ToolCallsRequested(calls, items, {"shared": 1}, ONE_CALL, took_steering=took)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        if call.tool_name == "asking" and not call.answer:
            return ToolExecutionResult(interrupt=InterruptRequest(InterruptKind.APPROVAL))
        self.executions.append(call)
        dice = random.Random(f"{call.session_id}/{call.step_execution_id}")
        await asyncio.sleep(dice.random() * 0.03)
        if dice.random() < 0.1:
            raise ToolExecutionError("no")
        return ToolExecutionResult("ok")


def _call(dice: random.Random, number: int) -> RequestedToolCall:
    kind = dice.choice(["read", "write", "write", "approved", "question", "asking", "ordered"])
    is_read = kind in ("read", "question")
    return RequestedToolCall(
        call_id=f"c{number}",
        tool_name=kind,
        arguments={"n": number},
        effect=ToolEffect.READ if is_read else ToolEffect.NON_IDEMPOTENT_WRITE,
        requires_approval=kind == "approved" or (kind == "ordered" and dice.random() < 0.3),
        is_ordered_write=kind == "ordered",
        interrupt=InterruptRequest(InterruptKind.INPUT) if kind == "question" else None,
    )


class Crowd:
    """Clients that send, steer, answer, cancel and rewind until they are told to stop."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.sessions = stage.sessions
        self.seed = seed
        self.accepted = ["m0"]
        self.is_over = False

    async def play(self, play_s: float, *more: Callable[[random.Random], Awaitable[None]]) -> None:
        """Let them act for so many seconds, and ``more`` beside them."""
        acts = (self._send, self._answer, self._answer, self._cancel, *more)
        async with asyncio.TaskGroup() as group:
            for number, act in enumerate(acts):
                group.create_task(
                    self._again_and_again(act, random.Random(f"{self.seed} {number}"))
                )
            await asyncio.sleep(play_s)
            self.is_over = True

    async def _again_and_again(
        self, act: Callable[[random.Random], Awaitable[None]], dice: random.Random
    ) -> None:
        while not self.is_over:
            await asyncio.sleep(dice.random() * 0.15)
            # Another one was faster, too many wait, or the engine is away.
            with contextlib.suppress(*_MAY_HAPPEN):
                await act(dice)

    async def _send(self, dice: random.Random) -> None:
        text = f"m{len(self.accepted)}"
        how = dice.choice([self.sessions.send_user_message, self.sessions.steer_user_message])
        for _ in range(dice.randint(1, 2)):  # the second one repeats it
            await _until_heard(lambda: how("s", text, message_id=text))
        self.accepted.append(text)

    async def _answer(self, dice: random.Random) -> None:
        for pending in (await self.sessions.get_agent_snapshot("s")).pending_interrupts:
            if dice.random() < 0.6:
                await self._give(pending, approved=dice.random() < 0.7)

    async def _give(self, pending: PendingInterrupt, *, approved: bool) -> None:
        if pending.kind == "approval":
            await self.sessions.resolve_interrupt("s", pending.interrupt_id, approved=approved)
        else:
            await self.sessions.answer_question("s", pending.interrupt_id, "this")

    async def _cancel(self, dice: random.Random) -> None:
        await asyncio.sleep(dice.random() * 0.3)
        if dice.random() < 0.7:
            await self.sessions.cancel_turn("s")
            return
        done = (await self.sessions.get_agent_snapshot("s")).turns_done
        if done > 3:
            await self.sessions.rewind("s", f"t{done - dice.randint(0, 1)}")

    async def settle(self) -> AgentSnapshot:
        """Answer what is asked until the session is idle."""
        async with asyncio.timeout(TURN_S):
            while True:
                snapshot = await _until_heard(lambda: self.sessions.get_agent_snapshot("s"))
                if snapshot.status == "idle":
                    return snapshot
                for pending in snapshot.pending_interrupts:
                    with contextlib.suppress(InterruptError):  # the answer before had counted
                        await _until_heard(partial(self._give, pending, approved=True))
                await asyncio.sleep(0.02)

    async def user_texts(self) -> Counter[str]:
        """How often each message of the user stands in the history, removed turns included."""
        found: Counter[str] = Counter()
        before: int | None = None
        while True:
            page = await self.sessions.list_messages(
                "s", before_turn=before, turns=100, include_removed=True
            )
            found.update(message.text for message in page.messages if message.role == "user")
            before = page.next_before_turn
            if before is None:
                return found


async def _until_heard(call: Callable[[], Awaitable[_T]]) -> _T:
    """The answer of a call that may be repeated, across restarts of the engine."""
    while True:
        try:
            return await call()
        except SessionUnavailableError:
            await asyncio.sleep(0.1)


async def check(stages: Stages, seed: int, play_s: float, *, kills: bool) -> None:
    async def kill(dice: random.Random) -> None:
        await asyncio.sleep(0.5 + dice.random())
        await stages.engine.kill()
        await stages.engine.restart()

    options = AgentSessionOptions(max_parallel_calls=2, max_queued_messages=1_000)
    async with stages.play(
        [], options=options, flow_class=OpenFlow, runner_class=RandomRunner
    ) as stage:
        crowd = Crowd(stage, seed)
        await stage.sessions.start_session("s", "m0")
        await crowd.play(play_s, *([kill] if kills else []))
        await crowd.settle()
        texts = await crowd.user_texts()
        assert [text for text in crowd.accepted if texts[text] != 1] == []
        runs = Counter(call.idempotency_key for call in stage.runner.executions)
        writes = [c for c in stage.runner.executions if c.effect is not ToolEffect.READ]
        assert [c.idempotency_key for c in writes if runs[c.idempotency_key] > 1] == []
        # Only what ends with the next turn is left of the ones that have ended.
        assert set(await stored(stage)) <= {"interrupts", "finished_calls", "answers"}


async def test_nothing_is_lost_and_nothing_runs_twice(stages: Stages) -> None:
    await check(stages, 1, 3.0, kills=False)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_nothing_is_lost_and_nothing_runs_twice_while_the_engine_is_killed(
    stages: Stages, seed: int
) -> None:
    await check(stages, seed, 10.0, kills=True)
