"""What the events of a turn change, and what a crash, a cut or a repetition does to that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dex_agents import AgentEvent, FinishedTurn, TokenUsage
from dex_agents.ui_stream import TurnFold
from dex_agents.ui_stream._changes import (
    CallFinished,
    CallRequested,
    CallStarted,
    InterruptAsked,
    InterruptClosed,
    ModelCallBegan,
    ModelCallEnded,
    ModelCallReplaced,
    Notice,
    PartBegan,
    PartEnded,
    PartGrew,
    TurnBegan,
    TurnEnded,
    TurnPaused,
    TurnResumed,
)
from ui_stream.stories import ANSWERED, APPROVED, ARGUMENTS, TEXT, Story, about, fold


def test_text_and_thoughts_are_stretches_of_their_own() -> None:
    assert fold(TEXT.events, ANSWERED) == [
        TurnBegan("t1", "hello"),
        ModelCallBegan(1),
        PartBegan("t1.1", "reasoning", "root"),
        PartGrew("t1.1", "reasoning", "thinks"),
        PartGrew("t1.1", "reasoning", " more"),
        PartEnded("t1.1", "reasoning"),
        PartBegan("t1.2", "text", "root"),
        PartGrew("t1.2", "text", "Hello "),
        PartGrew("t1.2", "text", "there"),
        PartEnded("t1.2", "text"),
        ModelCallEnded(1),
        TurnEnded("t1", "completed", "Hello there", usage=TokenUsage(3, 2, 1)),
    ]


def test_an_approval_pauses_the_turn_and_its_answer_goes_on() -> None:
    changes = fold(APPROVED.events, ANSWERED)
    (asked,) = [c.interrupt for c in changes if isinstance(c, InterruptAsked)]
    assert (asked.interrupt_id, asked.arguments_digest) == ("i.c1", "d1")
    begin = changes.index(CallRequested("c1", "refund", "root", ARGUMENTS))
    assert changes[begin:-6] == [
        CallRequested("c1", "refund", "root", ARGUMENTS),
        InterruptAsked(asked),
        ModelCallEnded(1),
        TurnPaused((asked,), TokenUsage(3, 2, 1)),
        TurnResumed(),
        InterruptClosed(asked, "answered"),
        CallStarted("c1", "refund", ARGUMENTS, interrupt_id="i.c1"),
        CallFinished("c1", "refund", "succeeded", "done"),
    ]
    assert isinstance(changes[-1], TurnEnded)
    assert changes[-1].usage == TokenUsage(6, 4, 2)


def test_a_turn_pauses_only_when_nothing_else_runs() -> None:
    story = Story().model(1).asks(1, "c1", "c2", "c3").waits("c1").starts("c2")
    assert not any(isinstance(c, TurnPaused) for c in fold(story.events))
    story.ends("c2")
    assert not any(isinstance(c, TurnPaused) for c in fold(story.events)), "c3 has not been told"
    story.waits("c3", "input")
    paused = fold(story.events)[-1]
    assert isinstance(paused, TurnPaused)
    assert [i.interrupt_id for i in paused.interrupts] == ["i.c1", "i.c3"]


def test_a_model_call_that_is_made_again_replaces_what_it_has_shown() -> None:
    story = Story().model(1, "~half", "Hel").model(1, "Hello there", attempt=2)
    late = AgentEvent("text_delta", "t1", "RunModel-1", 1, 9, {"text": "lo", "agent_name": "root"})
    story.events.append(late)
    story.answers(1, "Hello there", attempt=2)
    changes = fold(story.events, ANSWERED)
    at = changes.index(ModelCallReplaced(1, ("t1.1", "t1.2"), ()))
    assert changes[at - 1] == PartEnded("t1.2", "text")
    assert changes[at + 1 :] == [
        PartBegan("t1.3", "text", "root"),
        PartGrew("t1.3", "text", "Hello there"),
        PartEnded("t1.3", "text"),
        ModelCallEnded(1),
        TurnEnded("t1", "completed", "Hello there", usage=TokenUsage(3, 2, 1)),
    ]


def test_an_attempt_that_showed_nothing_needs_no_replacement() -> None:
    story = Story().model(1).model(1, "Hello there", attempt=2).answers(1, "Hello there", 2)
    assert not any(isinstance(c, ModelCallReplaced) for c in fold(story.events, ANSWERED))


def test_calls_of_an_attempt_that_died_are_void_and_keep_their_names() -> None:
    story = Story().model(1).asks(1, "c1", "c2").model(1, attempt=2).asks(1, "c1", attempt=2)
    changes = fold(story.waits("c1").events)
    assert ModelCallReplaced(1, (), ("c1", "c2")) in changes
    assert [c.call_id for c in changes if isinstance(c, CallRequested)] == ["c1", "c2", "c1"]
    assert isinstance(changes[-1], TurnPaused)


def test_an_end_that_was_not_stored_is_not_shown() -> None:
    story = Story().model(1, "Wrong").answers(1, "Wrong")
    turn = TurnFold("t1")
    for event in story.events:
        assert not any(isinstance(c, TurnEnded) for c in turn.add(event))
    assert turn.stored(ANSWERED, is_drained=False) == []
    story.events.clear()
    story.model(1, "Hello there", attempt=2).answers(1, "Hello there", attempt=2)
    changes = [change for event in story.events for change in turn.add(event)]
    changes += turn.stored(ANSWERED, is_drained=False)
    assert changes[0] == ModelCallReplaced(1, ("t1.1",), ())
    assert changes[-1] == TurnEnded("t1", "completed", "Hello there", usage=TokenUsage(3, 2, 1))


def test_a_failure_that_was_not_stored_is_not_shown() -> None:
    turn = TurnFold("t1")
    story = Story().model(1).tell("RunModel-1", "turn_failed", error="no")
    for event in story.events:
        turn.add(event)
    assert turn.stored(ANSWERED, is_drained=False) == []
    failed = FinishedTurn("t1", error="no")
    assert turn.stored(failed, is_drained=False)[-1] == TurnEnded("t1", "failed", error="no")


def test_the_end_comes_from_storage_when_its_event_was_lost() -> None:
    turn = TurnFold("t1")
    for event in Story().model(1).events:
        turn.add(event)
    assert turn.stored(ANSWERED, is_drained=False) == []
    assert turn.stored(ANSWERED, is_drained=True) == [
        PartBegan("t1.1", "text", ""),
        PartGrew("t1.1", "text", "Hello there"),
        PartEnded("t1.1", "text"),
        ModelCallEnded(1),
        TurnEnded("t1", "completed", "Hello there"),
    ]
    assert turn.stored(ANSWERED, is_drained=True) == []


def test_a_later_turn_proves_the_end_of_this_one() -> None:
    changes = fold([*TEXT.events, *Story("t2").model(1).events])
    assert changes[-1] == TurnEnded("t1", "completed", "Hello there", usage=TokenUsage(3, 2, 1))


def test_an_end_that_nobody_has_kept_is_not_made_up() -> None:
    later = Story("t2").model(1).events
    for is_over in (False, True):
        turn = TurnFold("t1")
        for event in [*Story().model(1).events, *(later if is_over else [])]:
            turn.add(event)
        assert not turn.has_ended
        assert turn.stored(None, is_drained=not is_over) == []
        assert (turn.has_ended, turn.is_end_lost) == (False, True)
    # A later turn's events prove that no more of this one come.
    failed = FinishedTurn("t1", error="no")
    assert turn.stored(failed, is_drained=False)[-1] == TurnEnded("t1", "failed", error="no")


def test_a_summary_whose_attempt_died_is_told_once() -> None:
    step = "CompactHistory-1"
    story = Story().tell(step, "compaction_started", messages=4)
    story.tell(step, "compaction_started", 2, messages=4)
    story.tell(step, "compaction_failed", 2, error="no")
    story.tell(step, "compaction_started", 3, messages=4)
    story.tell(step, "compaction_finished", 3)
    told = [change.name for change in fold(story.events) if isinstance(change, Notice)]
    assert told == [f"compaction_{what}" for what in ("started", "failed", "started", "finished")]


def test_other_turns_do_not_show() -> None:
    earlier = Story("t0").model(1, "old").events
    assert fold([*earlier, *TEXT.events]) == fold(TEXT.events)
    assert fold(Story("t2").model(1, "new").events) == []


def test_a_tool_that_runs_again_replaces_its_result() -> None:
    story = Story().model(1).asks(1, "c1").starts("c1").ends("c1", output=1)
    story.starts("c1", attempt=2).ends("c1", attempt=2, output=2)
    story.ends("c1", "failed", attempt=1)
    finished = [c for c in fold(story.events) if isinstance(c, CallFinished)]
    assert [(c.output, c.is_again) for c in finished] == [(1, False), (2, True)]


def test_arguments_that_a_person_changed_are_told() -> None:
    story = Story().model(1).asks(1, "c1").waits("c1").starts("c1", arguments={"order": "8"})
    started = fold(story.events)[-1]
    assert started == CallStarted("c1", "refund", {"order": "8"}, True, "i.c1")


def test_an_interrupt_that_is_told_again_asks_once() -> None:
    story = Story().model(1).asks(1, "c1").waits("c1")
    story.tell("Await-c1", "interrupt_requested", 2, **dict(story.events[-1].data))
    assert sum(isinstance(c, InterruptAsked) for c in fold(story.events)) == 1
    story.starts("c1")
    story.tell("Await-c1", "interrupt_requested", 3, **dict(story.events[-2].data))
    assert sum(isinstance(c, InterruptAsked) for c in fold(story.events)) == 1


def test_a_rejection_behind_a_repeated_wait_is_seen() -> None:
    # WaitFor took two attempts, and Execute of the same Step execution begins with its first.
    story = Story().model(1).asks(1, "c1").waits("c1")
    story.tell("Await-c1", "interrupt_requested", 2, **dict(story.events[-1].data))
    story.tell("Await-c1", "ignored").ends("c1", "rejected", step="Await-c1")
    changes = fold(story.events)
    assert changes[-1] == CallFinished("c1", "refund", "rejected", interrupt_id="i.c1")
    assert isinstance(changes[-2], InterruptClosed)
    assert changes[-2].outcome == "rejected"


def test_a_call_id_that_the_model_uses_again_gets_another_name() -> None:
    story = Story().model(1).asks(1, "c1").starts("c1").ends("c1").model(2).asks(2, "c1")
    names = [c.call_id for c in fold(story.events) if isinstance(c, CallRequested)]
    assert names == ["c1", "c1#2"]


def test_an_open_call_ends_with_its_turn() -> None:
    story = Story().model(1).asks(1, "c1").waits("c1")
    story.tell("CancelTurn-1", "turn_cancelled", reason="by the user")
    outcome = FinishedTurn("t1", error="by the user", is_cancelled=True)
    changes = fold(story.events, outcome)
    at = changes.index(TurnResumed())
    closed = changes[at + 1]
    assert isinstance(closed, InterruptClosed)
    assert closed.outcome == "cancelled"
    assert changes[at + 2 :] == [
        CallFinished("c1", "refund", "cancelled", error="by the user"),
        TurnEnded("t1", "cancelled", error="by the user", usage=TokenUsage(3, 2, 1)),
    ]


def test_a_turn_whose_first_events_are_gone_is_cut() -> None:
    whole = Story().model(1, "one").answers(1, "one").events
    for events, is_cut in ((whole, False), (whole[1:], True), ([], True)):
        picture = TurnFold("t1")
        for event in events:
            picture.add(event)
        picture.stored(FinishedTurn("t1", final_text="one"), is_drained=True)
        assert (picture.has_ended, picture.is_cut) == (True, is_cut)
    picture = TurnFold("t1")
    for event in Story().tell("CompactHistory-1", "compaction_started").model(1, "one").events:
        picture.add(event)
    assert not picture.is_cut
    # A picture that begins with the model call was counted from another event.
    later = TurnFold("t1")
    for event in Story().model(1, "one").events:
        later.add(event)
    assert len({picture.first, later.first, ""}) == 3


def test_events_of_an_older_release_are_enough() -> None:
    """Without ``model_call_started`` and ``tool_call_requested``, and with little about a wait."""
    story = Story().tell("RunModel-1", "turn_started", text="hello")
    story.tell("RunModel-1", "text_delta", text="Hm", agent_name="root")
    story.waits("c1").starts("c1").tell(
        "Call-c1", "tool_call_finished", tool_call_id="c1", status="succeeded"
    )
    story.tell("RunModel-2", "text_delta", text="Hello there", agent_name="root")
    story.tell("RunModel-2", "turn_completed", text="Hello there")
    changes = fold(story.events, ANSWERED)
    kinds = [type(change).__name__ for change in changes]
    assert kinds.count("TurnPaused") == kinds.count("TurnResumed") == 1
    assert kinds.count("ModelCallBegan") == kinds.count("ModelCallEnded") == 2
    assert CallFinished("c1", "refund", "succeeded") in changes


def test_a_call_without_a_step_of_its_own_belongs_to_the_model_call() -> None:
    """Such as a transfer to another agent, which ADK does by itself."""
    story = Story().model(1).tell("RunModel-1", "tool_call_started", **about("c1"))
    story.tell("RunModel-1", "tool_call_finished", **about("c1")).asks(1)
    changes = fold(story.events)
    assert changes[2:] == [
        CallRequested("c1", "refund", "root", {}),
        CallStarted("c1", "refund", {}),
        CallFinished("c1", "refund", "succeeded"),
    ]
    story.model(1, attempt=2)
    assert fold(story.events)[-1] == ModelCallReplaced(1, (), ("c1",))


STORIES = (TEXT, APPROVED, Story().model(1, "a").model(1, "b", attempt=2).answers(1, "b", 2))


@given(st.sampled_from(STORIES), st.data())
def test_events_that_come_twice_count_once(story: Story, data: st.DataObject) -> None:
    """As after a cut, when a reader goes on from before what it had."""
    events = list(story.events)
    end = data.draw(st.integers(1, len(events)))
    begin = data.draw(st.integers(0, end))
    repeated = [*events[:end], *events[begin:end], *events[end:]]
    assert fold(repeated) == fold(events)
