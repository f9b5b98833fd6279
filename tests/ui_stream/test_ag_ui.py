"""AG-UI events, by the models of the protocol's own package and by its rules for a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from ag_ui.core import Event, EventType, UserMessage
from pydantic import TypeAdapter

from dex_agents import FinishedTurn
from dex_agents.ui_stream import Change, UiStreamOptions
from dex_agents.ui_stream.ag_ui import AgUiEncoder
from ui_stream.stories import ANSWERED, APPROVED, ARGUMENTS, TEXT, Story, fold

ANY_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
PAIRS = {
    EventType.TEXT_MESSAGE_START: (EventType.TEXT_MESSAGE_END, "message_id"),
    EventType.REASONING_START: (EventType.REASONING_END, "message_id"),
    EventType.REASONING_MESSAGE_START: (EventType.REASONING_MESSAGE_END, "message_id"),
    EventType.TOOL_CALL_START: (EventType.TOOL_CALL_END, "tool_call_id"),
    EventType.STEP_STARTED: (EventType.STEP_FINISHED, "step_name"),
}
INSIDE = {
    EventType.TEXT_MESSAGE_CONTENT: (EventType.TEXT_MESSAGE_START, "message_id"),
    EventType.REASONING_MESSAGE_CONTENT: (EventType.REASONING_MESSAGE_START, "message_id"),
    EventType.TOOL_CALL_ARGS: (EventType.TOOL_CALL_START, "tool_call_id"),
}


def events(changes: Sequence[Change], **given: Any) -> list[Any]:
    """The changes' events as a client reads them, checked against the rules for a run."""
    encoder = AgUiEncoder("s", **given)
    sent = [encoder.to_text(event) for change in changes for event in encoder.encode(change)]
    read = [ANY_EVENT.validate_json(text) for text in sent]
    for text, event in zip(sent, read, strict=True):
        assert not event.model_extra, f"not of the protocol: {event.model_extra}"
        assert json.loads(event.model_dump_json(by_alias=True)) == json.loads(text)
    check_runs(read)
    return read


def check_runs(read: Sequence[Any]) -> None:
    """Every run begins, ends last, and closes what it has opened."""
    closings = {closing: (opening, key) for opening, (closing, key) in PAIRS.items()}
    is_running, is_open = False, set[tuple[EventType, str]]()
    for event in read:
        kind = event.type
        if kind is EventType.RUN_STARTED:
            assert not is_running
            is_running = True
            continue
        assert is_running, f"{kind} outside of a run"
        if kind in PAIRS:
            name = (kind, getattr(event, PAIRS[kind][1]))
            assert name not in is_open
            is_open.add(name)
        elif kind in closings:
            opening, key = closings[kind]
            is_open.remove((opening, getattr(event, key)))
        elif kind in INSIDE:
            opening, key = INSIDE[kind]
            assert (opening, getattr(event, key)) in is_open
        elif kind in (EventType.RUN_FINISHED, EventType.RUN_ERROR):
            assert not is_open
            is_running = False


def of(read: Sequence[Any], kind: EventType) -> list[Any]:
    return [event for event in read if event.type is kind]


def test_a_turn_is_a_run() -> None:
    read = events(fold(TEXT.events, ANSWERED), run_id="r1")
    assert (read[0].thread_id, read[0].run_id) == ("s", "r1")
    assert "".join(e.delta for e in of(read, EventType.TEXT_MESSAGE_CONTENT)) == "Hello there"
    thoughts = of(read, EventType.REASONING_MESSAGE_CONTENT)
    assert "".join(event.delta for event in thoughts) == "thinks more"
    assert (read[-1].outcome.type, read[-1].run_id) == ("success", "r1")
    assert (read[-1].usage[0].input_tokens, read[-1].usage[0].output_tokens) == (3, 2)


def test_a_pause_ends_a_run_and_its_answer_begins_another() -> None:
    read = events(fold(APPROVED.events, ANSWERED))
    assert [event.run_id for event in of(read, EventType.RUN_STARTED)] == ["s:t1", "s:t1"]
    first, last = of(read, EventType.RUN_FINISHED)
    (asked,) = first.outcome.interrupts
    assert (asked.id, asked.reason, asked.tool_call_id) == ("i.c1", "tool_call", "c1")
    assert asked.metadata["arguments"] == ARGUMENTS
    assert asked.metadata["argumentsDigest"] == "d1"
    (call,) = of(read, EventType.TOOL_CALL_START)
    (text, _) = of(read, EventType.TEXT_MESSAGE_START)
    assert (call.tool_call_name, call.parent_message_id) == ("refund", text.message_id)
    (arguments,) = of(read, EventType.TOOL_CALL_ARGS)
    assert json.loads(arguments.delta) == ARGUMENTS
    (result,) = of(read, EventType.TOOL_CALL_RESULT)
    assert (result.tool_call_id, result.content) == ("c1", "done")
    assert read.index(first) < read.index(result) < read.index(last)
    assert last.outcome.type == "success"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("input", "input_required"),
        ("long_running", "dex:long_running"),
        ("credential", "dex:credential"),
    ],
)
def test_every_kind_of_interrupt_says_how_to_answer(kind: str, reason: str) -> None:
    schema = {"type": "object"}
    story = Story().model(1).asks(1, "c1")
    story.waits(
        "c1", kind, hint="How many?", payload="p", response_schema=schema, deadline_ms=86_400_000
    )
    finished = events(fold(story.events))[-1]
    (asked,) = finished.outcome.interrupts
    assert (asked.reason, asked.message) == (reason, "How many?")
    assert (asked.response_schema, asked.expires_at) == (schema, "1970-01-02T00:00:00+00:00")
    assert asked.metadata["payload"] == "p"


