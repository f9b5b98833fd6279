"""Settings of a session Flow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dex_agents._arguments import shown
from dex_agents._tracing import TracingOptions

_KIB = 1024
_DURATIONS = (
    "model_call_timeout",
    "tool_call_timeout",
    "heartbeat_timeout",
    "model_retry_interval",
    "model_retry_limit",
    "tool_retry_interval",
)
# A Worker takes tasks of 4 MiB, and one of them must hold a message or result with its history.
_COUNTS = {
    "model_attempts": (1, 1_000),
    "max_message_bytes": (1, 512 * _KIB),
    "max_result_bytes": (4 * _KIB, 1024 * _KIB),
    "max_queued_messages": (1, 1_000),
    "max_parallel_calls": (1, 1_000),
}


@dataclass(frozen=True)
class AgentSessionOptions:
    """How the sessions of one Flow behave. Durations are whole seconds.

    Attributes:
        model_call_timeout: Longest time of one ``RunModel`` attempt.
        tool_call_timeout: Longest time of one attempt of a tool, unless its call says otherwise.
            Many hours are fine.
        heartbeat_timeout: A Step without a sign of life for this long is taken as lost. Steps that
            run a model or a tool give one by themselves every third of it.
        model_attempts: Attempts of one ``RunModel`` before the turn fails.
        model_retry_interval: Delay before its second attempt; doubles up to ``model_retry_limit``.
            A provider's own retry-after goes first.
        model_retry_limit: Longest delay between its attempts.
        tool_retry_interval: Delay before the second attempt of a read or idempotent write; doubles.
        max_message_bytes: Largest user message, in bytes of UTF-8.
        max_result_bytes: Largest tool result as stored, compressed; one that is larger, or 16 times
            as large as JSON, is cut and says so. The results of one response share 2 MiB.
        max_queued_messages: User messages that may wait for their turn.
        max_parallel_calls: How many calls of one response, not counting approved ones, run at once;
            the others follow. It keeps a session from taking all slots of a Worker.
        tracing: OpenTelemetry spans of each turn; none by default.
        idle_lifetime: A session that waits for a message of its user this long is closed; ``None``
            keeps it open for ever. A turn that waits for a person is not idle. It counts from the
            end of a turn, by the setting of the Worker that serves then.

    Raises:
        TypeError, ValueError: A value has the wrong type or is out of its range; the text names it.
    """

    model_call_timeout: timedelta = timedelta(minutes=10)
    tool_call_timeout: timedelta = timedelta(hours=1)
    heartbeat_timeout: timedelta = timedelta(seconds=60)
    model_attempts: int = 5
    model_retry_interval: timedelta = timedelta(seconds=1)
    model_retry_limit: timedelta = timedelta(seconds=30)
    tool_retry_interval: timedelta = timedelta(seconds=1)
    max_message_bytes: int = 256 * _KIB
    max_result_bytes: int = 256 * _KIB
    max_queued_messages: int = 100
    max_parallel_calls: int = 16
    tracing: TracingOptions | None = None
    idle_lifetime: timedelta | None = None

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            check_duration(f"AgentSessionOptions.{name}", getattr(self, name))
        if self.idle_lifetime is not None:
            check_duration("AgentSessionOptions.idle_lifetime", self.idle_lifetime)
        for name, (least, most) in _COUNTS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"AgentSessionOptions.{name} must be an int, got {shown(value)}")
            if not least <= value <= most:
                raise ValueError(
                    f"AgentSessionOptions.{name} must be {least} to {most}, got {value}"
                )
        if self.tracing is not None and not isinstance(self.tracing, TracingOptions):
            raise TypeError(
                f"AgentSessionOptions.tracing must be TracingOptions or None, got {shown(self.tracing)}"
            )
        if self.model_retry_limit < self.model_retry_interval:
            raise ValueError(
                "AgentSessionOptions.model_retry_limit must not be shorter than "
                f"model_retry_interval, got {self.model_retry_limit} and "
                f"{self.model_retry_interval}"
            )


def check_duration(name: str, value: object) -> None:
    """Refuse what the SDK cannot carry: durations are whole seconds from 1 on.

    Raises:
        TypeError: It is no ``timedelta``.
        ValueError: It is no whole number of seconds, or below one second.
    """
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a timedelta, got {shown(value)}")
    seconds = value.total_seconds()
    if seconds < 1 or not seconds.is_integer() or seconds > 2**31 - 1:
        raise ValueError(f"{name} must be a whole number of seconds from 1 on, got {value}")
