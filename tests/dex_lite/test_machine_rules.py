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
        return [
            s.execution_id
            for s in self.state.steps.values()
            if s.is_ready and (s.has_locks or not s.method_options.locks)
        ]


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
