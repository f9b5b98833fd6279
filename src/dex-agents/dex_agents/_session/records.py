"""What is stored of a session, as JSON that grows by fields with defaults only.

``from_json`` of each type takes what any earlier release wrote: absent fields get their default, unknown ones are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from dex_agents._contract import (
    AgentMessage,
    Json,
    MessageRole,
    RequestedToolCall,
    TokenUsage,
    ToolCallRecord,
    ToolCallStatus,
)
from dex_agents._effects import ToolEffect

MESSAGE_IDS_KEPT = 64
_T = TypeVar("_T")


def _known(cls: type[_T], data: Mapping[str, Any]) -> _T:
    names = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: value for key, value in data.items() if key in names})


@dataclass
class LastTurn:
    """How the newest finished turn ended."""

    turn_id: str
    final_text: str = ""
    error: str = ""


@dataclass
class Header:
    """Where a session stands."""

    turn_id: str = ""  # of the open turn; empty between turns
    turns_started: int = 0
    next_sequence: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    last_turn: LastTurn | None = None
    message_ids: list[str] = field(default_factory=list)  # newest last

    def to_json(self) -> Json:
        """For storage."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Header:
        """From storage."""
        header = _known(cls, data)
        header.usage = _known(TokenUsage, data.get("usage") or {})
        last = data.get("last_turn")
        header.last_turn = _known(LastTurn, last) if last else None
        return header

    def remember_message(self, message_id: str) -> bool:
        """Remember a message id; ``False`` if it was there."""
        if message_id in self.message_ids:
            return False
        self.message_ids = [*self.message_ids, message_id][-MESSAGE_IDS_KEPT:]
        return True


@dataclass
class FinishedCall:
    """What the note of a failed turn says about one call."""

    tool_name: str
    call_id: str
    status: str
    text: str = ""


@dataclass
class TurnState:
    """The open turn."""

    user_message: Json
    run_state: Json = None
    rounds: int = 0  # responses with calls so far
    model_calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    call_ids: dict[str, int] = field(default_factory=dict)  # how often each id was used
    finished: list[FinishedCall] = field(default_factory=list)

    def to_json(self) -> Json:
        """For storage."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> TurnState:
        """From storage."""
        state = _known(cls, data)
        state.usage = _known(TokenUsage, data.get("usage") or {})
        state.finished = [_known(FinishedCall, item) for item in data.get("finished") or []]
        return state


@dataclass(frozen=True)
class CallTask:
    """Input of every Step of one call."""

    turn_id: str
    batch: str
    index: int
    call: RequestedToolCall
    idempotency_key: str
    has_context: bool = False
    deadline_s: int | None = None  # of the approval

    def to_json(self) -> Json:
        """For storage."""
        return {
            "turn_id": self.turn_id,
            "batch": self.batch,
            "index": self.index,
            "call": {**asdict(self.call), "arguments": dict(self.call.arguments)},
            "idempotency_key": self.idempotency_key,
            "has_context": self.has_context,
            "deadline_s": self.deadline_s,
        }

    @classmethod
    def from_json(cls, data: Json) -> CallTask:
        """From storage."""
        task = {key: data[key] for key in data if key in {f.name for f in fields(cls)}}
        call = dict(data["call"])
        call["effect"] = ToolEffect(call["effect"])
        task["call"] = _known(RequestedToolCall, call)
        return cls(**task)


@dataclass(frozen=True)
class Round:
    """Input of ``RunModel`` and ``ResumeTurn``: which response's calls come before it."""

    turn_id: str
    batch: str = ""  # empty: no calls before it
    calls: int = 0
    has_context: bool = False

    def to_json(self) -> Json:
        """For storage."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Round:
        """From storage."""
        return _known(cls, data)


@dataclass
class StoredInterrupt:
    """Something that a person is asked."""

    interrupt_id: str
    turn_id: str
    kind: str
    tool_name: str
    call_id: str
    arguments: dict[str, Json]
    agent_name: str = ""
    hint: str = ""
    requested_ms: int = 0
    deadline_ms: int | None = None
    answer: dict[str, Json] | None = None  # approved, message

    @property
    def is_pending(self) -> bool:
        """Whether it still waits for an answer."""
        return self.answer is None

    def to_json(self) -> Json:
        """For storage."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> StoredInterrupt:
        """From storage."""
        return _known(cls, data)


def arguments_digest(tool_name: str, arguments: Mapping[str, Json]) -> str:
    """SHA-256 of a call's name and arguments in canonical form, so that an approver can be held to what was shown."""
    canonical = json.dumps([tool_name, dict(arguments)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def record_to_json(record: ToolCallRecord) -> Json:
    """For storage."""
    return asdict(record)


def record_from_json(data: Json) -> ToolCallRecord:
    """From storage."""
    return _known(ToolCallRecord, {**data, "status": ToolCallStatus(data["status"])})


def message_to_json(message: AgentMessage) -> Json:
    """For storage."""
    data = asdict(message)
    data["framework_item"] = message.framework_item
    return data


def message_from_json(data: Json) -> AgentMessage:
    """From storage."""
    return _known(AgentMessage, {**data, "role": MessageRole(data["role"])})
