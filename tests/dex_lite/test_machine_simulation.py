"""Random schedules of commands against the machine: its invariants hold in any order."""

from __future__ import annotations

import os

import pytest

from dex_lite._machine import decide
from dex_lite._machine.commands import ExecuteResult
from dex_lite._machine.facts import (
    WaitWon,
    decode_state,
    encode_state,
)
from dex_lite._machine.fold import fold
from dex_lite._machine.model import (
    CANCELED,
    COMPLETED,
    FAILED,
    FLOW_TIMEOUT,
    RUNNING,
    TERMINATED,
    RunState,
)
from dex_lite._machine.turn import Ready, SetTimer, Turn
from support.machine_simulation import Simulation

SEEDS_A_CASE = 30


@pytest.mark.parametrize("first_seed", range(0, 300, SEEDS_A_CASE))
def test_invariants_hold_under_random_schedules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_A_CASE):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, command {simulation.steps}: {error}") from error


def test_schedules_reach_every_corner() -> None:
    """The simulation is worth something only if runs live long and end in every way."""
    closed: dict[int, int] = {}
    attempts = messages = retries = timeouts = handled = 0
    for seed in range(400):
        simulation = Simulation(seed)
        simulation.run()
        state = simulation.state
        closed[state.status] = closed.get(state.status, 0) + 1
        attempts += len(simulation.tokens)
        messages += simulation.taken + simulation.ledger.consumed + simulation.ledger.deleted
        retries += state.run_attempt - 1
        timeouts += state.error_type == FLOW_TIMEOUT
        handled += "Handled" in state.attributes
    assert set(closed) == {RUNNING, COMPLETED, FAILED, TERMINATED, CANCELED}, closed
    assert closed[RUNNING] > 50
    assert retries > 25
    assert timeouts > 5
    assert handled > 5
    assert attempts > 2_000
    assert messages > 500


class Crashes(Simulation):
    """Loses the process at every commit, right before it and right after.

    A commit holds all facts of a command or none, so what is on disk right before it is what the
    command before left. Each such file is started from, in a copy; the schedule itself goes on.
    """

    starts = 0

    def after(self, turn: Turn) -> None:
        """As without crashes, and then a start from what is on disk."""
        super().after(turn)
        if turn.facts and self.state.is_open:
            self.start_from(encode_state(self.state))

    def start_from(self, stored: bytes) -> None:
        """What an engine makes of a stored state."""
        self.starts += 1
        before, state = decode_state(stored), decode_state(stored)
        turn = Turn(state, self.now)
        decide.recover(turn)
        folded = decode_state(stored)
        for fact in turn.facts:
            fold(folded, fact)
        after = encode_state(state)
        assert encode_state(folded) == after, "the start is more than its facts"
        self.check_start(before, state, turn)
        # The process may be lost in the start as well, after the commit of what it decided.
        again = Turn(decode_state(after), self.now)
        decide.recover(again)
        assert not again.facts, "a second start decides what the first one did"
        self.check_late_result(before, again)

    def check_start(self, before: RunState, state: RunState, turn: Turn) -> None:
        """Nothing is lost, nothing runs twice that must not, and everything goes on."""
        for step in before.steps.values():
            if step.attempt is None or step.method_options.retry.maximum_attempts != 1:
                continue
            left = state.steps.get(step.execution_id)
            assert left is None or left.method != step.method, "a last attempt is made again"
        mine, rpc_locks, timers, offered = self.state, self.rpc_locks, self.timers, self.offered
        self.state, self.rpc_locks = state, frozenset()
        self.timers = {effect for effect in turn.effects if isinstance(effect, SetTimer)}
        self.offered = {e.execution_id for e in turn.effects if isinstance(e, Ready)}
        try:
            assert not any(step.attempt for step in state.steps.values())
            self.check_state()
        finally:
            self.state, self.rpc_locks, self.timers, self.offered = mine, rpc_locks, timers, offered
        if state.is_open:
            kept = {m.message_id for messages in state.channels.values() for m in messages}
            there = {m.message_id for messages in before.channels.values() for m in messages}
            assert kept <= there
            assert kept == there or any(isinstance(fact, WaitWon) for fact in turn.facts)

    def check_late_result(self, before: RunState, turn: Turn) -> None:
        """An attempt of the lost process counts no more."""
        for step in before.steps.values():
            if step.attempt is not None:
                result = ExecuteResult(close="force", close_value=b"late")
                decide.complete_execute(turn, step.execution_id, step.attempt.token, result)
                assert not turn.facts, "an attempt of the lost process counted"


def run_crashes(first_seed: int, count: int) -> int:
    """How many starts there were. ``CRASH_SEED=<seed>`` replays one schedule."""
    starts = 0
    replay = os.environ.get("CRASH_SEED")
    for seed in [int(replay)] if replay else range(first_seed, first_seed + count):
        simulation = Crashes(seed)
        try:
            simulation.run()
        except AssertionError as error:
            text = f"CRASH_SEED={seed}, command {simulation.steps}: {error}"
            raise AssertionError(text) from error
        starts += simulation.starts
    return starts


@pytest.mark.parametrize("first_seed", range(0, 2_000, 500))
def test_crash_before_and_after_each_commit(first_seed: int) -> None:
    assert run_crashes(first_seed, 500) > 5_000 or "CRASH_SEED" in os.environ


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(10_000, 110_000, 10_000))
def test_crash_before_and_after_each_commit_long(first_seed: int) -> None:
    run_crashes(first_seed, 10_000)
