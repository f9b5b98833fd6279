"""What a tool source is: something that lists tools and runs their calls in Steps of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

from dex_agents._arguments import check_fields, shown
from dex_agents._contract import DeferredToolExecution, Json, ToolExecutionResult
from dex_agents._effects import ToolEffect
from dex_agents._session.options import check_duration

SOURCE_NAME_CHARACTERS = 200
"""Of the name of a tool source, which open calls are stored with."""
_MOST_ATTEMPTS = 2**31 - 1


@dataclass(frozen=True)
class SourceTool:
    """One tool as the model is to see it.

    Attributes:
        name: What the model calls.
        description: What it does, for the model.
        input_schema: JSON Schema of the arguments, an object's.
    """

    name: str
    description: str
    input_schema: Mapping[str, Json]

    def __post_init__(self) -> None:
        check_fields(self, {"name": str, "description": str, "input_schema": Mapping})


@dataclass(frozen=True)
class SourceToolCall:
    """How one call of a source's tool is carried out.

    Attributes:
        effect: What the call does outside the session.
        requires_approval: Whether a person approves it first; ``None`` takes the effect's default.
        is_ordered_write: Whether it keeps the model's order among the writes of its response: one
            runs at a time, and once one has not succeeded the later ones are skipped.
        hint: Text for the person who approves, or empty.
        data: The source's own JSON, handed back as ``DeferredToolExecution.framework_data``.
    """

    effect: ToolEffect
    requires_approval: bool | None = None
    is_ordered_write: bool = False
    hint: str = ""
    data: Json = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            {
                "effect": ToolEffect,
                "requires_approval": (bool, type(None)),
                "is_ordered_write": bool,
                "hint": str,
            },
        )

    @property
    def needs_approval(self) -> bool:
        """The decision with the effect's default filled in."""
        if self.requires_approval is None:
            return self.effect.requires_approval_by_default
        return self.requires_approval


@dataclass(frozen=True)
class ToolCallStepOptions:
    """Time limits and retries of the Step of one tool. Durations are whole seconds.

    Attributes:
        timeout: Longest time of one attempt; ``None`` takes the session's setting.
        maximum_attempts: Attempts of one call; ``None`` takes the effect's number. More than one
            only for a read or an idempotent write.
        retry_interval: Delay before the second attempt; doubles. ``None``: the session's setting.
        maximum_retry_interval: Longest delay between attempts, or ``None``.

    Raises:
        TypeError, ValueError: A value has the wrong type or is out of its range.
    """

    timeout: timedelta | None = None
    maximum_attempts: int | None = None
    retry_interval: timedelta | None = None
    maximum_retry_interval: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("timeout", "retry_interval", "maximum_retry_interval"):
            if (value := getattr(self, name)) is not None:
                check_duration(f"ToolCallStepOptions.{name}", value)
        attempts = self.maximum_attempts
        if attempts is not None and (
            isinstance(attempts, bool)
            or not isinstance(attempts, int)
            or not 1 <= attempts <= _MOST_ATTEMPTS
        ):
            raise ValueError(
                f"ToolCallStepOptions.maximum_attempts must be an int from 1 on, got {shown(attempts)}"
            )


@runtime_checkable
class ToolSource(Protocol):
    """Something outside the agent that offers tools. One object serves all sessions of a process.

    A source decides how its calls are carried out; a runner lists it before every model call, puts
    every call off, reads too, and hands it back to the source in a Step of its own.
    """

    @property
    def source_name(self) -> str:
        """A stable name, unique among the sources of a Flow; open calls are stored with it."""

    @property
    def declared_tool_names(self) -> Collection[str]:
        """Names known before anything is listed; empty if the source cannot tell."""

    async def list_tools(self) -> Sequence[SourceTool]:
        """What the source offers now. May fail; it then offers nothing in this model call."""

    def cached_tools(self) -> Sequence[SourceTool]:
        """Every tool that this object has listed so far, newest form, without asking anybody."""

    def build_tool_call(self, tool_name: str, arguments: Mapping[str, Json]) -> SourceToolCall:
        """Decide how a call is carried out. Stores nothing and may be repeated.

        Raises:
            ToolExecutionError: The call is refused; the model reads the text, nothing runs.
        """

    def tool_call_step_options(self, tool_name: str) -> ToolCallStepOptions:
        """Time limits and retries of the tool's Step."""

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Run one call once, in its Step.

        A call that only starts work elsewhere has no result, and nobody asks for it later.

        Raises:
            ToolExecutionError: A failure for the model; recorded as ``failed``, never retried.
            ToolNotStartedError: Nothing has left this process.
            ToolOutcomeUnknownError: Nobody can say what the call did, or it has started work whose
                end nobody waits for.
            Exception: Fails the attempt: the effect decides what happens.
        """
