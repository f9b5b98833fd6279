"""Live events of invented turns, as a session would send them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dex_agents import AgentEvent, FinishedTurn
from dex_agents.ui_stream import Change, TurnFold, UiEncoder

ARGUMENTS = {"order": "7"}


class Story:
    """Events in the order in which they are told."""

    def __init__(self, turn_id: str = "t1") -> None:
        self.turn_id = turn_id
        self.events: list[AgentEvent] = []
        self._sequences: dict[tuple[str, int], int] = {}

    def tell(self, step: str, event: str, attempt: int = 1, /, **data: Any) -> Story:
        """Any event."""
        key = (step, attempt)
        sequence = self._sequences[key] = self._sequences.get(key, -1) + 1
        self.events.append(AgentEvent(event, self.turn_id, step, attempt, sequence, data))
        return self

    def model(self, number: int, *pieces: str, attempt: int = 1) -> Story:
        """A model call that sends pieces of text; ``~`` in front makes one a thought."""
        step = f"RunModel-{number}"
        if number == 1:
            self.tell(step, "turn_started", attempt, text="hello")
        self.tell(step, "model_call_started", attempt)
        for piece in pieces:
            kind = "reasoning_delta" if piece.startswith("~") else "text_delta"
            self.tell(step, kind, attempt, text=piece.removeprefix("~"), agent_name="root")
        return self

    def asks(self, number: int, *calls: str, attempt: int = 1) -> Story:
        """The model call ends with tool calls."""
        step = f"RunModel-{number}"
        self._usage(step, attempt, len(calls))
        for call in calls:
            self.tell(step, "tool_call_requested", attempt, **about(call), arguments=ARGUMENTS)
        return self

    def answers(self, number: int, text: str, attempt: int = 1) -> Story:
        """The model call ends the turn."""
        step = f"RunModel-{number}"
        self._usage(step, attempt, 0)
        return self.tell(step, "turn_completed", attempt, text=text)

    def _usage(self, step: str, attempt: int, calls: int) -> None:
        counts = {"input_tokens": 3, "output_tokens": 2, "model_calls": 1, "calls": calls}
        self.tell(step, "model_call_finished", attempt, **counts)

    def waits(self, call: str, kind: str = "approval", **data: Any) -> Story:
        """A call waits for a person."""
        asked = {"interrupt_id": f"i.{call}", "kind": kind, "arguments": ARGUMENTS, **data}
        return self.tell(f"Await-{call}", "interrupt_requested", **about(call), **asked)

    def starts(self, call: str, attempt: int = 1, **data: Any) -> Story:
        """A tool starts."""
        given = {"arguments": ARGUMENTS, **data}
        return self.tell(f"Call-{call}", "tool_call_started", attempt, **about(call), **given)

    def ends(
        self, call: str, status: str = "succeeded", attempt: int = 1, step: str = "", **data: Any
    ) -> Story:
        """A call has its record."""
        if status == "succeeded":
            data = {"output": "done", **data}
        step = step or f"Call-{call}"
        return self.tell(step, "tool_call_finished", attempt, **about(call), status=status, **data)


def about(call: str) -> dict[str, Any]:
    """What each event of a call has."""
    return {"tool_call_id": call, "tool_name": "refund", "agent_name": "root"}


def fold(events: Iterable[AgentEvent], outcome: FinishedTurn | None = None) -> list[Change]:
    """The changes of turn t1, its end included if an outcome is given."""
    turn = TurnFold("t1")
    changes = [change for event in events for change in turn.add(event)]
    if outcome is not None:
        changes += turn.stored(outcome, is_drained=False)
    return changes


def sse(encoder: UiEncoder[Any], changes: Sequence[Change]) -> str:
    """The text of a response."""
    parts = [part for change in changes for part in encoder.encode(change)]
    frames = [f"data: {encoder.to_text(part)}\n\n" for part in parts]
    return "".join([*frames, "data: [DONE]\n\n"])


ANSWERED = FinishedTurn("t1", "Hello there")
TEXT = Story().model(1, "~thinks", "~ more", "Hello ", "there").answers(1, "Hello there")
APPROVAL = Story().model(1, "I will.").asks(1, "c1").waits("c1", arguments_digest="d1")
APPROVED = (
    Story()
    .model(1, "I will.")
    .asks(1, "c1")
    .waits("c1", arguments_digest="d1")
    .starts("c1")
    .ends("c1")
    .model(2, "Hello there")
    .answers(2, "Hello there")
)