def test_a_model_call_that_is_made_again_is_taken_back_by_a_snapshot() -> None:
    story = Story().model(1, "Hel").asks(1, "c0").model(1, "Hello there", attempt=2)
    changes = fold(story.answers(1, "Hello there", 2).events, ANSWERED)
    earlier = UserMessage(id="u1", content="hello")
    read = events(changes, messages=[earlier])
    (void,) = of(read, EventType.CUSTOM)
    assert (void.name, void.value) == ("dex.replaced", {"messageIds": ["t1.1", "c0"]})
    (snapshot,) = of(read, EventType.MESSAGES_SNAPSHOT)
    assert [message.id for message in snapshot.messages] == ["u1"]
    # Without the conversation a snapshot would delete it.
    assert of(events(changes), EventType.MESSAGES_SNAPSHOT) == []


def test_a_snapshot_keeps_what_earlier_model_calls_showed() -> None:
    story = Story().model(1, "I look.").asks(1, "c1").starts("c1").ends("c1")
    story.model(2, "Hel").model(2, "Hello", attempt=2)
    read = events(fold(story.events), messages=[UserMessage(id="u1", content="hello")])
    (snapshot,) = of(read, EventType.MESSAGES_SNAPSHOT)
    user, said, result = snapshot.messages
    assert (user.id, said.content, result.content) == ("u1", "I look.", "done")
    assert said.tool_calls[0].id == result.tool_call_id == "c1"


def test_a_second_result_of_a_call_takes_the_place_of_the_first() -> None:
    story = Story().model(1).asks(1, "c1").starts("c1").ends("c1", output={"a": None})
    story.starts("c1", attempt=2).ends("c1", attempt=2, output=[1])
    read = events(fold(story.events))
    first, second = of(read, EventType.TOOL_CALL_RESULT)
    assert (first.content, second.content) == ('{"a": null}', "[1]")
    (void,) = of(read, EventType.CUSTOM)
    assert void.value == {"messageIds": [first.message_id]}
    assert first.message_id != second.message_id


def test_failures_say_no_cause_unless_asked_to() -> None:
    story = Story().model(1).asks(1, "c1").starts("c1").ends("c1", "failed", error="at /srv")
    story.tell("FailTurn-1", "turn_failed", error="worker w-1")
    outcome = FinishedTurn("t1", error="worker w-1")
    read = events(fold(story.events, outcome))
    assert read[-1].message == "The turn failed."
    assert read[-1].usage[0].input_tokens == 3
    assert of(read, EventType.TOOL_CALL_RESULT)[0].content == "The tool call failed."
    read = events(fold(story.events, outcome), options=UiStreamOptions(show_errors=True))
    assert read[-1].message == "worker w-1"
    assert of(read, EventType.TOOL_CALL_RESULT)[0].content == "at /srv"


def test_a_cancelled_turn_is_a_cancelled_run() -> None:
    story = Story().model(1).asks(1, "c1").waits("c1")
    story.tell("CancelTurn-1", "turn_cancelled", reason="by the user")
    read = events(fold(story.events, FinishedTurn("t1", error="by", is_cancelled=True)))
    assert read[-1].outcome.type == "cancelled"
    (result,) = of(read, EventType.TOOL_CALL_RESULT)
    assert result.content == "The turn ended before the tool call did."


def test_edited_arguments_and_notices_are_custom_events() -> None:
    story = Story().tell("CompactHistory-1", "compaction_started", messages=4)
    story.model(1).asks(1, "c1").waits("c1").starts("c1", arguments={"order": "8"})
    notice, edited = of(events(fold(story.events)), EventType.CUSTOM)
    assert (notice.name, notice.value) == ("dex.compaction_started", {"messages": 4})
    assert (edited.name, edited.value) == (
        "dex.arguments_edited",
        {"toolCallId": "c1", "arguments": {"order": "8"}},
    )


def test_reasoning_may_be_left_out() -> None:
    read = events(fold(TEXT.events, ANSWERED), options=UiStreamOptions(show_reasoning=False))
    assert not [event for event in read if event.type.value.startswith("REASONING")]
