"""What is stored of a session, as JSON that grows by fields with defaults only.

``from_json`` of each type takes what any earlier release wrote: absent fields get their default,
unknown ones are left out. ``to_json`` shares nested values instead of copying them, as they are
encoded at once.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from dex_agents._contract import (
    AgentMessage,
    HistorySummary,
    InterruptKind,
    InterruptRequest,
    Json,
    MessageRole,
    RequestedToolCall,
    TokenUsage,
)
from dex_agents._effects import ToolEffect
from dex_agents._media.reference import reference_to_json, references_from_json
from dex_agents._session.live_turns import live_turns

MESSAGE_IDS_KEPT = 64
_T = TypeVar("_T")


def _find_names(cls: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(cls))


_names: Callable[[Any], tuple[str, ...]] = functools.cache(_find_names)


def _known(cls: type[_T], data: Mapping[str, Any]) -> _T:
    return cls(**{name: data[name] for name in _names(cls) if name in data})


def _shallow(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _names(type(value))}


@dataclass
class LastTurn:
    """How a finished turn ended."""

    turn_id: str
    final_text: str = ""
    error: str = ""
    is_cancelled: bool = False
    is_by_close: bool = False
    output: Json = None
    agents: list[str] = field(default_factory=list)  # whose model was asked last, for the graph

    def to_json(self) -> Json:
        """For storage."""
        return _shallow(self)

    @classmethod
    def from_json(cls, data: Json) -> LastTurn:
        """From storage."""
        return _known(cls, data)


@dataclass
class Header:
    """Where a session stands. It goes along with every task, so nothing in it may grow."""

    turn_id: str = ""  # of the open turn; empty between turns
    turns_started: int = 0
    next_sequence: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    message_digests: list[str] = field(default_factory=list)  # newest last; id.content
    # Numbers of the turns that took them. As long, or shorter at its front: an older release names
    # none, and drops those that it finds.
    message_turns: list[int] = field(default_factory=list)
    summarized_turns: int = 0  # the model reads a summary instead of the turns up to this one
    history_bytes: int | None = None  # of what the model reads; None if not known
    cancelled_turn: str = ""  # the newest turn that was ended by a cancel
    removed: list[list[int]] = field(default_factory=list)  # ranges of turns, by rewinds
    forgotten_turns: int = 0  # the pages up to this one are gone, see retained_turns

    def to_json(self) -> Json:
        """For storage."""
        return {**_shallow(self), "usage": _shallow(self.usage)}

    @classmethod
    def from_json(cls, data: Json) -> Header:
        """From storage."""
        header = _known(cls, data)
        header.usage = _known(TokenUsage, data.get("usage") or {})
        if "forgotten_turns" not in data:
            # An older release did not say, so no page behind the summary is counted on.
            header.forgotten_turns = header.summarized_turns
        return header

    @property
    def finished_turns(self) -> int:
        """Number of the newest finished turn, whether it still counts or not."""
        return self.turns_started - bool(self.turn_id)

    def live_turns(self, first: int = 1) -> list[int]:
        """The finished turns from ``first`` on that no rewind has removed."""
        return live_turns(self.removed, first, self.finished_turns)

    def remember_message(self, message: Mapping[str, Json], turn: int) -> bool:
        """Remember a message by its id and the turn that takes it; ``False`` if it was there."""
        if self.content_of(message["id"]) is not None:
            return False
        entry = f"{message_digest(message['id'])}.{content_digest(message)}"
        self.message_digests = [*self.message_digests, entry][-MESSAGE_IDS_KEPT:]
        self.message_turns = [*self.message_turns, turn][-MESSAGE_IDS_KEPT:]
        return True

    def turns_of_messages(self) -> dict[str, int]:
        """Which turn took each message, by :func:`message_digest` of its id."""
        newest = zip(reversed(self.message_digests), reversed(self.message_turns), strict=False)
        return {entry.partition(".")[0]: turn for entry, turn in newest}

    def content_of(self, message_id: str) -> str | None:
        """:func:`content_digest` of the message with this id, ``None`` if there was none.

        Empty if an older release remembered it.
        """
        known = dict(entry.partition(".")[::2] for entry in self.message_digests)
        return known.get(message_digest(message_id))


def turn_number(turn_id: str) -> int:
    """The number in a turn's id, from 1."""
    return int(turn_id.removeprefix("t"))


