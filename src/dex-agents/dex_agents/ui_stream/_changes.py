"""What changes in the picture of one turn: the form between live events and any UI protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dex_agents._contract import Json, TokenUsage

PartKind: TypeAlias = Literal["text", "reasoning"]
TurnEnding: TypeAlias = Literal["completed", "failed", "cancelled"]
CANCELLED = "cancelled"
"""Status of a call whose turn ended before the call did."""


@dataclass(frozen=True)
class UiInterrupt:
    """Something that a person is asked.

    Attributes:
        interrupt_id: Hand it to ``resolve_interrupt`` or ``answer_question``.
        kind: As in ``PendingInterrupt.kind``.
        call_id: The call that waits, as the stream names it.
        deadline_ms: Unix time in milliseconds when it expires, or ``None``.
    """

    interrupt_id: str
    kind: str
    call_id: str
    tool_name: str
    arguments: Json
    arguments_digest: str = ""
    hint: str = ""
    payload: Json = None
    response_schema: Json = None
    deadline_ms: int | None = None


@dataclass(frozen=True)
class TurnBegan:
    """Always the first change. ``text`` is the user's message."""

    turn_id: str
    text: str = ""


@dataclass(frozen=True)
class ModelCallBegan:
    """Model calls of a turn are numbered from 1."""

    number: int


@dataclass(frozen=True)
class ModelCallReplaced:
    """Everything since ``ModelCallBegan(number)`` is void: the same call is made again.

    Attributes:
        part_ids, call_ids: What it had shown.
    """

    number: int
    part_ids: tuple[str, ...]
    call_ids: tuple[str, ...]


@dataclass(frozen=True)
class ModelCallEnded:
    """Nothing more belongs to this model call but results of its tools."""

    number: int


@dataclass(frozen=True)
class PartBegan:
    """A stretch of text of one agent begins."""

    part_id: str
    kind: PartKind
    agent_name: str


@dataclass(frozen=True)
class PartGrew:
    """``text`` is never empty."""

    part_id: str
    kind: PartKind
    text: str


@dataclass(frozen=True)
class PartEnded:
    """The stretch is complete."""

    part_id: str
    kind: PartKind


@dataclass(frozen=True)
class CallRequested:
    """The model asked for a tool call.

    Attributes:
        call_id: The call's id; one that a turn uses again has ``#2``, ``#3`` … behind it.
    """

    call_id: str
    tool_name: str
    agent_name: str
    arguments: Json


@dataclass(frozen=True)
class CallStarted:
    """A tool begins to run, once for each attempt.

    Attributes:
        arguments: What it runs with.
        is_edited: Whether these are others than before, because a person has changed them.
        interrupt_id: The approval that let it run, or empty.
    """

    call_id: str
    tool_name: str
    arguments: Json
    is_edited: bool = False
    interrupt_id: str = ""


@dataclass(frozen=True)
class CallFinished:
    """A call has its result; a later one of the same call replaces it.

    Attributes:
        status: A ``ToolCallStatus``, or :data:`CANCELLED`.
        interrupt_id: The interrupt whose answer or end was the result, or empty.
        is_again: Whether an earlier result was shown.
    """

    call_id: str
    tool_name: str
    status: str
    output: Json = None
    error: str = ""
    interrupt_id: str = ""
    is_again: bool = False


@dataclass(frozen=True)
class InterruptAsked:
    """A person is asked something, and may answer at once."""

    interrupt: UiInterrupt


@dataclass(frozen=True)
class InterruptClosed:
    """It takes no answer any more.

    Attributes:
        outcome: ``"answered"``, ``"rejected"`` or ``"cancelled"``.
    """

    interrupt: UiInterrupt
    outcome: str


@dataclass(frozen=True)
class TurnPaused:
    """Nothing goes on before a person answers one of these."""

    interrupts: tuple[UiInterrupt, ...]
    usage: TokenUsage


@dataclass(frozen=True)
class TurnResumed:
    """An answer was taken after :class:`TurnPaused`."""


@dataclass(frozen=True)
class TurnEnded:
    """Always the last change, and stored before it is shown.

    Attributes:
        error: Why it failed or was cancelled; may name things of the application.
    """

    turn_id: str
    how: TurnEnding
    text: str = ""
    error: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True)
class Notice:
    """Something that happens beside the answer, such as ``compaction_started``."""

    name: str
    data: Mapping[str, Json]


Change: TypeAlias = (
    TurnBegan
    | ModelCallBegan
    | ModelCallReplaced
    | ModelCallEnded
    | PartBegan
    | PartGrew
    | PartEnded
    | CallRequested
    | CallStarted
    | CallFinished
    | InterruptAsked
    | InterruptClosed
    | TurnPaused
    | TurnResumed
    | TurnEnded
    | Notice
)
"""What an event changes in the picture of a turn."""
