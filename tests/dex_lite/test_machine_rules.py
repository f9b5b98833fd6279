"""The machine's rules, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from dex_lite._machine import decide
from dex_lite._machine.commands import ExecuteResult, RpcResult, WaitForResult
from dex_lite._machine.facts import RunStarted
from dex_lite._machine.model import (
    COMPLETED,
    FAILED,
    ChannelCondition,
    Condition,
    Failure,
    Message,
    MethodOptions,
    Movement,
    RetryPolicy,
    RunState,
    StepExecution,
    StepOptions,
    TimerCondition,
    TimerState,
)
from dex_lite._machine.turn import CancelTask, Ready, SetTimer, Turn
from dex_lite._machine.waits import won

# Waits


def _wait(condition: Condition, *fired: int) -> StepExecution:
    timers = [TimerState(0, index in fired) for index in range(len(condition.timers))]
    return StepExecution(
        execution_id="S-1",
        source_id="",
        movement=Movement("S", b""),
        phase="waiting",
        scheduled_ms=0,
        condition=condition,
        timers=timers,
    )


def _channels(**texts: str) -> dict[str, list[Message]]:
    return {name: [Message(t, t.encode()) for t in text] for name, text in texts.items()}


def _taken(condition: Condition, *fired: int, **texts: str) -> list[str] | None:
    """What the winner takes, per channel condition; ``None`` if nothing is met."""
    consumed = won(_wait(condition, *fired), _channels(**texts))
    if consumed is None:
        return None
    return [f"{c.index}{c.channel}:{b''.join(c.values).decode()}" for c in consumed]


@pytest.mark.parametrize(
    "at_least, at_most, pending, taken",
    [
        (None, None, "", None),
        (None, None, "xyz", "x"),
        (2, None, "x", None),
        (2, None, "xyz", "xyz"),
        (None, 2, "", ""),
        (None, 2, "xyz", "xy"),
        (2, 3, "x", None),
        (2, 3, "xy", "xy"),
        (2, 3, "xyzw", "xyz"),
        (0, None, "", ""),
        (0, 0, "x", ""),
        (2, 2, "xyz", "xy"),
    ],
)
def test_bounds(at_least: int | None, at_most: int | None, pending: str, taken: str | None) -> None:
    condition = Condition("all", channels=(ChannelCondition("", "a", at_least, at_most),))
    expected = None if taken is None else [f"0a:{taken}"]
    assert _taken(condition, a=pending) == expected


def test_any_tries_timers_before_channels_and_takes_from_the_winner_only() -> None:
    condition = Condition(
        "any",
        timers=(TimerCondition("", 1), TimerCondition("", 2)),
        channels=(ChannelCondition("", "a"), ChannelCondition("", "b")),
    )
    assert _taken(condition) is None
    assert _taken(condition, 1, a="x", b="y") == []
    assert _taken(condition, a="x", b="y") == ["0a:x"]
    assert _taken(condition, b="y") == ["1b:y"]


def test_all_wants_everything() -> None:
    condition = Condition(
        "all",
        timers=(TimerCondition("", 1),),
        channels=(ChannelCondition("", "a"), ChannelCondition("", "b")),
    )
    assert _taken(condition, a="x", b="y") is None
    assert _taken(condition, 0, a="x") is None
    assert _taken(condition, 0, a="x", b="y") == ["0a:x", "1b:y"]


def test_two_conditions_on_one_channel_reserve_minima_first() -> None:
    condition = Condition(
        "all", channels=(ChannelCondition("", "a", 1, 3), ChannelCondition("", "a", 2, None))
    )
    assert _taken(condition, a="12") is None
    assert _taken(condition, a="123") == ["0a:1", "1a:23"]
    assert _taken(condition, a="1234") == ["0a:12", "1a:34"]
    assert _taken(condition, a="1234567") == ["0a:123", "1a:4567"]


def test_combinations_in_their_order() -> None:
    condition = Condition(
        "combination",
        timers=(TimerCondition("t", 1),),
        channels=(ChannelCondition("a", "a"), ChannelCondition("b", "b")),
        combinations=(("a", "b"), ("t", "a"), ("b",)),
    )
    assert _taken(condition, a="x") is None
    assert _taken(condition, 0, a="x") == ["0a:x"]
    assert _taken(condition, b="y") == ["1b:y"]
    assert _taken(condition, 0, a="x", b="y") == ["0a:x", "1b:y"]


# Runs


class Machine:
    """A run that a test drives."""

    def __init__(self, options: StepOptions | None = None, step_type: str = "S") -> None:
        self.now = 1_000_000
        self.effects: list[Any] = []
        self._tokens = 0
        turn = decide.start(
            RunStarted(
                "f", "r", "F", "q", self.now, start=Movement(step_type, b"in", options or skip())
            )
        )
        self.state: RunState = turn.state
        self.effects = turn.effects

    def turn(self, foreign: frozenset[str] = frozenset()) -> Turn:
        return Turn(self.state, self.now, foreign)

    def do(self, command: Any, *args: Any, **options: Any) -> bool:
        turn = self.turn()
        done: bool = command(turn, *args, **options)
        self.effects = turn.effects
        return done

    def begin(self, execution_id: str) -> str:
        self._tokens += 1
        token = f"t{self._tokens}"
        turn = self.turn()
        assert decide.begin(turn, execution_id, token, "w") is not None, execution_id
        return token

    def execute(self, execution_id: str, **result: Any) -> None:
        token = self.begin(execution_id)
        assert self.do(decide.complete_execute, execution_id, token, ExecuteResult(**result))

    def wait_for(self, execution_id: str, condition: Condition | None = None) -> None:
        token = self.begin(execution_id)
        result = WaitForResult(condition=condition)
        assert self.do(decide.complete_wait_for, execution_id, token, result)

    def fail(self, execution_id: str, detail: str = "bad", **options: Any) -> None:
        token = self.begin(execution_id)
        failure = Failure(detail, "E", is_delivered=options.pop("is_delivered", True))
        assert self.do(decide.fail, execution_id, token, failure, **options)

    def publish(self, channel: str, *values: str) -> None:
        assert self.do(decide.publish, tuple((channel, value.encode()) for value in values))

    def ready(self) -> list[str]:
        """Executions whose method a Worker may take now."""
        return [s.execution_id for s in self.state.steps.values() if s.may_begin]


def skip(**execute: Any) -> StepOptions:
    """Options of a Step without WaitFor."""
    return StepOptions(skip_wait_for=True, execute=MethodOptions(**execute))


def route(policy: RetryPolicy) -> StepOptions:
    """Options of a Step with a failure route."""
    return StepOptions(
        skip_wait_for=True,
        execute=MethodOptions(retry=policy),
        failure_step_type="Rescue",
        failure_options=skip(),
    )


def moves(*names: str, options: StepOptions | None = None) -> tuple[Movement, ...]:
    """Movements to Steps without WaitFor."""
    return tuple(Movement(name, name.encode(), options or skip()) for name in names)


def test_retry_delays() -> None:
    policy = RetryPolicy(initial_ms=1_000, coefficient=2.0, maximum_ms=5_000)
    assert [policy.delay_ms(n) for n in (1, 2, 3, 4, 5)] == [1_000, 2_000, 4_000, 5_000, 5_000]
    assert policy.delay_ms(10_000) == 5_000
    assert RetryPolicy(coefficient=3e38).delay_ms(100) == 100_000
    assert RetryPolicy(coefficient=1.0).delay_ms(100) == 1_000


def test_retry_then_exhaustion_by_attempts() -> None:
    m = Machine(route(RetryPolicy(maximum_attempts=2)))
    m.fail("S-1", "first")
    assert m.effects == [SetTimer("S-1", -1, m.now + 1_000)]
    assert m.ready() == []
    m.now += 1_000
    assert m.do(decide.retry_fell, "S-1")
    assert m.effects == [Ready("S-1")]
    m.fail("S-1", "second")
    assert m.ready() == ["Rescue-1"]
    rescue = m.state.steps["Rescue-1"]
    assert rescue.source_id == "S-1"
    assert rescue.movement.step_input == b"in"
    assert rescue.recovery is not None
    assert (rescue.recovery.detail, rescue.recovery.error_type) == ("second", "E")


def test_exhaustion_by_duration() -> None:
    m = Machine(route(RetryPolicy(initial_ms=1_000, coefficient=1.0, total_ms=2_000)))
    for _ in range(2):
        m.fail("S-1")
        m.now += 1_000
        assert m.do(decide.retry_fell, "S-1")
    m.fail("S-1")
    assert m.ready() == ["Rescue-1"]


def test_failure_that_must_not_be_retried() -> None:
    m = Machine(route(RetryPolicy()))
    m.fail("S-1", is_retryable=False)
    assert m.ready() == ["Rescue-1"]


def test_worker_says_when_to_retry() -> None:
    m = Machine(skip())
    m.fail("S-1", retry_after_ms=77_000)
    assert m.effects == [SetTimer("S-1", -1, m.now + 77_000)]


def test_recovery_is_told_the_last_delivered_failure() -> None:
    m = Machine(route(RetryPolicy(maximum_attempts=2)))
    m.fail("S-1", "it ran", retry_after_ms=0)
    failure = Failure("nobody took it", "NO_WORKER_AVAILABLE", is_delivered=False)
    assert m.do(decide.fail_dispatch, "S-1", failure)
    recovery = m.state.steps["Rescue-1"].recovery
    assert recovery is not None
    assert recovery.detail == "it ran"

    m = Machine(route(RetryPolicy(maximum_attempts=1)))
    assert m.do(decide.fail_dispatch, "S-1", failure)
    recovery = m.state.steps["Rescue-1"].recovery
    assert recovery is not None
    assert recovery.error_type == "NO_WORKER_AVAILABLE"


def test_spent_method_without_a_route_fails_the_flow() -> None:
    m = Machine(skip(retry=RetryPolicy(maximum_attempts=1)))
    m.fail("S-1", "bad luck")
    assert (m.state.status, m.state.error_type, m.state.error_message) == (FAILED, 3, "bad luck")
    assert m.state.steps == {}


def test_failed_wait_for_may_proceed() -> None:
    options = StepOptions(
        wait_for=MethodOptions(retry=RetryPolicy(maximum_attempts=1)),
        proceed_when_wait_for_fails=True,
    )
    m = Machine(options)
    m.fail("S-1", "no wait")
    step = m.state.steps["S-1"]
    assert (step.phase, step.wait_for_failed, step.attempts_used) == ("execute", True, 0)
    assert step.recovery is not None
    assert step.recovery.detail == "no wait"
    assert m.ready() == ["S-1"]


def test_attempt_given_back_does_not_count_but_half_closes_do_in_the_end() -> None:
    m = Machine(route(RetryPolicy(maximum_attempts=1)))
    for _ in range(5):
        assert m.do(decide.give_back, "S-1", m.begin("S-1"), is_half_close=False)
    for _ in range(decide.HALF_CLOSES_GIVEN_BACK):
        assert m.do(decide.give_back, "S-1", m.begin("S-1"), is_half_close=True)
        assert m.state.steps["S-1"].attempts_used == 0
    assert m.do(decide.give_back, "S-1", m.begin("S-1"), is_half_close=True)
    recovery = m.state.steps["Rescue-1"].recovery
    assert recovery is not None
    assert recovery.error_type == "WORKER_DISCONNECTED"


def test_stale_tokens_change_nothing() -> None:
    m = Machine(skip())
    old = m.begin("S-1")
    assert m.do(decide.fail, "S-1", old, Failure("x", "E"), retry_after_ms=0)
    m.begin("S-1")
    facts = m.state.fact_count
    assert not m.do(decide.complete_execute, "S-1", old, ExecuteResult(close="force"))
    assert not m.do(decide.fail, "S-1", old, Failure("x", "E"))
    assert not m.do(decide.keep_heartbeat, "S-1", old, b"v")
    assert not m.do(decide.give_back, "S-1", old, is_half_close=False)
    assert m.state.fact_count == facts


def test_graceful_completion_waits_for_every_step() -> None:
    m = Machine()
    m.execute("S-1", next_steps=moves("A", "B", "C"))
    m.execute("A-1", close="graceful", close_value=b"a")
    m.execute("B-1", close="dead_end")
    assert m.state.is_open
    m.execute("C-1", next_steps=moves("D"))
    assert m.state.is_open
    m.execute("D-1", close="graceful", close_value=b"d")
    assert m.state.status == COMPLETED
    assert [output.value for output in m.state.outputs] == [b"a", b"d"]


def test_dead_ends_alone_keep_the_flow_open() -> None:
    m = Machine()
    m.execute("S-1", close="dead_end")
    assert m.state.is_open
    assert m.state.steps == {}


def test_conditional_close_counts_messages_that_another_step_took() -> None:
    m = Machine()
    wait = Condition("all", channels=(ChannelCondition("", "a"),))
    both = (Movement("W", b""), *moves("C"))
    m.execute("S-1", next_steps=both)
    m.wait_for("W-1", wait)
    m.publish("a", "x")  # taken by W at once, which has not ended
    assert "a" not in m.state.channels
    close = {"close": "conditional", "conditional_channels": ("a",), "close_value": b"v"}
    m.execute("C-1", **close, next_steps=moves("C"))
    assert m.state.is_open
    m.execute("W-1", close="dead_end")
    m.publish("a", "y")
    m.execute("C-2", **close, next_steps=moves("C"))
    assert m.state.is_open
    assert m.state.outputs == []
    m.execute("C-3", **close, deleted=(("a", m.state.channels["a"][0].message_id),))
    assert m.state.status == COMPLETED
    assert [output.value for output in m.state.outputs] == [b"v"]


def test_cancellation_of_siblings_spares_other_sources_and_the_decider() -> None:
    m = Machine()
    m.execute("S-1", next_steps=moves("A", "A", "B", "P"))
    m.execute("P-1", next_steps=moves("A", "B"))
    token = m.begin("A-2")
    m.execute("A-1", close="dead_end", cancel_sibling_types=("A",))
    assert m.effects == [CancelTask("A-2", token)]
    assert list(m.state.steps) == ["B-1", "A-3", "B-2"]
    assert not m.do(decide.complete_execute, "A-2", token, ExecuteResult(close="force"))
    m.execute("A-3", next_steps=moves("B", "A"), cancel_types=("B",))
    assert list(m.state.steps) == ["B-3", "A-4"]  # what it schedules itself stays


def test_locks_first_come_first_served_and_all_at_once() -> None:
    m = Machine()
    named = {"A": ("x",), "B": ("x", "y"), "C": ("y",), "D": ("z",)}
    steps = tuple(Movement(name, b"", skip(locks=keys)) for name, keys in named.items())
    m.execute("S-1", next_steps=steps)
    assert m.ready() == ["A-1", "D-1"]  # C does not overtake B
    m.fail("A-1")
    assert m.ready() == ["D-1"]  # kept over the retry delay
    assert m.do(decide.retry_fell, "A-1")
    m.execute("A-1", close="dead_end")
    assert m.ready() == ["B-1", "D-1"]
    m.execute("B-1", close="dead_end")
    assert m.ready() == ["C-1", "D-1"]


def test_locks_that_an_rpc_holds_keep_a_step_waiting() -> None:
    m = Machine()
    token = m.begin("S-1")
    turn = m.turn(frozenset({"x"}))
    result = ExecuteResult(next_steps=moves("A", options=skip(locks=("x",))))
    assert decide.complete_execute(turn, "S-1", token, result)
    assert m.ready() == []
    assert m.do(decide.release_foreign_locks)
    assert m.ready() == ["A-1"]


def test_deletions_come_before_publications_and_before_waits() -> None:
    m = Machine(StepOptions())
    m.publish("a", "old")
    old = m.state.channels["a"][0].message_id
    token = m.begin("S-1")
    result = WaitForResult(
        condition=Condition("all", channels=(ChannelCondition("", "a"),)),
        deleted=(("a", old), ("a", "unknown")),
        published=(("a", b"new"),),
    )
    assert m.do(decide.complete_wait_for, "S-1", token, result)
    assert m.state.steps["S-1"].consumed[0].values == (b"new",)


def test_restart_loses_open_attempts_and_sets_timers_again() -> None:
    m = Machine()
    timer = Condition("all", timers=(TimerCondition("", 5_000),))
    m.execute("S-1", next_steps=(*moves("A", "B", "C"), Movement("W", b"")))
    m.wait_for("W-1", timer)
    m.begin("A-1")
    m.fail("B-1")
    turn = m.turn()
    decide.recover(turn)
    assert set(turn.effects) == {
        SetTimer("W-1", 0, m.now + 5_000),
        SetTimer("B-1", -1, m.now + 1_000),
        Ready("A-1"),
        Ready("C-1"),
    }
    failure = m.state.steps["A-1"].failure
    assert failure is not None
    assert failure.error_type == "WORKER_DISCONNECTED"


def test_rpc_on_a_closed_flow_changes_nothing() -> None:
    m = Machine()
    m.execute("S-1", close="force")
    result = RpcResult(attributes=(("k", b"v"),))
    assert not m.do(decide.apply_rpc, "write", result, rpc_input=b"", worker_id="w")
    assert m.state.attributes == {}


def test_waits_are_met_in_the_order_of_their_steps() -> None:
    """Each sees what those before it have left, whoever began to wait first."""
    m = Machine()
    m.execute("S-1", next_steps=tuple(Movement(name, b"") for name in "ABC"))
    wait = Condition("all", channels=(ChannelCondition("", "a"),))
    for execution_id in ("C-1", "B-1", "A-1"):
        m.wait_for(execution_id, wait)
    m.publish("a", "1", "2")
    taken = {key: [t.values for t in step.consumed] for key, step in m.state.steps.items()}
    assert taken == {"A-1": [(b"1",)], "B-1": [(b"2",)], "C-1": []}
    assert m.ready() == ["A-1", "B-1"]


def test_locks_are_held_again_after_a_restart_and_free_while_a_step_waits() -> None:
    m = Machine()
    held = MethodOptions(locks=("x",))
    options = StepOptions(wait_for=held, execute=held)
    m.execute(
        "S-1", next_steps=(Movement("W", b"", options), *moves("A", options=skip(locks=("x",))))
    )
    m.begin("W-1")
    assert m.ready() == []
    turn = m.turn()
    decide.recover(turn)
    # The method that was at work has its lock still, and begins again.
    assert m.ready() == ["W-1"]
    m.wait_for("W-1", Condition("all", channels=(ChannelCondition("", "c"),)))
    assert m.ready() == ["A-1"]  # nothing is held while it waits
    m.begin("A-1")
    m.publish("c", "1")
    assert m.ready() == []  # its Execute needs the lock anew