def message_digest(message_id: str) -> str:
    """A short name for a message id, which may be long and may hold any character."""
    data = message_id.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:16]


def content_digest(message: Mapping[str, Json]) -> str:
    """Tells apart messages of one id; short, as the header holds many."""
    content = json.dumps([message["text"], message.get("images") or []])
    return message_digest(content)[:6]


@dataclass
class FinishedCall:
    """What the note of a failed turn says about one call."""

    tool_name: str
    call_id: str
    status: str
    text: str = ""

    def to_json(self) -> Json:
        """For storage."""
        return _shallow(self)

    @classmethod
    def from_json(cls, data: Json) -> FinishedCall:
        """From storage."""
        return _known(cls, data)


@dataclass
class OpenCall:
    """What must be known of a call to end its turn while it runs."""

    tool_name: str
    call_id: str
    effect: str

    def to_json(self) -> Json:
        """For storage."""
        return _shallow(self)


@dataclass
class TurnState:
    """The open turn, apart from the runner's own state, which may be large.

    The Step that ends a failed turn loads this and nothing large, so that it always can.
    """

    user_message: Json
    rounds: int = 0  # responses with calls so far
    has_run_state: bool = False
    model_calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    call_ids: dict[str, int] = field(default_factory=dict)  # how often each id was used
    finished: list[FinishedCall] = field(default_factory=list)
    started_ms: int = 0
    open_calls: list[OpenCall] = field(default_factory=list)  # of the newest response
    has_context: bool = False  # whether these calls have a tool context
    steered: list[Json] = field(default_factory=list)  # messages that the turn has taken in
    agents: list[str] = field(default_factory=list)  # whose model was asked last, for the graph

    def to_json(self) -> Json:
        """For storage."""
        return {
            **_shallow(self),
            "usage": _shallow(self.usage),
            "finished": [_shallow(call) for call in self.finished],
            "open_calls": [_shallow(call) for call in self.open_calls],
        }

    def open_round(self, turn_id: str) -> Round:
        """The response whose calls were not yet read by a model."""
        if not self.open_calls:
            return Round(turn_id)
        batch = f"{turn_id}.{self.rounds}"
        return Round(turn_id, batch, len(self.open_calls), self.has_context)

    def name_call(self, call_id: str) -> str:
        """A name for a call that no other call of the turn has: its id, or ``id#2``, ``id#3`` …"""
        name = call_id
        while True:
            uses = self.call_ids[name] = self.call_ids.get(name, 0) + 1
            if uses == 1:
                return name
            # Counted like an id, because a model may choose just this text as an id later.
            name = f"{name}#{uses}"

    @classmethod
    def from_json(cls, data: Json) -> TurnState:
        """From storage."""
        state = _known(cls, data)
        state.usage = _known(TokenUsage, data.get("usage") or {})
        state.finished = [_known(FinishedCall, item) for item in data.get("finished") or []]
        state.open_calls = [_known(OpenCall, item) for item in data.get("open_calls") or []]
        return state


def _interrupt_to_json(interrupt: InterruptRequest | None) -> Json:
    return None if interrupt is None else {**_shallow(interrupt), "kind": interrupt.kind.value}


def _interrupt_from_json(data: Json) -> InterruptRequest | None:
    if data is None:
        return None
    return _known(InterruptRequest, {**data, "kind": InterruptKind(data["kind"])})


