"""Time travel in random runs: every cut lies between two commands, and the new run keeps every invariant."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dex_lite._machine.facts import (
    AnyFact,
    AttemptBegun,
    AttributesWritten,
    ExternallyPublished,
    MessagesPublished,
    MethodCompleted,
    MethodFailed,
    RpcApplied,
    RunClosed,
    RunForked,
    RunStarted,
    TimerFired,
    WaitWon,
    decode_fact,
    encode_fact,
)
from dex_lite._machine.fold import fold
from dex_lite._machine.model import RunState
from dex_lite._machine.travel import Fork, Target, find_cut, fork, start_of_command
from dex_lite._machine.turn import Turn
from support.machine_simulation import Simulation

_EVENTS = (MethodCompleted, MethodFailed, RpcApplied, ExternallyPublished, RunClosed)


class Travels(Simulation):
    """Keeps the log of its run, and where each command began."""

    def __init__(self, seed: int) -> None:
        self.log: list[AnyFact] = []
        self.begins: set[int] = set()
        super().__init__(seed)

    def after_one(self, turn: Turn) -> None:
        if turn.facts and isinstance(turn.facts[0], RunStarted):
            self.log, self.begins = [], set()
        self.begins.add(len(self.log))
        self.log += [decode_fact(encode_fact(fact)) for fact in turn.facts]
        super().after_one(turn)

    def travel(self, cut: int, *, with_writes: bool) -> None:
        """Go on in a new run."""
        old = self.state
        what = Fork(
            run_id=f"travel-{old.run_attempt + 1}",
            run_attempt=old.run_attempt + 1,
            first_run_id=old.first_run_id or old.run_id,
            reason="",
            cut=cut,
            with_writes=with_writes,
            parents=(),
            secrets=self.secrets,
        )
        secrets = self.secrets
        turn = fork(self.log, old, what, self.now)
        self.past.append(old)
        self.state, self.copy = turn.state, None
        self.rpc_locks = frozenset()
        self.begin_books()
        self.after_one(turn)
        assert self.secrets == secrets


@pytest.mark.parametrize("first_seed", range(0, 120, 30))
def test_a_run_from_any_point_keeps_the_invariants(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 30):
        simulation = Travels(seed)
        simulation.run()
        for _ in range(4):
            cuts = [find_cut(simulation.log, target) for target in _targets(simulation)]
            known = [cut for cut in cuts if cut is not None]
            cut, log = simulation.random.choice(known), simulation.log
            with_writes = simulation.random.random() < 0.5
            simulation.travel(cut, with_writes=with_writes)
            _check_writes(log, cut, simulation.log, with_writes)
            simulation.steps = 60
            simulation.run()


def _targets(simulation: Travels) -> list[Target]:
    pick = simulation.random
    begun = [fact for fact in simulation.log if isinstance(fact, AttemptBegun)]
    events = [fact for fact in simulation.log if isinstance(fact, _EVENTS)]
    found = [Target("beginning")]
    if begun:
        name = pick.choice(begun).execution_id
        found += [
            Target("execution", name=name, method=pick.choice((None, "wait_for", "execute"))),
            Target("step_type", name=name.rpartition("-")[0]),
        ]
    if events:
        found += [Target("time", at_ms=pick.choice(events).at)] * 3
    return found


def _check_writes(
    old: Sequence[AnyFact], cut: int, new: Sequence[AnyFact], with_writes: bool
) -> None:
    """What clients wrote after the point is there again, if it is wanted and the new run came so far."""
    fork_at = next(i for i in reversed(range(len(new))) if isinstance(new[i], RunForked))
    after = new[fork_at + 1 :]
    published = _client_messages(after)
    if not with_writes:
        assert published == []
        assert not any(isinstance(fact, RpcApplied) for fact in after)
    elif not any(isinstance(fact, RunClosed) for fact in after):
        assert published == _client_messages(old[cut:])
        assert _writes(after) == _writes(old[cut:])


def _client_messages(facts: Sequence[AnyFact]) -> list[bytes]:
    """Values that clients published; those of Steps come with the end of a method instead."""
    found: list[bytes] = []
    pending: list[bytes] = []
    for fact in facts:
        if isinstance(fact, MessagesPublished):
            pending = [value for _, _, value in fact.messages]
        elif isinstance(fact, RpcApplied | ExternallyPublished):
            found += pending
            pending = []
        elif isinstance(fact, MethodCompleted):
            pending = []
    return found


def _writes(facts: Sequence[AnyFact]) -> list[object]:
    found: list[object] = []
    pending: object = None
    for fact in facts:
        if isinstance(fact, AttributesWritten):
            pending = fact.writes
        elif isinstance(fact, RpcApplied):
            found.append(pending)
            pending = None
        elif isinstance(fact, MethodCompleted):
            pending = None
    return found


def test_the_start_of_a_command_is_found_from_what_it_is_named_after() -> None:
    inside = 0
    for seed in range(150):
        simulation = Travels(seed)
        simulation.run()
        for index, fact in enumerate(simulation.log):
            if isinstance(fact, _EVENTS):
                start = start_of_command(simulation.log, index)
                if start in simulation.begins:
                    continue
                # A close may follow what its command had decided before; then the rest is decided again.
                assert isinstance(fact, RunClosed), (seed, index, fact)
                assert not any(
                    isinstance(f, TimerFired | WaitWon) for f in simulation.log[start - 1 : start]
                )
                inside += 1
    assert inside < 100


def test_the_state_at_a_cut_is_the_one_that_was() -> None:
    for seed in range(60):
        simulation = Travels(seed)
        simulation.run()
        cuts = [find_cut(simulation.log, target) for target in _targets(simulation)]
        cut = simulation.random.choice([cut for cut in cuts if cut is not None])
        state: RunState | None = None
        for fact in simulation.log[:cut]:
            state = fold(state, fact)
        assert state is not None
        simulation.travel(cut, with_writes=False)
        new = simulation.state
        if new.is_open:
            plain = {k: v for k, v in state.attributes.items() if k not in state.secrets}
            assert new.attributes == plain | simulation.secrets
            assert (new.run_attempt, new.start_ms) == (state.run_attempt + 1, simulation.now)
