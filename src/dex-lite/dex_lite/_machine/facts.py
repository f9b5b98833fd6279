"""Everything that can become durable about a run.

A fact says what happened, in the past tense; see :mod:`fold` for what it changes. New facts
and new fields with defaults may be added in any release; what is here stays readable.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dex_lite._machine.model import (
    Condition,
    Consumed,
    Failure,
    FlowEnd,
    FlowTimeout,
    IndexUse,
    KeptSkip,
    Movement,
    Output,
    Parent,
    Recovery,
    RetryPolicy,
    RpcAnswer,
    RunState,
    Value,
)


class Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="f"):
    """Base of all facts."""


class RunStarted(Fact, frozen=True, tag="start"):
    flow_id: str
    run_id: str
    flow_type: str
    request_id: str
    at: int
    config: bytes = b""
    is_async_default: bool = False
    start: Movement | None = None
    attributes: tuple[tuple[str, Value], ...] = ()
    delay_ms: int = 0
    timeout: FlowTimeout | None = None
    retry: RetryPolicy | None = None
    backoff_ms: int = (
        0  # of a Flow retry: comes before the delay, and the timeout runs from its end
    )
    run_attempt: int = 1
    first_run_id: str = ""
    indexes: tuple[IndexUse, ...] = ()
    parents: tuple[Parent, ...] = ()
    secrets: tuple[tuple[str, Value], ...] = ()


class StepScheduled(Fact, frozen=True, tag="sched"):
    execution_id: str
    source_id: str
    movement: Movement
    at: int
    recovery: Recovery | None = None
    not_before: int = 0


class LocksTaken(Fact, frozen=True, tag="locks"):
    execution_id: str


class AttemptBegun(Fact, frozen=True, tag="begin"):
    execution_id: str
    token: str
    worker_id: str
    at: int


class AttemptGivenBack(Fact, frozen=True, tag="back"):
    """The attempt never started and does not count."""

    execution_id: str
    is_half_close: bool = False


class AttemptFailed(Fact, frozen=True, tag="fail"):
    execution_id: str
    failure: Failure
    retry_at: int = 0  # 0: no retry, the method has failed for good
    is_counted_twice: bool = False  # it failed without having begun
    at: int = 0


class RetryFell(Fact, frozen=True, tag="retry"):
    """The delay before the next attempt is over, or before the first one of a delayed start."""

    execution_id: str


class HeartbeatKept(Fact, frozen=True, tag="beat"):
    execution_id: str
    value: Value | None = None


class WaitBegun(Fact, frozen=True, tag="wait"):
    execution_id: str
    condition: Condition
    timers_due: tuple[int, ...] = ()


class TimerFired(Fact, frozen=True, tag="timer"):
    execution_id: str
    index: int
    is_skipped: bool = False


class SkipKept(Fact, frozen=True, tag="skip"):
    """A client fires a timer of a wait that has not begun."""

    skip: KeptSkip


class ConfigChanged(Fact, frozen=True, tag="conf"):
    config: bytes
    is_async_default: bool


class ParentAttached(Fact, frozen=True, tag="attach"):
    """Another wait wants to know how this Flow ends."""

    parent: Parent


class SubFlowEnded(Fact, frozen=True, tag="sub"):
    execution_id: str
    index: int
    end: FlowEnd


class WaitWon(Fact, frozen=True, tag="won"):
    execution_id: str
    consumed: tuple[Consumed, ...] = ()


class ExecuteEntered(Fact, frozen=True, tag="exec"):
    """The Step goes to its Execute without a wait, or after its WaitFor failed."""

    execution_id: str
    wait_for_failed: bool = False


class MethodCompleted(Fact, frozen=True, tag="done"):
    """History of a method that ended well. What it wrote are the facts of the same commit before it."""

    execution_id: str
    source_id: str
    step_type: str
    method: Literal["wait_for", "execute"]
    attempt: int
    started: int
    at: int
    worker_id: str = ""
    output: bytes = b""  # the encoded result without what other facts hold


class MethodFailed(Fact, frozen=True, tag="mfail"):
    execution_id: str
    source_id: str
    step_type: str
    method: Literal["wait_for", "execute"]
    attempt: int
    started: int
    at: int
    failure: Failure
    step_input: Value = b""


class StepEnded(Fact, frozen=True, tag="end"):
    execution_id: str
    how: Literal["completed", "failed", "canceled"]


class LocalsKept(Fact, frozen=True, tag="locals"):
    execution_id: str
    values: tuple[tuple[str, Value], ...]


class AttributesWritten(Fact, frozen=True, tag="attr"):
    writes: tuple[tuple[str, Value | None], ...]
    indexes: tuple[IndexUse, ...] = ()


class SecretsWritten(Fact, frozen=True, tag="secret"):
    """Hard-delete Attributes. What is stored of a value is that there is one; see :func:`encode_fact`."""

    writes: tuple[tuple[str, Value | None], ...]


class MessagesPublished(Fact, frozen=True, tag="pub"):
    messages: tuple[tuple[str, str, Value], ...]  # channel, message id, value


class MessagesDeleted(Fact, frozen=True, tag="del"):
    messages: tuple[tuple[str, str], ...]  # channel, message id


class OutputAdded(Fact, frozen=True, tag="out"):
    output: Output


class CompletionAsked(Fact, frozen=True, tag="grace"):
    pass


class RpcApplied(Fact, frozen=True, tag="rpc"):
    """History of an RPC with effects. What it wrote are the facts of the same commit before it."""

    name: str
    at: int
    rpc_input: Value = b""
    output: bytes = b""
    worker_id: str = ""
    is_set_attributes: bool = False


class RpcAnswered(Fact, frozen=True, tag="ans"):
    request_id: str
    answer: RpcAnswer


class ExternallyPublished(Fact, frozen=True, tag="xpub"):
    """History of messages published by a client. The messages are the fact before it."""

    at: int


class ExternallyDeleted(Fact, frozen=True, tag="xdel"):
    at: int
    request_id: str = ""
    message_id: str = ""


class RunForked(Fact, frozen=True, tag="fork"):
    """Time travel: the facts before this one are those of an earlier run up to a point."""

    at: int
    previous_run_id: str
    previous_run_attempt: int
    target: int  # number of the last fact that was taken over
    message_count: int
    reason: str = ""


class ServedBy(Fact, frozen=True, tag="by"):
    worker_id: str


class StepLeft(Fact, frozen=True, tag="left"):
    """History of a method that had not ended when the run closed, in the same commit behind it."""

    execution_id: str
    at: int


class RunClosed(Fact, frozen=True, tag="close"):
    status: int
    at: int
    error_type: int = 0
    error_message: str = ""
    next_run_id: str = ""


AnyFact = (
    RunStarted
    | RunForked
    | StepScheduled
    | LocksTaken
    | AttemptBegun
    | AttemptGivenBack
    | AttemptFailed
    | RetryFell
    | HeartbeatKept
    | WaitBegun
    | TimerFired
    | SkipKept
    | ParentAttached
    | SubFlowEnded
    | ConfigChanged
    | WaitWon
    | ExecuteEntered
    | MethodCompleted
    | MethodFailed
    | StepEnded
    | LocalsKept
    | AttributesWritten
    | SecretsWritten
    | MessagesPublished
    | MessagesDeleted
    | OutputAdded
    | CompletionAsked
    | RpcApplied
    | RpcAnswered
    | ExternallyPublished
    | ExternallyDeleted
    | ServedBy
    | StepLeft
    | RunClosed
)

_encode = msgspec.msgpack.Encoder().encode


def encode_fact(fact: AnyFact) -> bytes:
    """A fact as it is stored. The values of hard-delete Attributes are left out: they have a table of their own."""
    if isinstance(fact, SecretsWritten):
        writes = tuple((key, None if value is None else b"") for key, value in fact.writes)
        fact = SecretsWritten(writes)
    elif isinstance(fact, RunStarted) and fact.secrets:
        fact = msgspec.structs.replace(fact, secrets=tuple((key, b"") for key, _ in fact.secrets))
    return _encode(fact)


decode_fact = msgspec.msgpack.Decoder(AnyFact).decode


def encode_state(state: RunState) -> bytes:
    """A state as it is stored: without the values of hard-delete Attributes."""
    if state.secrets:
        kept = {k: b"" if k in state.secrets else v for k, v in state.attributes.items()}
        state = msgspec.structs.replace(state, attributes=kept)
    return _encode(state)


decode_state = msgspec.msgpack.Decoder(RunState).decode
