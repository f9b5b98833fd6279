"""Random schedules of commands against the machine, and what has to hold after each of them."""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from dex_lite._machine import decide
from dex_lite._machine.commands import ExecuteResult, RpcResult, WaitForResult, Writes
from dex_lite._machine.facts import (
    AnyFact,
    RunStarted,
    decode_fact,
    decode_state,
    encode_fact,
    encode_state,
)
from dex_lite._machine.family import spread
from dex_lite._machine.fold import fold
from dex_lite._machine.invariants import chain_faults, faults, link_of
from dex_lite._machine.ledger import Ledger
from dex_lite._machine.model import (
    FAILED,
    ChannelCondition,
    Condition,
    Failure,
    FlowStart,
    FlowTimeout,
    KeptSkip,
    MethodOptions,
    Movement,
    RetryPolicy,
    RunState,
    StepOptions,
    TimerCondition,
)
from dex_lite._machine.starts import run_started
from dex_lite._machine.turn import CancelTask, Ready, SetTimer, Turn
from dex_lite._secrets import put_back, secret_writes

Policy = Literal["fail", "cancel", "handler"]
Close = Literal["none", "graceful", "force", "fail", "conditional", "dead_end"]
_MOSTLY: tuple[Close, ...] = ("none",) * 12 + ("dead_end",) * 6 + ("conditional",)
CHANNELS = ("a", "b", "map/1")
LOCKS = ("x", "y", "map/z")
TYPES = ("A", "B", "C", "Rescue")
COMMANDS_A_RUN = 120


class Alone:
    """There are no other runs."""

    def latest(self, flow_id: str) -> None:
        return None

    def turn(self, run_id: str) -> None:
        return None


