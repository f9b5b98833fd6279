"""Random schedules over Flows that start each other: no wait for a SubFlow is left without somebody who ends it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

import pytest

from dex_lite._machine import decide
from dex_lite._machine.commands import ExecuteResult, SubFlowStart, WaitForResult
from dex_lite._machine.facts import (
    ParentAttached,
    RunClosed,
    RunStarted,
    SubFlowEnded,
    decode_fact,
    decode_state,
    encode_fact,
    encode_state,
)
from dex_lite._machine.family import spread
from dex_lite._machine.fold import fold
from dex_lite._machine.model import (
    ChannelCondition,
    Condition,
    Failure,
    FlowStart,
    FlowTimeout,
    MethodOptions,
    Movement,
    Parent,
    RetryPolicy,
    RunState,
    StepExecution,
    StepOptions,
    SubFlowCondition,
    TimerCondition,
)
from dex_lite._machine.starts import run_started
from dex_lite._machine.turn import SetTimer, Turn, end_of

REUSES: tuple[Literal["attach", "restart_failed", "restart"], ...] = (
    "attach",
    "restart_failed",
    "restart",
)
DEEPEST = 3
COMMANDS = 150


class World:
    """All runs of a file (``family.Runs``), and copies that are folded from their stored facts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000
        self.runs: dict[str, RunState] = {}
        self.newest: dict[str, str] = {}  # by Flow ID
        self.copies: dict[str, RunState] = {}
        self.timers: set[tuple[int, str, str, int]] = set()
        self.tokens = 0
        self.seen: Counter[str] = Counter()

    def latest(self, flow_id: str) -> RunState | None:
        run_id = self.newest.get(flow_id)
        return None if run_id is None else self.runs[run_id]

    def turn(self, run_id: str) -> Turn | None:
        state = self.runs.get(run_id)
        return Turn(state, self.now) if state is not None and state.is_open else None

    # What happens

    def run(self) -> None:
        for _ in range(COMMANDS):
            self.step()

    def step(self) -> None:
        pick = self.random
        self.now += pick.choice((0, 1, 500, 3_000))
        command = pick.choice(
            [self.start, self.timer, self.stop, self.fail, self.restart]
            + [self.begin] * 6
            + [self.result] * 6
        )
        command()
        self.check()

    def start(self) -> None:
        flow_id = f"root-{self.random.randint(1, 2)}"
        before = self.latest(flow_id)
        if before is not None and before.is_open:
            if self.random.random() < 0.7:
                return
            self.stop_run(before)
        started = run_started(
            self.flow(),
            flow_id=flow_id,
            run_id=f"run-{len(self.runs)}",
            request_id="q",
            at=self.now,
        )
        self.apply(decide.start(started))

    def flow(self) -> FlowStart:
        pick = self.random
        options = StepOptions(
            wait_for=MethodOptions(retry=RetryPolicy(maximum_attempts=2)),
            execute=MethodOptions(retry=RetryPolicy(maximum_attempts=2)),
        )
        retry = RetryPolicy(maximum_attempts=2) if pick.random() < 0.4 else None
        timeout = (
            FlowTimeout(9_000, pick.choice(("fail", "cancel"))) if pick.random() < 0.2 else None
        )
        return FlowStart("F", Movement("S", b"", options), timeout=timeout, retry=retry)

    def steps(self) -> list[tuple[RunState, StepExecution]]:
        return [(s, step) for s in self.runs.values() if s.is_open for step in s.steps.values()]

    def begin(self) -> None:
        ready = [(state, step) for state, step in self.steps() if step.may_begin]
        if ready:
            state, step = self.random.choice(ready)
            self.tokens += 1
            turn = Turn(state, self.now)
            decide.begin(turn, step.execution_id, f"t{self.tokens}", "w")
            self.apply(turn)

    def live(self) -> tuple[RunState, StepExecution, str] | None:
        live = [(state, s, s.attempt.token) for state, s in self.steps() if s.attempt is not None]
        return self.random.choice(live) if live else None

    def result(self) -> None:
        found = self.live()
        if found is None:
            return
        state, step, token = found
        turn = Turn(state, self.now)
        if step.method == "wait_for":
            decide.complete_wait_for(turn, step.execution_id, token, self.wait(state, step))
        else:
            close = self.random.choice(("none", "none", "graceful", "force", "fail", "dead_end"))
            steps = (Movement("S", b""),) if close == "none" else ()
            result = ExecuteResult(close=close, close_value=b"out", next_steps=steps)  # type: ignore[arg-type]
            decide.complete_execute(turn, step.execution_id, token, result)
        self.apply(turn)

    def wait(self, state: RunState, step: StepExecution) -> WaitForResult:
        pick = self.random
        is_deep = state.flow_id.count("SubFlow:") >= DEEPEST
        count = 0 if is_deep else pick.choice((0, 1, 1, 2))
        conditions = tuple(
            SubFlowCondition(f"s{i}", f"SubFlow:{state.flow_id}-{step.execution_id}-{i}")
            for i in range(count)
        )
        if not conditions:
            return WaitForResult(condition=None)
        return WaitForResult(
            condition=Condition(
                pick.choice(("all", "any")),
                (TimerCondition("t", 5_000),) if pick.random() < 0.3 else (),
                (ChannelCondition("c", "never"),) if pick.random() < 0.1 else (),
                sub_flows=conditions,
            ),
            sub_flows=tuple(SubFlowStart(self.flow(), pick.choice(REUSES)) for _ in conditions),
        )

    def fail(self) -> None:
        found = self.live()
        if found is not None:
            state, step, token = found
            turn = Turn(state, self.now)
            decide.fail(turn, step.execution_id, token, Failure("detail", "Type"))
            self.apply(turn)

    def stop(self) -> None:
        is_open = [state for state in self.runs.values() if state.is_open]
        if is_open and self.random.random() < 0.5:
            self.stop_run(self.random.choice(is_open))

    def stop_run(self, state: RunState) -> None:
        turn = Turn(state, self.now)
        decide.stop(turn, self.random.choice(("cancel", "terminate", "fail")), "reason")
        self.apply(turn)

    def timer(self) -> None:
        if not self.timers:
            return
        timer = min(self.timers)
        self.timers.remove(timer)
        due_ms, run_id, execution_id, index = timer
        self.now = max(self.now, due_ms)
        turn = self.turn(run_id)
        if turn is not None:
            if index < 0:
                decide.retry_fell(turn, execution_id)
            else:
                decide.fire_timer(turn, execution_id, index)
            self.apply(turn)

    def restart(self) -> None:
        """The engine comes back with what is stored."""
        if self.random.random() < 0.7:
            return
        self.timers.clear()
        self.runs = {run_id: decode_state(encode_state(s)) for run_id, s in self.runs.items()}
        for state in list(self.runs.values()):
            if state.is_open:
                turn = Turn(state, self.now)
                decide.recover(turn)
                self.apply(turn)

    # What has to hold

    def apply(self, turn: Turn) -> None:
        """One commit."""
        for each in spread(turn, self):
            state = each.state
            for fact in each.facts:
                self.follow(state, decode_fact(encode_fact(fact)))
            assert encode_state(self.copies[state.run_id]) == encode_state(state)
            for effect in each.effects:
                if isinstance(effect, SetTimer):
                    self.timers.add(
                        (effect.due_ms, state.run_id, effect.execution_id, effect.index)
                    )

    def follow(self, state: RunState, fact: object) -> None:
        self.seen[type(fact).__name__] += 1
        before = self.copies.get(state.run_id)
        if isinstance(fact, RunStarted):
            assert state.run_id not in self.runs, "a run id is used twice"
            last = self.latest(state.flow_id)
            assert last is None or not last.is_open, "two runs of one Flow ID are open"
            self.runs[state.run_id] = state
            self.newest[state.flow_id] = state.run_id
            self.seen["as retry"] += fact.run_attempt > 1
        elif isinstance(fact, SubFlowEnded):
            assert before is not None
            step = before.steps[fact.execution_id]
            assert step.condition is not None
            assert step.sub_flow_ends[fact.index] is None, "told twice"
            child = self.latest(step.condition.sub_flows[fact.index].flow_id)
            assert child is not None and not child.is_open and not child.next_run_id
            assert fact.end == end_of(child)
        elif isinstance(fact, ParentAttached):
            assert state.is_open
        elif isinstance(fact, RunClosed):
            self.seen["followed"] += bool(fact.next_run_id)
        self.copies[state.run_id] = fold(before, fact)  # type: ignore[arg-type]

    def check(self) -> None:
        for state in self.runs.values():
            assert not state.is_open or self.newest[state.flow_id] == state.run_id
            if not state.is_open and state.next_run_id:
                assert self.runs[state.next_run_id].run_attempt == state.run_attempt + 1
        for state, step in self.steps():
            if step.phase != "waiting" or step.condition is None:
                continue
            for index, sub_flow in enumerate(step.condition.sub_flows):
                if step.sub_flow_ends[index] is None:
                    child = self.latest(sub_flow.flow_id)
                    assert child is not None and child.is_open, "nobody ends the wait"
                    assert Parent(state.run_id, step.execution_id, index) in child.parents


@pytest.mark.parametrize("first_seed", range(0, 600, 200))
def test_every_wait_for_a_subflow_ends(first_seed: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 200):
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += world.seen
    # The schedules are worth something only if all of this happens.
    for what in ("SubFlowEnded", "ParentAttached", "as retry", "followed"):
        assert seen[what] > 20, (what, seen)
