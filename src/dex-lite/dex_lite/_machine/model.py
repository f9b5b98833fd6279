"""What a Flow's state is made of.

Every struct here is also a storage format (a snapshot is the encoded state): fields may be added with a default, never
removed or given another meaning. Times are Unix milliseconds, ``Value`` is an encoded ``dex.Value`` that nobody here
reads.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Value: TypeAlias = bytes
Method: TypeAlias = Literal["wait_for", "execute"]

START_SOURCE = "__start__"
TIMEOUT_HANDLER_STEP = "sys:timeout_handler"
"""Step type of the execution that waits for a Flow's timeout; nobody can schedule or cancel it."""
RUNNING, COMPLETED, FAILED, TERMINATED, CANCELED = 1, 2, 3, 5, 6
"""Numbers of ``dex.FlowStatus``."""
STEP_DECISION_FAILING_FLOW, CLIENT_API_FAILING_FLOW, WORKER_API_FAIL = 1, 2, 3
INVALID_USER_FLOW_CODE, FLOW_TIMEOUT = 4, 5
"""Numbers of ``dex.FlowErrorType``."""


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a failed attempt of a method is followed by another."""

    initial_ms: int = 1_000
    coefficient: float = 2.0
    maximum_ms: int = 100_000
    maximum_attempts: int = 0  # 0: no limit
    total_ms: int = 4 * 3_600_000

    def delay_ms(self, failed_attempts: int) -> int:
        """Delay after so many failed attempts."""
        try:
            grown = self.initial_ms * self.coefficient ** min(failed_attempts - 1, 64)
        except OverflowError:
            return self.maximum_ms
        return int(min(grown, self.maximum_ms))


class MethodOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one of a Step's two methods runs."""

    timeout_ms: int = 2 * 3_600_000
    retry: RetryPolicy = RetryPolicy()
    is_async: bool = False
    locks: tuple[str, ...] = ()
    load_maps: tuple[str, ...] = ()
    load_channels: tuple[str, ...] = ()
    load_channel_maps: tuple[str, ...] = ()


class StepOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of a Step execution, defaults filled in."""

    wait_for: MethodOptions = MethodOptions()
    execute: MethodOptions = MethodOptions()
    heartbeat_ms: int = 60_000
    skip_wait_for: bool = False
    proceed_when_wait_for_fails: bool = False
    failure_step_type: str = ""
    failure_options: StepOptions | None = None
    raw: bytes = b""  # the encoded dex.StepOptions all this came from

    def of(self, method: Method) -> MethodOptions:
        """The options of one method."""
        return self.wait_for if method == "wait_for" else self.execute


class Movement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Step to schedule."""

    step_type: str
    step_input: Value
    options: StepOptions = StepOptions()