class Simulation:
    """One run under a random schedule, and a second state that is folded from stored facts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000
        self.tokens: list[tuple[str, str]] = []  # every attempt that was ever begun
        self.messages_made = 0
        self.steps = 0
        self.ledger = Ledger()
        self.taken = 0  # messages, of runs that a Flow retry followed
        self.rpc_locks: frozenset[str] = frozenset()
        self.timers: set[SetTimer] = set()
        self.offered: set[str] = set()
        self.is_stale = False
        self.past: list[RunState] = []  # runs that a Flow retry followed
        self.secrets_made = 0
        self.secrets: dict[str, bytes] = {}  # the table, of the newest run
        self.copy: RunState | None = None
        turn = decide.start(
            run_started(self.flow(), flow_id="f", run_id="run", request_id="q", at=self.now)
        )
        self.state = turn.state
        self.after(turn)

    # What comes in

    def flow(self) -> FlowStart:
        pick = self.random
        policy: Policy = pick.choice(("fail", "cancel", "handler", "handler"))
        retry = RetryPolicy(maximum_attempts=pick.choice((2, 3)))
        return FlowStart(
            "F",
            step=self.movement(),
            attributes=(("k", b"v"),),
            secrets=(("s", self.secret()),),
            delay_ms=pick.choice((0, 0, 4_000)),
            timeout=FlowTimeout(pick.choice((9_000, 60_000)), policy, self.handler())
            if pick.random() < 0.3
            else None,
            retry=retry if pick.random() < 0.5 else None,
        )

    def handler(self) -> StepOptions:
        to = "Rescue" if self.random.random() < 0.5 else ""
        return StepOptions(execute=self.method(), skip_wait_for=True, failure_step_type=to)

    def movement(self) -> Movement:
        pick = self.random
        options = StepOptions(
            wait_for=self.method(),
            execute=self.method(),
            skip_wait_for=pick.random() < 0.4,
            proceed_when_wait_for_fails=pick.random() < 0.95,
            failure_step_type="Rescue" if pick.random() < 0.95 else "",
            failure_options=StepOptions(skip_wait_for=True),
        )
        return Movement(pick.choice(TYPES), b"input", options)

    def method(self) -> MethodOptions:
        pick = self.random
        keys = pick.sample(LOCKS, pick.choice((0, 0, 1, 2)))
        policy = RetryPolicy(maximum_attempts=pick.choice((0, 1, 1, 3)), total_ms=30_000)
        return MethodOptions(retry=policy, locks=tuple(sorted(keys)))

    def writes(self) -> Writes:
        pick = self.random
        pending = [
            (channel, message.message_id)
            for channel, messages in self.state.channels.items()
            for message in messages
        ]
        deleted = pick.sample(pending, min(len(pending), pick.choice((0, 0, 1))))
        secret = self.secret()
        number = self.secrets_made
        return Writes(
            attributes=((pick.choice("kl"), pick.choice((b"1", b"2", None))),),
            secrets=(("st"[number % 2], secret if number % 5 else None),) if number % 3 else (),
            deleted=(*deleted, ("a", "unknown")),
            published=tuple(
                (pick.choice(CHANNELS), self.message()) for _ in range(pick.choice((0, 0, 1, 1, 3)))
            ),
        )

    def secret(self) -> bytes:
        """A value of a hard-delete Attribute, which nothing but the table may hold."""
        self.secrets_made += 1
        return b"secret-%d" % self.secrets_made

    def message(self) -> bytes:
        """A value that no other message has."""
        self.messages_made += 1
        return b"%d" % self.messages_made

    def condition(self) -> Condition | None:
        pick = self.random
        if pick.random() < 0.2:
            return None
        timers = tuple(
            TimerCondition(f"t{i}", pick.choice((0, 1_000, 9_000)))
            for i in range(pick.choice((0, 1, 2)))
        )
        channels = tuple(
            ChannelCondition(
                f"c{i}",
                pick.choice(CHANNELS),
                *pick.choice(((None, None), (2, None), (None, 2), (1, 3))),
            )
            for i in range(pick.choice((0 if timers else 1, 1, 2)))
        )
        ids = [t.condition_id for t in timers] + [c.condition_id for c in channels]
        combinations = tuple(tuple(pick.sample(ids, pick.randint(1, len(ids)))) for _ in range(2))
        return Condition(pick.choice(("all", "any", "combination")), timers, channels, combinations)

    def execute_result(self) -> ExecuteResult:
        pick, writes = self.random, self.writes()
        closes: list[Close] = [*_MOSTLY]
        if pick.random() < 0.03:
            closes = ["force", "fail", "graceful", "graceful"]
        close = pick.choice(closes)
        steps: tuple[Movement, ...] = ()
        if close in ("none", "conditional"):
            steps = tuple(self.movement() for _ in range(pick.choice((1, 1, 2, 3))))
        return ExecuteResult(
            attributes=writes.attributes,
            secrets=writes.secrets,
            deleted=writes.deleted,
            published=writes.published,
            close=close,
            close_value=b"out",
            next_steps=steps,
            conditional_channels=("a",) if close == "conditional" else (),
            cancel_types=(pick.choice(TYPES),) if pick.random() < 0.1 else (),
            cancel_sibling_types=(pick.choice(TYPES),) if pick.random() < 0.1 else (),
        )

    # What happens

    def run(self) -> None:
        """The whole schedule, and a few commands after the end."""
        extra = 5
        while self.steps < COMMANDS_A_RUN and extra:
            self.steps += 1
            extra -= not self.state.is_open
            self.step()

    def step(self) -> None:
        """One command."""
        pick = self.random
        self.now += pick.choice((0, 1, 500, 2_000))
        command = pick.choice(
            [
                *[self.begin] * 5,
                *[self.result] * 5,
                *(self.timer, self.timer, self.fail, self.give_back, self.heartbeat),
                *(self.rpc, self.publish, self.delete, self.dispatch, self.rpc_lock, self.restart),
                *(self.skip, self.config),
            ]
        )
        turn = Turn(self.state, self.now, self.rpc_locks)
        self.is_stale = False
        if pick.random() < 0.005:
            decide.stop(turn, pick.choice(("cancel", "terminate", "fail")), "reason")
        else:
            command(turn)
        assert not self.is_stale or not turn.facts, "a stale attempt changed something"
        self.after(turn)

    def token(self) -> tuple[str, str]:
        """An attempt that is live, if one is, or sometimes a stale one."""
        live = [(s.execution_id, s.attempt.token) for s in self.state.steps.values() if s.attempt]
        if live and self.random.random() < 0.8:
            return self.random.choice(live)
        attempt = self.random.choice(self.tokens) if self.tokens else ("A-1", "none")
        self.is_stale = attempt not in live
        return attempt

    def begin(self, turn: Turn) -> None:
        execution_id = self.random.choice([*self.state.steps, "A-1"])
        token = f"t{len(self.tokens)}"
        if decide.begin(turn, execution_id, token, self.random.choice(("w1", "w2"))) is not None:
            self.tokens.append((execution_id, token))
            self.offered.discard(execution_id)

    def result(self, turn: Turn) -> None:
        execution_id, token = self.token()
        step = self.state.steps.get(execution_id)
        if step is None or step.method == "execute":
            result = self.execute_result()
            if step is not None and step.is_timeout:
                result = msgspec.structs.replace(result, attributes=(("Handled", b"1"),))
            decide.complete_execute(turn, execution_id, token, result)
        else:
            writes = self.writes()
            waits = WaitForResult(
                attributes=writes.attributes,
                secrets=writes.secrets,
                deleted=writes.deleted,
                published=writes.published,
                step_locals=(("local", b"1"),),
                condition=self.condition(),
            )
            decide.complete_wait_for(turn, execution_id, token, waits)

    def failure(self) -> Failure:
        return Failure("detail", "Type", "stack", is_delivered=self.random.random() < 0.7)

    def fail(self, turn: Turn) -> None:
        retryable = self.random.random() < 0.8
        delay = self.random.choice((None, 0, 5_000))
        decide.fail(
            turn, *self.token(), self.failure(), is_retryable=retryable, retry_after_ms=delay
        )

    def dispatch(self, turn: Turn) -> None:
        if self.random.random() < 0.3:
            execution_id = self.random.choice([*self.state.steps, "A-1"])
            decide.fail_dispatch(turn, execution_id, self.failure())

    def give_back(self, turn: Turn) -> None:
        decide.give_back(turn, *self.token(), is_half_close=self.random.random() < 0.5)

    def heartbeat(self, turn: Turn) -> None:
        decide.keep_heartbeat(turn, *self.token(), self.random.choice((b"1", b"2", None)))

    def timer(self, turn: Turn) -> None:
        for timer in sorted(self.timers, key=lambda t: (t.due_ms, t.execution_id, t.index)):
            if self.now < timer.due_ms:
                self.now = timer.due_ms
            turn.now_ms = self.now
            self.timers.discard(timer)
            if timer.index < 0:
                decide.retry_fell(turn, timer.execution_id)
            else:
                decide.fire_timer(turn, timer.execution_id, timer.index)
            return

    def rpc(self, turn: Turn) -> None:
        pick, writes = self.random, self.writes()
        result = RpcResult(
            attributes=writes.attributes,
            secrets=writes.secrets,
            deleted=writes.deleted,
            published=writes.published,
            next_steps=(self.movement(),) if pick.random() < 0.5 else (),
            cancel_types=(pick.choice(TYPES),) if pick.random() < 0.1 else (),
        )
        request_id = pick.choice(("", "r1", "r2"))
        done = decide.apply_rpc(
            turn, "rpc", result, rpc_input=b"", worker_id="w1", request_id=request_id
        )
        assert done is (turn.state.is_open or bool(turn.facts))

    def publish(self, turn: Turn) -> None:
        decide.publish(
            turn, tuple((pick, self.message()) for pick in self.random.sample(CHANNELS, 2))
        )

    def delete(self, turn: Turn) -> None:
        for _, message_id in self.writes().deleted:
            decide.delete_message(turn, "a", message_id, self.random.choice(("", "d1")))

    def skip(self, turn: Turn) -> None:
        pick = self.random
        number = pick.randint(1, 9)
        execution_id = pick.choice([*self.state.steps, f"{pick.choice(TYPES)}-{number}"])
        skip = KeptSkip(execution_id, *pick.choice((("t0", -1), ("t1", -1), ("", 0), ("", 1))))
        before = len(turn.facts)
        if self.state.is_open and decide.skip_timer(turn, skip) is not None:
            assert len(turn.facts) == before

    def config(self, turn: Turn) -> None:
        decide.change_config(turn, self.random.choice((b"", b"1", b"2")), is_async_default=False)

    def rpc_lock(self, turn: Turn) -> None:
        """An RPC takes free locks, or gives them back."""
        if self.rpc_locks:
            self.rpc_locks = turn.foreign_locks = frozenset()
            decide.release_foreign_locks(turn)
        else:
            free = sorted(set(LOCKS) - self.state.held_locks())
            self.rpc_locks = frozenset(free[:1])

    def restart(self, turn: Turn) -> None:
        """The engine comes back with nothing but a snapshot."""
        if self.random.random() < 0.3 and self.state.is_open:
            self.state = turn.state = decode_state(encode_state(self.state))
            put_back(self.state, self.secrets)
            self.rpc_locks = turn.foreign_locks = frozenset()
            self.timers.clear()
            self.offered.clear()
            decide.recover(turn)
            assert not any(step.attempt for step in self.state.steps.values())

    # What has to hold

    def after(self, turn: Turn) -> None:
        """The command's own run, and a run that follows it."""
        turns = list(spread(turn, Alone()))
        assert turns[0] is turn and len(turns) <= 2
        self.after_one(turn)
        if len(turns) == 2:
            self.go_on(turns[1])

    def go_on(self, turn: Turn) -> None:
        """A Flow retry begins."""
        before, state = self.state, turn.state
        assert before.status == FAILED and before.next_run_id == state.run_id
        assert [*chain_faults(link_of(before), link_of(state))] == []
        assert state.run_id not in {run.run_id for run in (*self.past, before)}
        secrets = {key: before.attributes[key] for key in before.secrets}
        assert state.attributes == {"k": b"v"} | secrets and not state.channels
        self.past.append(before)
        self.state, self.copy = state, None
        self.rpc_locks = frozenset()
        self.begin_books()
        self.after_one(turn)

    def begin_books(self) -> None:
        """Another run comes: nothing is known of it yet."""
        self.taken += self.ledger.consumed + self.ledger.deleted
        self.ledger = Ledger()
        self.timers.clear()
        self.offered.clear()

    def after_one(self, turn: Turn) -> None:
        for fact in turn.facts:
            stored = encode_fact(fact)
            assert b"secret-" not in stored
            self.follow(decode_fact(stored))
        assert self.copy is not None
        stored = encode_state(self.state)
        assert b"secret-" not in stored
        assert encode_state(self.copy) == stored
        self.check_secrets(turn)
        for effect in turn.effects:
            if isinstance(effect, SetTimer):
                self.timers.add(effect)
            elif isinstance(effect, Ready):
                self.offered.add(effect.execution_id)
            if not isinstance(effect, CancelTask):
                assert self.state.is_open, effect
        assert [*self.ledger.imbalance(self.state)] == []
        self.check_state()

    def follow(self, fact: AnyFact) -> None:
        """Fold a stored fact into the second state, and enter it in the ledger."""
        before = self.copy
        assert [*self.ledger.follow(before, fact)] == []
        count = before.fact_count if before is not None else 0
        self.copy = fold(before, fact)
        assert self.copy.fact_count == count + 1

    def check_secrets(self, turn: Turn) -> None:
        """The table holds the hard-delete Attributes, with what was written last."""
        if turn.facts and isinstance(turn.facts[0], RunStarted):
            self.secrets = {}
        for write in secret_writes(self.state, turn.facts):
            self.secrets.pop(write.attribute, None)
            if write.value is not None:
                self.secrets[write.attribute] = write.value
        assert self.secrets == {key: self.state.attributes[key] for key in self.state.secrets}
        assert all(value.startswith(b"secret-") for value in self.secrets.values())

    def check_state(self) -> None:
        """What can be read from the state, and what this engine was told to do about it."""
        state = self.state
        assert [*faults(state, self.rpc_locks)] == []
        timers = {(t.execution_id, t.index) for t in self.timers}
        for key, step in state.steps.items():
            assert not step.may_begin or key in self.offered, "nobody is told that it may begin"
            assert not step.retry_at_ms or (key, -1) in timers, "nobody waits for the retry"
            if step.phase == "waiting":
                for index, timer in enumerate(step.timers):
                    assert timer.is_fired or (key, index) in timers, "nobody waits for the timer"