@dataclass(frozen=True)
class CallTask:
    """Input of every Step of one call."""

    turn_id: str
    batch: str
    index: int
    call: RequestedToolCall
    idempotency_key: str
    has_context: bool = False
    calls: int = 1  # of the batch
    deadline_ms: int | None = None  # of the interrupt
    interrupt: InterruptRequest | None = None  # what the call waits for now, if no policy asked it
    waits: int = 0  # how often it has waited since its tool first ran
    answer: Json = None  # to what the tool itself asked for, see DeferredToolExecution
    edited_arguments: Mapping[str, Json] | None = None  # of the person who approved
    following: tuple[CallTask, ...] = ()  # start one after the other when this one has ended

    @property
    def interrupt_id(self) -> str:
        """Name of the interrupt that the call waits for; never used twice."""
        key = f"{self.batch}.{self.index}"
        return f"{key}.w{self.waits}" if self.waits else key

    def to_json(self) -> Json:
        """For storage."""
        return {
            "turn_id": self.turn_id,
            "batch": self.batch,
            "index": self.index,
            "call": {
                **_shallow(self.call),
                "arguments": dict(self.call.arguments),
                "interrupt": _interrupt_to_json(self.call.interrupt),
            },
            "idempotency_key": self.idempotency_key,
            "has_context": self.has_context,
            "calls": self.calls,
            "deadline_ms": self.deadline_ms,
            "interrupt": _interrupt_to_json(self.interrupt),
            "waits": self.waits,
            "answer": self.answer,
            "following": [task.to_json() for task in self.following],
            "edited_arguments": self.edited_arguments,
        }

    @classmethod
    def from_json(cls, data: Json) -> CallTask:
        """From storage."""
        task = {name: data[name] for name in _names(cls) if name in data}
        call = dict(data["call"])
        call["effect"] = ToolEffect(call["effect"])
        call["interrupt"] = _interrupt_from_json(call.get("interrupt"))
        task["interrupt"] = _interrupt_from_json(data.get("interrupt"))
        task["following"] = tuple(cls.from_json(item) for item in data.get("following") or ())
        task["call"] = _known(RequestedToolCall, call)
        return cls(**task)


@dataclass(frozen=True)
class Round:
    """Input of ``RunModel`` and ``ResumeTurn``: which response's calls come before it."""

    turn_id: str
    batch: str = ""  # empty: no calls before it
    calls: int = 0
    has_context: bool = False
    summarized_turns: int = 0  # read the summary of these, and only later pages
    removed: list[list[int]] = field(default_factory=list)  # pages that are not to be read

    @property
    def pages(self) -> list[int] | None:
        """The turns whose pages the model reads; ``None``: all there are."""
        if not self.summarized_turns and not self.removed:
            return None
        # Page 0 holds what the session was given at its creation.
        first = self.summarized_turns + 1 if self.summarized_turns else 0
        return live_turns(self.removed, first, turn_number(self.turn_id) - 1)

    def to_json(self) -> Json:
        """For storage."""
        return _shallow(self)

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
    # approved, message, payload, arguments; or value; or credential (reference, state)
    answer: dict[str, Json] | None = None
    payload: Json = None
    response_schema: Json = None
    node_path: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether it still waits for an answer."""
        return self.answer is None

    def to_json(self) -> Json:
        """For storage."""
        return _shallow(self)

    @classmethod
    def from_json(cls, data: Json) -> StoredInterrupt:
        """From storage."""
        return _known(cls, data)


def arguments_digest(tool_name: str, arguments: Mapping[str, Json]) -> str:
    """SHA-256 of a call's name and arguments in canonical form.

    It holds an approver to what was shown.
    """
    canonical = json.dumps([tool_name, dict(arguments)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def summary_to_json(summary: HistorySummary) -> Json:
    """For storage."""
    return {"text": summary.text, "read_bytes": summary.read_bytes}


def summary_from_json(data: Json) -> HistorySummary:
    """From storage."""
    return HistorySummary(str(data["text"]), read_bytes=data.get("read_bytes"))


def message_to_json(message: AgentMessage) -> Json:
    """For storage."""
    return {**_shallow(message), "images": [reference_to_json(i) for i in message.images]}


def message_from_json(data: Json) -> AgentMessage:
    """From storage."""
    special = {
        "role": MessageRole(data["role"]),
        "images": references_from_json(data.get("images")),
    }
    return _known(AgentMessage, {**data, **special})
