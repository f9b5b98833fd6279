"""UI message streams, read by the real AI SDK."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from dex_agents import FinishedTurn
from dex_agents.ui_stream import AiSdkEncoder, AiSdkVersion, UiStreamOptions
from support.ai_sdk import PROGRAM, Reading, read_streams
from ui_stream.stories import ANSWERED, APPROVAL, APPROVED, ARGUMENTS, TEXT, Story, fold, sse

VERSIONS: tuple[AiSdkVersion, ...] = get_args(AiSdkVersion)
EDITED = {"order": "8"}
CALLED = Story().model(1).asks(1, "c1").starts("c1")


def read(
    story: Story, outcome: FinishedTurn | None = None, *, version: AiSdkVersion = 7, **shown: bool
) -> Reading:
    """A story as one response, read with one version."""
    encoder = AiSdkEncoder("s", version=version, options=UiStreamOptions(**shown))
    (reading,) = read_streams([(version, [sse(encoder, fold(story.events, outcome))])])
    return reading


def read_all(story: Story, outcome: FinishedTurn | None = None) -> dict[int, Reading]:
    """The same with every version, in one process."""
    changes = fold(story.events, outcome)
    cases = [(v, [sse(AiSdkEncoder("s", version=v), changes)]) for v in VERSIONS]
    return dict(zip(VERSIONS, read_streams(cases), strict=True))


def test_text_reasoning_usage_and_the_turn() -> None:
    for reading in read_all(TEXT, ANSWERED).values():
        assert reading.errors == []
        assert reading.message["id"] == "s:t1"
        assert reading.message["role"] == "assistant"
        usage = {"inputTokens": 3, "outputTokens": 2, "modelCalls": 1}
        told = {"turnId": "t1", "userText": "hello", "usage": usage}
        assert reading.message["metadata"] == told
        shown = [(p["type"], p.get("text"), p.get("state")) for p in reading.message["parts"]]
        assert shown == [
            ("step-start", None, None),
            ("reasoning", "thinks more", "done"),
            ("text", "Hello there", "done"),
        ]


def test_an_approval_in_two_responses_like_those_of_use_chat() -> None:
    cut = len(APPROVAL.events)
    cases = []
    for version in VERSIONS:
        changes = fold(APPROVED.events, ANSWERED)
        first = len(fold(APPROVED.events[:cut]))
        encoder = AiSdkEncoder("s", version=version)
        texts = [sse(encoder, changes[:first]), sse(encoder, changes[first:])]
        cases += [(version, texts[:1]), (version, texts)]
    readings = iter(read_streams(cases))
    for version, paused, done in zip(VERSIONS, readings, readings, strict=True):
        (call,) = paused.parts("dynamic-tool")
        assert (call["toolName"], call["toolCallId"], call["input"]) == ("refund", "c1", ARGUMENTS)
        assert call["state"] == ("input-available" if version == 5 else "approval-requested")
        assert version == 5 or call["approval"]["id"] == "i.c1"
        (asked,) = paused.parts("data-interrupt")
        assert asked["data"] == {
            "interruptId": "i.c1",
            "kind": "approval",
            "toolCallId": "c1",
            "toolName": "refund",
            "arguments": ARGUMENTS,
            "argumentsDigest": "d1",
            "state": "pending",
        }
        assert paused.errors == done.errors == []
        (call,) = done.parts("dynamic-tool")
        assert (call["state"], call["output"]) == ("output-available", "done")
        assert version != 7 or call["approval"]["approved"] is True
        (asked,) = done.parts("data-interrupt")
        assert asked["data"]["state"] == "answered"
        assert [part["text"] for part in done.parts("text")] == ["I will.", "Hello there"]
        assert done.message["metadata"]["usage"]["modelCalls"] == 2


def test_a_rejected_call_is_denied() -> None:
    story = Story().model(1).asks(1, "c1").waits("c1").ends("c1", "rejected", step="Await-c1b")
    for version, reading in read_all(story).items():
        (call,) = reading.parts("dynamic-tool")
        assert call["state"] == ("output-error" if version == 5 else "output-denied")
        assert version != 5 or call["errorText"] == "The tool call was rejected."
        (asked,) = reading.parts("data-interrupt")
        assert asked["data"]["state"] == "rejected"


@pytest.mark.parametrize("kind", ["input", "long_running", "credential"])
def test_other_kinds_of_interrupts_are_data_parts(kind: str) -> None:
    story = Story().model(1).asks(1, "c1")
    story.waits("c1", kind, hint="How many?", payload={"a": 1}, response_schema={"type": "object"})
    for reading in read_all(story).values():
        (asked,) = reading.parts("data-interrupt")
        data = asked["data"]
        assert (data["kind"], data["hint"], data["state"]) == (kind, "How many?", "pending")
        assert data["responseSchema"] == {"type": "object"}
        assert data["payload"] == {"a": 1}
        (call,) = reading.parts("dynamic-tool")
        assert call["state"] == "input-available"


def test_a_model_call_that_is_made_again_takes_the_place_of_the_first() -> None:
    story = Story().model(1, "~half", "Hel").model(1, "Hello ", "there", attempt=2)
    for version, reading in read_all(story.answers(1, "Hello there", 2), ANSWERED).items():
        assert reading.errors == []
        texts = [part["text"] for part in reading.parts("text")]
        if version == 7:
            assert texts == ["Hello there"]
            assert reading.parts("reasoning") == []
            continue
        # These versions cannot take a part back: a UI leaves out the step that is named.
        (void,) = reading.parts("data-replaced")
        steps: list[list[Any]] = []
        for part in reading.message["parts"]:
            if part["type"] == "step-start":
                steps.append([])
            elif part["type"] == "text":
                steps[-1].append(part["text"])
        assert steps == [["Hel"], ["Hello there"]]
        assert void["data"] == {"step": 0}


def test_a_tool_that_runs_again_has_one_part_with_the_newest_result() -> None:
    story = Story().model(1).asks(1, "c1").starts("c1").ends("c1", output=1)
    story.starts("c1", attempt=2).ends("c1", attempt=2, output=2)
    for reading in read_all(story).values():
        (call,) = reading.parts("dynamic-tool")
        assert call["output"] == 2


def test_edited_arguments_show_in_the_call() -> None:
    story = Story().model(1).asks(1, "c1").waits("c1").starts("c1", arguments=EDITED).ends("c1")
    for reading in read_all(story).values():
        (call,) = reading.parts("dynamic-tool")
        assert (call["input"], call["state"]) == (EDITED, "output-available")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("failed", "The tool call failed."),
        ("outcome_unknown", "It is not known whether the tool call took effect."),
    ],
)
def test_a_failed_call_shows_what_kind_of_failure_it_was(status: str, text: str) -> None:
    secret = 'File "/srv/app/db.py", line 3: host db7 refused worker w-1'
    story = Story().model(1).asks(1, "c1").starts("c1").ends("c1", status, error=secret)
    (call,) = read(story).parts("dynamic-tool")
    assert (call["state"], call["errorText"]) == ("output-error", text)
    (call,) = read(story, show_errors=True).parts("dynamic-tool")
    assert call["errorText"] == secret


def test_a_failed_turn_is_an_error_without_the_cause() -> None:
    story = Story().model(1, "Hel").tell("FailTurn-1", "turn_failed", error="db7 at /srv refused")
    outcome = FinishedTurn("t1", error="db7 at /srv refused")
    for reading in read_all(story, outcome).values():
        assert reading.errors == ["The turn failed."]
        assert "srv" not in json.dumps(reading.message)
    assert read(story, outcome, show_errors=True).errors == ["db7 at /srv refused"]


def test_a_cancelled_turn_leaves_no_call_that_asks() -> None:
    story = Story().model(1, "Hel").asks(1, "c1").waits("c1")
    story.tell("CancelTurn-1", "turn_cancelled", reason="by the user")
    outcome = FinishedTurn("t1", error="by the user", is_cancelled=True)
    for reading in read_all(story, outcome).values():
        (call,) = reading.parts("dynamic-tool")
        assert call["state"] == "output-error"
        (asked,) = reading.parts("data-interrupt")
        assert asked["data"]["state"] == "cancelled"
        assert reading.message["metadata"]["usage"]["inputTokens"] == 3


def test_what_is_not_to_be_shown_is_not() -> None:
    story = Story().model(1, "~secret", "a").asks(1, "c1", "c2").waits("c2").starts("c1")
    story.ends("c1", output="secret")
    reading = read(story, show_tool_inputs=False, show_tool_outputs=False, show_reasoning=False)
    assert reading.parts("reasoning") == []
    done, asked = reading.parts("dynamic-tool")
    assert (done["input"], done["output"]) == ({}, "(not shown)")
    assert asked["input"] == {}
    # Nobody approves what they cannot see.
    (interrupt,) = reading.parts("data-interrupt")
    assert interrupt["data"]["arguments"] == ARGUMENTS


def test_compaction_is_told_and_leaves_no_part() -> None:
    story = Story().tell("CompactHistory-1", "compaction_started", messages=40)
    story.tell("CompactHistory-1", "compaction_failed", error="at /srv")
    story.model(1, "Hello there").answers(1, "Hello there")
    encoder = AiSdkEncoder("s")
    text = sse(encoder, fold(story.events, ANSWERED))
    assert '"name":"compaction_started","messages":40' in text
    assert "srv" not in text
    (reading,) = read_streams([(7, [text])])
    assert [part["type"] for part in reading.message["parts"]] == ["step-start", "text"]


def test_hostile_text_stays_text() -> None:
    hostile = 'a\n\ndata: {"type":"finish"}\n\n\u2028\x00</script>\\"'
    story = Story().model(1, hostile).answers(1, hostile)
    (part,) = read(story, FinishedTurn("t1", hostile)).parts("text")
    assert part["text"] == hostile


def test_a_session_page_of_its_own_goes_on_behind_a_pause() -> None:
    encoder = AiSdkEncoder("s", ends_when_paused=False)
    (reading,) = read_streams([(7, [sse(encoder, fold(APPROVED.events, ANSWERED))])])
    assert [part["text"] for part in reading.parts("text")] == ["I will.", "Hello there"]


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="version must be 5, 6 or 7, got 4"):
        AiSdkEncoder("s", version=4)  # type: ignore[arg-type]


def test_the_readers_are_pinned_by_content() -> None:
    lock = json.loads((PROGRAM / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())
    versions = [packages[f"node_modules/ai{major}"]["version"] for major in VERSIONS]
    assert [int(version.split(".")[0]) for version in versions] == list(VERSIONS)
