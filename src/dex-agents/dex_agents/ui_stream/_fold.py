"""From a session's live events to the changes of one turn's picture. No input or output.

What a crash repeats is decided here, once for all protocols:

- A model call that is made again replaces all that its earlier attempts have shown.
- A tool that runs again keeps its call; a second result replaces the first one.
- Events of an attempt that has a successor, and events that came twice, count for nothing.
- The turn's end is held back until it is stored, as the attempt that told it may have died.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dex_agents._arguments import check_instance, shown
from dex_agents._contract import Json, TokenUsage, ToolCallStatus
from dex_agents._session.checks import is_turn_id
from dex_agents._session.records import turn_number
from dex_agents._session.views import AgentEvent, FinishedTurn
from dex_agents.ui_stream._changes import (
    CANCELLED,
    CallFinished,
    CallRequested,
    CallStarted,
    Change,
    InterruptAsked,
    InterruptClosed,
    ModelCallBegan,
    ModelCallEnded,
    ModelCallReplaced,
    Notice,
    PartBegan,
    PartEnded,
    PartGrew,
    PartKind,
    TurnBegan,
    TurnEnded,
    TurnEnding,
    TurnPaused,
    TurnResumed,
    UiInterrupt,
)

_OF_MODEL = frozenset(
    {
        "turn_started",
        "model_call_started",
        "model_call_finished",
        "text_delta",
        "reasoning_delta",
        "tool_call_requested",
    }
)
_ENDINGS: dict[str, TurnEnding] = {
    "turn_completed": "completed",
    "turn_failed": "failed",
    "turn_cancelled": "cancelled",
}
_BEGINNINGS = frozenset({"turn_started", "compaction_started"})
_NOTICES = frozenset({"compaction_started", "compaction_finished", "compaction_failed"})


@dataclass
class _Call:
    """A call of the newest model call."""

    call_id: str
    tool_name: str
    arguments: Json
    interrupt: UiInterrupt | None = None
    is_finished: bool = False


class TurnFold:
    """The picture of one turn, grown event by event.

    Equal events give equal changes, whenever and however often they are read.

    Args:
        turn_id: The turn, such as ``t3``.

    Raises:
        TypeError, ValueError: It is none.

    Attributes:
        is_cut: Whether the turn's first events are gone, so that others have seen more of it. A
            guess where they were those of a summary, or of attempts that died: see ``first``.
        first: Mark of the event that began the picture; empty until then, or if none is left.
        has_ended: Whether there are no more changes.
        is_end_lost: Whether nobody can tell any more how the turn ended.
    """

    def __init__(self, turn_id: str) -> None:
        check_instance("turn_id", turn_id, str, "such as 't1'")
        if not is_turn_id(turn_id):
            raise ValueError(f"turn_id must be like 't12', got {shown(turn_id)}")
        self.turn_id = turn_id
        self.is_cut = False
        self.first = ""
        self.has_ended = False
        self.is_end_lost = False
        self._number = turn_number(turn_id)
        self._has_begun = False
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}
        self._belongs_to: dict[str, int] = {}
        self._model_step = ""
        self._attempt = 0
        self._model_calls = 0
        self._is_model_call_open = False
        self._expected_calls: int | None = None
        self._usage: dict[int, TokenUsage] = {}
        self._parts = 0
        self._open_parts: dict[str, tuple[str, PartKind]] = {}
        self._shown_parts: list[str] = []
        self._has_shown_text = False
        self._calls: dict[str, _Call] = {}
        self._uses: dict[str, int] = {}
        self._closed_interrupts: set[str] = set()
        self._is_paused = False
        self._ending: TurnEnded | None = None
        self._is_over = False  # as a later turn has begun
        self._notices: dict[str, str] = {}  # newest of each Step execution

    def add(self, event: AgentEvent) -> list[Change]:
        """What an event changes, in order."""
        number = turn_number(event.turn_id)
        if self.has_ended or number < self._number:
            return []
        if number > self._number:
            # A later turn begins only behind the end of this one.
            self._is_over = True
            return [] if self._ending is None else self._end(self._ending)
        if self._is_stale(event):
            return []
        changes: list[Change] = []
        if not self._has_begun:
            self._has_begun = True
            self.is_cut = event.type not in _BEGINNINGS
            self.first = _mark(event)
            changes.append(TurnBegan(self.turn_id, str(event.data.get("text", ""))))
        if event.type in _OF_MODEL or event.step_execution_id == self._model_step:
            changes += self._enter_model_call(event)
        handle = _HANDLERS.get(event.type)
        if handle is not None:
            changes += handle(self, event)
        return self._pause_or_resume(changes)

    def stored(self, outcome: FinishedTurn | None, *, is_drained: bool) -> list[Change]:
        """The turn's end is stored.

        Args:
            outcome: How it ended, or ``None`` if that is no longer kept.
            is_drained: Whether all events that were sent have been added. Before that the end is
                shown only if it fits the outcome, because it may be that of an attempt that died.
        """
        if self.has_ended or not (is_drained or self._is_over or self._fits(outcome)):
            return []
        if outcome is None and self._ending is None:
            self.is_end_lost = True
            return []
        begin = list[Change]()
        if not self._has_begun:
            self._has_begun = self.is_cut = True
            begin.append(TurnBegan(self.turn_id))
        if outcome is not None and not self._fits(outcome):
            self._ending = TurnEnded(self.turn_id, _how(outcome), outcome.final_text, outcome.error)
        assert self._ending is not None
        return begin + self._end(self._ending)

    def _fits(self, outcome: FinishedTurn | None) -> bool:
        ending = self._ending
        if ending is None or outcome is None or ending.how != _how(outcome):
            return False
        return ending.how != "completed" or outcome.final_text[:1_000] == ending.text[:1_000]

    def _is_stale(self, event: AgentEvent) -> bool:
        """Whether the event came twice or its attempt has a successor."""
        # WaitFor and Execute of one Step execution count their attempts each on its own.
        method = "wait_for" if event.type == "interrupt_requested" else "execute"
        key = (event.step_execution_id, method)
        place = (event.attempt, event.seq)
        if place <= self._newest.get(key, (0, -1)):
            return True
        self._newest[key] = place
        return False

    # The model call.

    def _enter_model_call(self, event: AgentEvent) -> list[Change]:
        step, changes = event.step_execution_id, list[Change]()
        if step != self._model_step:
            changes += self._end_model_call()
            self._model_step, self._is_model_call_open = step, True
            self._model_calls += 1
            self._attempt = event.attempt
            self._forget_shown()
            changes.append(ModelCallBegan(self._model_calls))
        elif event.attempt > self._attempt:
            self._attempt = event.attempt
            self._ending = None
            shown = tuple(call.call_id for call in self._calls.values())
            if self._shown_parts or shown:
                changes += self._end_parts()
                changes.append(
                    ModelCallReplaced(self._model_calls, tuple(self._shown_parts), shown)
                )
            for call_id in self._calls:
                self._uses[call_id] -= 1
            self._usage.pop(self._model_calls, None)
            self._forget_shown()
        return changes

    def _forget_shown(self) -> None:
        self._shown_parts, self._calls = [], {}
        self._expected_calls, self._has_shown_text = None, False

    def _end_model_call(self) -> list[Change]:
        if not self._is_model_call_open:
            return []
        self._is_model_call_open = False
        return [*self._end_parts(), ModelCallEnded(self._model_calls)]

    def _on_model_call_finished(self, event: AgentEvent) -> list[Change]:
        data = event.data
        self._usage[self._model_calls] = TokenUsage(
            _whole(data, "input_tokens"), _whole(data, "output_tokens"), _whole(data, "model_calls")
        )
        self._expected_calls = _whole(data, "calls")
        return self._end_parts()

    # Text.

    def _on_text(self, event: AgentEvent) -> list[Change]:
        kind: PartKind = "text" if event.type == "text_delta" else "reasoning"
        text = str(event.data.get("text", ""))
        return self._grow(str(event.data.get("agent_name", "")), kind, text) if text else []

    def _grow(self, agent: str, kind: PartKind, text: str) -> list[Change]:
        changes: list[Change] = []
        is_open = self._open_parts.get(agent)
        if is_open is not None and is_open[1] != kind:
            changes.append(PartEnded(*self._open_parts.pop(agent)))
            is_open = None
        if is_open is None:
            self._parts += 1
            is_open = (f"{self.turn_id}.{self._parts}", kind)
            self._open_parts[agent] = is_open
            self._shown_parts.append(is_open[0])
            changes.append(PartBegan(is_open[0], kind, agent))
        self._has_shown_text |= kind == "text"
        changes.append(PartGrew(*is_open, text))
        return changes

    def _end_parts(self) -> list[Change]:
        ended: list[Change] = [PartEnded(*part) for part in self._open_parts.values()]
        self._open_parts.clear()
        return ended

    # Calls.

    def _call_of(self, event: AgentEvent) -> tuple[_Call | None, list[Change]]:
        """The call that an event is about, and its request if nobody has told of it."""
        step = event.step_execution_id
        if self._belongs_to.setdefault(step, self._model_calls) != self._model_calls:
            return None, []  # of an earlier model call, which has its results
        call_id = str(event.data.get("tool_call_id", ""))
        if call := self._calls.get(call_id):
            return call, []
        uses = self._uses[call_id] = self._uses.get(call_id, 0) + 1
        call = _Call(
            call_id if uses == 1 else f"{call_id}#{uses}",
            str(event.data.get("tool_name", "")),
            event.data.get("arguments", {}),
        )
        self._calls[call_id] = call
        agent = str(event.data.get("agent_name", ""))
        return call, [
            *self._end_parts(),
            CallRequested(call.call_id, call.tool_name, agent, call.arguments),
        ]

    def _on_call_requested(self, event: AgentEvent) -> list[Change]:
        return self._call_of(event)[1]

    def _on_call_started(self, event: AgentEvent) -> list[Change]:
        call, changes = self._call_of(event)
        if call is None:
            return changes
        arguments = event.data.get("arguments", call.arguments)
        is_edited = arguments != call.arguments
        call.arguments = arguments
        interrupt_id = call.interrupt.interrupt_id if call.interrupt else ""
        changes += self._close(call, "answered")
        changes.append(
            CallStarted(call.call_id, call.tool_name, arguments, is_edited, interrupt_id)
        )
        return changes

    def _on_call_finished(self, event: AgentEvent) -> list[Change]:
        call, changes = self._call_of(event)
        if call is None:
            return changes
        # A call that an agent framework answers by itself has no record, and so no status.
        status = str(event.data.get("status", ToolCallStatus.SUCCEEDED))
        interrupt_id = call.interrupt.interrupt_id if call.interrupt else ""
        is_rejected = status == ToolCallStatus.REJECTED
        changes += self._close(call, "rejected" if is_rejected else "answered")
        changes.append(
            CallFinished(
                call.call_id,
                call.tool_name,
                status,
                event.data.get("output"),
                str(event.data.get("error", "")),
                interrupt_id,
                is_again=call.is_finished,
            )
        )
        call.is_finished = True
        return changes

    def _on_interrupt(self, event: AgentEvent) -> list[Change]:
        data = event.data
        interrupt_id = str(data["interrupt_id"])
        call, changes = self._call_of(event)
        if call is None or call.interrupt or interrupt_id in self._closed_interrupts:
            return changes
        call.interrupt = UiInterrupt(
            interrupt_id,
            str(data.get("kind", "")),
            call.call_id,
            call.tool_name,
            data.get("arguments", call.arguments),
            str(data.get("arguments_digest", "")),
            str(data.get("hint", "")),
            data.get("payload"),
            data.get("response_schema"),
            data.get("deadline_ms"),
        )
        return [*changes, InterruptAsked(call.interrupt)]

    def _close(self, call: _Call, outcome: str) -> list[Change]:
        if call.interrupt is None:
            return []
        closed, call.interrupt = call.interrupt, None
        self._closed_interrupts.add(closed.interrupt_id)
        return [InterruptClosed(closed, outcome)]

    # The turn.

    def _pause_or_resume(self, changes: list[Change]) -> list[Change]:
        calls = self._calls.values()
        waiting = tuple(call.interrupt for call in calls if call.interrupt is not None)
        is_paused = (
            bool(waiting)
            and len(calls) >= (self._expected_calls or 0)
            and all(call.is_finished or call.interrupt for call in calls)
        )
        if is_paused == self._is_paused:
            return changes
        self._is_paused = is_paused
        if not is_paused:
            return [TurnResumed(), *changes]
        return [*changes, *self._end_model_call(), TurnPaused(waiting, self._total_usage())]

    def _total_usage(self) -> TokenUsage:
        return sum(self._usage.values(), TokenUsage())

    def _on_ending(self, event: AgentEvent) -> list[Change]:
        text, error = event.data.get("text", ""), event.data.get("error", "")
        self._ending = TurnEnded(
            self.turn_id,
            _ENDINGS[event.type],
            str(text),
            str(error or event.data.get("reason", "")),
        )
        return []

    def _end(self, told: TurnEnded) -> list[Change]:
        self.has_ended = True
        changes: list[Change] = [TurnResumed()] if self._is_paused else []
        self._is_paused = False
        if told.how == "completed" and told.text and not self._has_shown_text:
            changes += self._grow("", "text", told.text)
        changes += self._end_model_call() + self._end_parts()
        for call in self._calls.values():
            if call.is_finished:
                continue
            changes += self._close(call, CANCELLED)
            changes.append(CallFinished(call.call_id, call.tool_name, CANCELLED, error=told.error))
        usage = self._total_usage()
        return [*changes, TurnEnded(told.turn_id, told.how, told.text, told.error, usage)]

    def _on_notice(self, event: AgentEvent) -> list[Change]:
        step = event.step_execution_id
        if self._notices.get(step) == event.type:
            return []  # the attempt that told it has died
        self._notices[step] = event.type
        # Its error may hold anything, and the turn goes on as if nothing had happened.
        data = {key: value for key, value in event.data.items() if key != "error"}
        return [Notice(event.type, data)]


def _mark(event: AgentEvent) -> str:
    """Tells an event from others of its turn, and nothing about it."""
    place = f"{event.step_execution_id}.{event.attempt}.{event.seq}"
    return hashlib.blake2s(place.encode(), digest_size=4).hexdigest()


def _how(outcome: FinishedTurn) -> TurnEnding:
    if outcome.is_cancelled:
        return "cancelled"
    return "failed" if outcome.error else "completed"


def _whole(data: Mapping[str, Json], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else 0


_HANDLERS: dict[str, Callable[[TurnFold, AgentEvent], list[Any]]] = {
    "model_call_finished": TurnFold._on_model_call_finished,
    "text_delta": TurnFold._on_text,
    "reasoning_delta": TurnFold._on_text,
    "tool_call_requested": TurnFold._on_call_requested,
    "tool_call_started": TurnFold._on_call_started,
    "tool_call_finished": TurnFold._on_call_finished,
    "interrupt_requested": TurnFold._on_interrupt,
    **dict.fromkeys(_ENDINGS, TurnFold._on_ending),
    **dict.fromkeys(_NOTICES, TurnFold._on_notice),
}