class FlowTimeout(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens when a run has been open for too long."""

    after_ms: int
    policy: Literal["fail", "cancel", "handler"]
    handler: StepOptions = StepOptions()
    raw: bytes = b""  # the encoded dex.FlowTimeoutHandlerOptions


class IndexUse(msgspec.Struct, frozen=True):
    """An Attribute write that names the index in which the Attribute can be found from now on."""

    attribute: str
    name: str
    type: int  # of ``dex.IndexType``


class FlowStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run begins with, whoever starts it, and what a Flow retry begins with again."""

    flow_type: str
    step: Movement | None = None
    attributes: tuple[tuple[str, Value], ...] = ()
    indexes: tuple[IndexUse, ...] = ()
    secrets: tuple[tuple[str, Value], ...] = ()  # hard-delete Attributes
    config: bytes = b""
    is_async_default: bool = False
    delay_ms: int = 0
    timeout: FlowTimeout | None = None
    retry: RetryPolicy | None = None  # of the whole Flow; its ``total_ms`` does not count


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt failed."""

    detail: str
    error_type: str
    stack: str = ""
    attempt: int = 0
    is_delivered: bool = True  # a Worker had the task, or may have had it


class Recovery(msgspec.Struct, frozen=True):
    """What a recovery Step is told."""

    detail: str
    error_type: str


class Message(msgspec.Struct, frozen=True):
    """A message in a Channel."""

    message_id: str
    value: Value


class TimerCondition(msgspec.Struct, frozen=True):
    condition_id: str
    duration_ms: int


class ChannelCondition(msgspec.Struct, frozen=True):
    condition_id: str
    channel: str
    at_least: int | None = None
    at_most: int | None = None

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Fewest and most messages it takes; ``None`` is no limit."""
        if self.at_least is None and self.at_most is None:
            return 1, 1
        return self.at_least or 0, self.at_most


class SubFlowCondition(msgspec.Struct, frozen=True):
    condition_id: str
    flow_id: str


class Condition(msgspec.Struct, frozen=True):
    """What a Step waits for. Candidates are tried in order: timers, Channels, SubFlows; combinations in theirs."""

    kind: Literal["all", "any", "combination"]
    timers: tuple[TimerCondition, ...] = ()
    channels: tuple[ChannelCondition, ...] = ()
    combinations: tuple[tuple[str, ...], ...] = ()
    raw: bytes = b""
    sub_flows: tuple[SubFlowCondition, ...] = ()


class Attempt(msgspec.Struct):
    """The live attempt of a method."""

    token: str
    worker_id: str
    started_ms: int


class TimerState(msgspec.Struct):
    due_ms: int
    is_fired: bool = False
    is_skipped: bool = False  # a client fired it


class KeptSkip(msgspec.Struct, frozen=True):
    """A client's wish to fire a timer that does not exist yet: by its id, or by its place."""

    execution_id: str
    condition_id: str
    index: int = -1

    def is_of(self, index: int, timer: TimerCondition) -> bool:
        """Whether this is the timer that is meant."""
        return timer.condition_id == self.condition_id if self.condition_id else index == self.index


class Parent(msgspec.Struct, frozen=True):
    """Where a SubFlow's end is waited for: a run, its Step execution, and the place in its condition."""

    run_id: str
    execution_id: str
    index: int


class Output(msgspec.Struct, frozen=True):
    step_type: str
    execution_id: str
    value: Value


class FlowEnd(msgspec.Struct, frozen=True):
    """How a Flow ended, as one that waits for it is told."""

    status: int
    outputs: tuple[Output, ...] = ()  # only of a completed one
    error_type: int = 0
    error_message: str = ""


class Consumed(msgspec.Struct, frozen=True):
    """Messages that a won wait took, by position of the channel condition."""

    index: int
    channel: str
    values: tuple[Value, ...]


class StepExecution(msgspec.Struct):
    """A Step execution that has not ended."""

    execution_id: str
    source_id: str
    movement: Movement
    phase: Literal["wait_for", "waiting", "execute"]
    scheduled_ms: int
    has_locks: bool = False
    attempt: Attempt | None = None
    attempts_used: int = 0  # of this method, the live one included
    first_attempt_ms: int = 0
    retry_at_ms: int = 0  # not before; 0: nothing is planned
    half_closes: int = 0  # times the live attempt number came back from a stream that closed
    heartbeat: Value | None = None
    failure: Failure | None = None  # last one of this method
    delivered_failure: Failure | None = None  # last one that a Worker may have caused
    recovery: Recovery | None = None
    condition: Condition | None = None
    timers: list[TimerState] = msgspec.field(default_factory=list)
    consumed: list[Consumed] = msgspec.field(default_factory=list)
    sub_flow_ends: list[FlowEnd | None] = msgspec.field(default_factory=list)  # by place
    has_won: bool = False
    wait_for_failed: bool = False
    step_locals: dict[str, Value] = msgspec.field(default_factory=dict)
    worker_id: str = ""  # that served it last

    @property
    def step_type(self) -> str:
        return self.movement.step_type

    @property
    def is_timeout(self) -> bool:
        """It is the wait for the Flow's timeout, or the handler of it: no Step of the user's."""
        return self.movement.step_type == TIMEOUT_HANDLER_STEP

    @property
    def method(self) -> Method:
        return "wait_for" if self.phase == "wait_for" else "execute"

    @property
    def method_options(self) -> MethodOptions:
        return self.movement.options.of(self.method)

    @property
    def is_ready(self) -> bool:
        """It wants a Worker now, or as soon as its locks are free."""
        return self.phase != "waiting" and self.attempt is None and not self.retry_at_ms

    @property
    def may_begin(self) -> bool:
        """It is ready and has all locks that its method needs."""
        return self.is_ready and (self.has_locks or not self.method_options.locks)


class RpcAnswer(msgspec.Struct, frozen=True):
    """The stored answer of a transactional or locked RPC."""

    fingerprint: str
    output: Value


class RunState(msgspec.Struct):
    """One run of a Flow."""

    flow_id: str
    run_id: str
    flow_type: str
    request_id: str
    start_ms: int
    config: bytes = b""
    status: int = RUNNING
    close_ms: int = 0
    error_type: int = 0
    error_message: str = ""
    is_async_default: bool = False
    attributes: dict[str, Value] = msgspec.field(default_factory=dict)
    indexed: dict[str, str] = msgspec.field(default_factory=dict)  # Attribute to index, as written
    secrets: dict[str, bool] = msgspec.field(default_factory=dict)  # hard-delete Attributes
    channels: dict[str, list[Message]] = msgspec.field(default_factory=dict)
    steps: dict[str, StepExecution] = msgspec.field(default_factory=dict)
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    outputs: list[Output] = msgspec.field(default_factory=list)
    is_completing: bool = False  # a graceful completion was asked for
    rpc_answers: dict[str, RpcAnswer] = msgspec.field(default_factory=dict)
    deletions_done: dict[str, bool | str] = msgspec.field(
        default_factory=dict
    )  # message by request
    fact_count: int = 0
    last_event: int = 0  # number of the last fact that is an event of the history
    message_count: int = 0  # messages ever published, for their ids
    worker_id: str = ""  # the Worker that served the Flow last
    run_attempt: int = 1
    first_run_id: str = ""  # of a chain of Flow retries; empty if this is it
    parents: list[Parent] = msgspec.field(default_factory=list)  # that wait for this Flow's end
    kept_skips: list[KeptSkip] = msgspec.field(default_factory=list)
    next_run_id: str = ""  # the Flow retry that follows this closed run
    timeout: FlowTimeout | None = None
    again: FlowStart | None = None  # what a Flow retry begins with; only with a retry policy

    @property
    def is_open(self) -> bool:
        return self.status == RUNNING

    @property
    def has_user_steps(self) -> bool:
        """Whether a Step of the user's is open."""
        return any(not step.is_timeout for step in self.steps.values())

    def held_locks(self) -> set[str]:
        """Attribute keys that a Step's method holds. RPC locks are the engine's, they do not outlive it."""
        return {
            key
            for step in self.steps.values()
            if step.has_locks
            for key in step.method_options.locks
        }

    def deleted_by(self, request_id: str) -> bool | str | None:
        """Which message a client's request deleted; ``True`` if an earlier release did not keep that."""
        return self.deletions_done.get(request_id) if request_id else None

    def has_ended(self, step_type: str, number: int) -> bool:
        """Whether that execution was scheduled once and is over."""
        return (
            0 < number <= self.counters.get(step_type, 0)
            and f"{step_type}-{number}" not in self.steps
        )
