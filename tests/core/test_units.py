"""The pure parts of a session: encoding, stored records, classification, notes, options, events."""

from __future__ import annotations

import asyncio
import json
import math
import random
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dex_agents import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    AgentMessage,
    AgentSessionOptions,
    ImageReference,
    MessageRole,
    ModelCallError,
    RequestedToolCall,
    TokenUsage,
    ToolCallRecord,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionResult,
)
from dex_agents._session.encoding import EncodingError, decode, encode
from dex_agents._session.events import GATHER_BYTES, MAX_MESSAGE_BYTES, StepEvents
from dex_agents._session.failures import (
    MAX_DETAIL_BYTES,
    clean_text,
    record_after_failure,
    retry_delay_s,
)
from dex_agents._session.notes import finished_call, mark_older_notes, turn_failure_note
from dex_agents._session.outcomes import MAX_CALLS
from dex_agents._session.pages import PageCache
from dex_agents._session.records import (
    MESSAGE_IDS_KEPT,
    CallTask,
    FinishedCall,
    Header,
    Round,
    StoredInterrupt,
    TurnState,
    content_digest,
    message_digest,
    message_from_json,
    message_to_json,
)
from dex_agents._session.results import fit_output, result_limit, succeeded_record
from dex_agents._stored_record import record_from_json, record_to_json


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1.5,
        10**40,
        "ä\ud800\x00\U0001f600",
        {"b": [1, {"a": None}], "a": {}, "": ""},
        ["x" * 5_000, "é" * 5_000],
    ],
)
def test_what_is_encoded_comes_back_with_its_key_order(value: Any) -> None:
    again = decode(encode(value))
    assert again == value
    assert json.dumps(again) == json.dumps(value)


def test_large_values_are_compressed() -> None:
    assert len(encode("x" * 100_000)) < 1_000


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, object(), {1, 2}, b"x"])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="not a JSON value"):
        encode({"in": [value]})


@pytest.mark.parametrize("nested", [10**5])
def test_what_is_nested_too_deep_is_refused(nested: int) -> None:
    value: list[Any] = []
    for _ in range(nested):
        value = [value]
    with pytest.raises(EncodingError):
        encode(value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "unknown format"),
        (b"\x7f{}", "upgrade dex-agents"),
        (b"\x01{", "damaged"),
        (b"\x02{}", "damaged"),
    ],
)
def test_bytes_of_another_format_say_so(data: bytes, text: str) -> None:
    with pytest.raises(EncodingError, match=text):
        decode(data)


CALL = RequestedToolCall("c", "pay", {"b": 1, "a": 2}, ToolEffect.IDEMPOTENT_WRITE, True, "ag", "h")
TASK = CallTask("t1", "t1.1", 0, CALL, "s/t1/c", True, 3, 12)


@pytest.mark.parametrize(
    "stored",
    [
        Header("t2", 2, 9, TokenUsage(1, 2, 3), ["m"]),
        TurnState(
            {"text": "hi"}, 1, True, 2, TokenUsage(1), {"c": 2}, [FinishedCall("t", "c", "x")]
        ),
        TASK,
        Round("t1", "t1.1", 3, True),
        StoredInterrupt("t1.1.0", "t1", "approval", "pay", "c", {"b": 1}, deadline_ms=5),
        FinishedCall("pay", "c", "failed", "no"),
    ],
)
def test_records_come_back_and_take_unknown_fields(stored: Any) -> None:
    data = decode(encode(stored.to_json()))
    assert type(stored).from_json(data) == stored
    assert type(stored).from_json({**data, "of_a_later_release": 1}) == stored


def test_records_of_an_earlier_release_get_defaults() -> None:
    assert Header.from_json({}) == Header()
    assert TurnState.from_json({"user_message": 1}) == TurnState(1)
    call = {
        "call_id": "c",
        "tool_name": "t",
        "arguments": {},
        "effect": "read",
        "requires_approval": False,
    }
    task = CallTask.from_json(
        {"turn_id": "t1", "batch": "t1.1", "index": 0, "call": call, "idempotency_key": "k"}
    )
    assert (task.calls, task.deadline_ms, task.call.timeout_s) == (1, None, None)
    message = message_from_json({"role": "user", "framework_item": 1})
    assert message == AgentMessage(MessageRole.USER, 1)
    record = record_from_json({"call_id": "c", "tool_name": "t", "status": "failed"})
    assert record == ToolCallRecord("c", "t", ToolCallStatus.FAILED)


def test_messages_and_records_come_back() -> None:
    message = AgentMessage(MessageRole.TOOL, {"b": 1, "a": 2}, "x", "t", "c", "t1", 4, is_note=True)
    assert message_from_json(decode(encode(message_to_json(message)))) == message
    record = ToolCallRecord("c", "t", ToolCallStatus.SUCCEEDED, {"x": 1}, framework_data=[1])
    assert record_from_json(decode(encode(record_to_json(record)))) == record


def test_the_header_stays_small_however_long_message_ids_are() -> None:
    header = Header()
    ids = [f"{number} " * 60 for number in range(3 * MESSAGE_IDS_KEPT)]
    messages = [{"id": one, "text": one} for one in ids]
    assert all(header.remember_message(one, turn) for turn, one in enumerate(messages, 1))
    assert not header.remember_message(messages[-MESSAGE_IDS_KEPT], 1_000)
    assert header.content_of(ids[-1]) == content_digest(messages[-1])
    assert header.remember_message(messages[0], 1_000)
    assert header.turns_of_messages()[message_digest(ids[0])] == 1_000
    assert header.turns_of_messages()[message_digest(ids[-1])] == len(ids)
    assert len(header.turns_of_messages()) == MESSAGE_IDS_KEPT
    assert len(encode(header.to_json())) < 1_500


def test_turns_of_messages_of_an_older_release_are_not_known() -> None:
    header = Header()
    header.remember_message({"id": "old", "text": "x"}, 1)
    stored = {k: v for k, v in header.to_json().items() if k != "message_turns"}
    header = Header.from_json(stored)
    assert header.turns_of_messages() == {}
    header.remember_message({"id": "new", "text": "x"}, 2)
    assert header.turns_of_messages() == {message_digest("new"): 2}
    assert not header.remember_message({"id": "old", "text": "x"}, 3)


def test_calls_of_a_turn_have_different_names() -> None:
    state = TurnState(None)
    ids = ["a", "b", "a", "a#2", "a", "a#3", "a#2"]
    names = [state.name_call(one) for one in ids]
    assert names[:3] == ["a", "b", "a#2"]
    assert len(set(names)) == len(names)


def _task(effect: ToolEffect) -> CallTask:
    return CallTask("t1", "t1.1", 0, RequestedToolCall("c", "t", {}, effect, False), "k")


@pytest.mark.parametrize("effect", list(ToolEffect))
@pytest.mark.parametrize(
    "word",
    [
        "NO_WORKER_AVAILABLE",
        "UNKNOWN_NAME",
        "TASK_TOO_LARGE",
        "dex_agents._errors.ToolNotStartedError",
    ],
)
def test_words_for_never_delivered_mean_not_run(word: str, effect: ToolEffect) -> None:
    record = record_after_failure(_task(effect), word, "why")
    assert (record.status, record.not_run) == (ToolCallStatus.FAILED, True)
    assert record.error == f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: why"


@pytest.mark.parametrize("effect", list(ToolEffect))
@pytest.mark.parametrize(
    "word",
    [
        "",
        "WORKER_DISCONNECTED",
        "TIMEOUT_TYPE_HEARTBEAT",
        "TIMEOUT_TYPE_START_TO_CLOSE",
        "dex_agents._session.failures.ToolStepError",
        "user.NoWorkerAvailable",
        "no_worker_available",
        "a word of a later engine",
    ],
)
def test_any_other_word_means_that_it_may_have_run(word: str, effect: ToolEffect) -> None:
    record = record_after_failure(_task(effect), word, "why \ud800")
    is_read = effect is ToolEffect.READ
    assert record.status is (ToolCallStatus.FAILED if is_read else ToolCallStatus.OUTCOME_UNKNOWN)
    assert not record.not_run
    assert record.error == "why \\ud800"


@pytest.mark.parametrize("text", ["", "x" * 5_000, "ä" * 5_000, "\U0001f600" * 900, "\ud800" * 900])
def test_clean_text_is_short_and_can_be_encoded(text: str) -> None:
    assert len(clean_text(text).encode("utf-8")) <= MAX_DETAIL_BYTES < 1_024


@pytest.mark.parametrize(
    ("asked", "delay"),
    [
        (0.2, 1),
        (2, 2),
        (2.01, 3),
        (10**9, 24 * 3600),
        (0, None),
        (-1, None),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        ("3", None),
        (True, None),
    ],
)
def test_delays_are_whole_seconds(asked: Any, delay: int | None) -> None:
    assert retry_delay_s(ModelCallError("busy", retry_after_s=asked)) == delay


def test_the_note_lists_each_call_and_can_be_encoded() -> None:
    calls = [
        finished_call(ToolCallRecord("c1", "pay", ToolCallStatus.SUCCEEDED, {"id": 7})),
        finished_call(ToolCallRecord("c2", "mail", ToolCallStatus.OUTCOME_UNKNOWN, error="gone")),
        finished_call(
            ToolCallRecord(
                "c3", "x", ToolCallStatus.REJECTED, rejection_message="\ud800" + "ä" * 999
            )
        ),
    ]
    note = turn_failure_note("the model is down", calls)
    note.encode("utf-8")
    assert "the model is down" in note
    assert '- pay (c1): succeeded: {"id": 7}' in note
    assert "- mail (c2): outcome_unknown: gone" in note
    assert "- x (c3): rejected: \\ud800" in note
    assert "Do not repeat" in note
    assert "calls" not in turn_failure_note("why", [])
    assert len(note) < 1_000


def test_the_note_of_very_many_calls_is_no_burden_for_later_models() -> None:
    unknown = FinishedCall("pay", "c7", "outcome_unknown", "gone")
    calls = [FinishedCall("look", f"c{n}", "succeeded", "x" * 300) for n in range(20_000)]
    calls[7] = unknown
    lines = turn_failure_note("why", calls).splitlines()
    assert sum(map(len, lines)) < 72_000
    named = [line for line in lines if line.startswith("- ")]
    assert named[0] == "- pay (c7): outcome_unknown: gone"
    assert named[-1].startswith("- look (c19999): succeeded")
    assert f"{20_000 - len(named)} of them are too many to be named: look: " in lines[2]
    many = [FinishedCall(f"tool{n}" * 20, f"c{n}", "failed", "x" * 300) for n in range(5_000)]
    assert len(turn_failure_note("why", many)) < 72_000


def test_a_note_of_an_earlier_release_is_known_by_its_place_and_its_words() -> None:
    note = turn_failure_note("why", [])

    def said(text: str, turn: str, role: MessageRole = MessageRole.USER) -> AgentMessage:
        return AgentMessage(role, None, text, turn_id=turn)

    messages = [
        said("go", "t1"),
        said(note, "t1"),
        said(note, "t2"),  # of a user, who opens a turn with it
        said(note, "t2"),
        said(note, "t3"),
        said("steered", "t4"),
        said(note, "t4"),  # of a user, behind which the turn went on
        said(note, "t4", MessageRole.ASSISTANT),
    ]
    marked = [message.is_note for message in mark_older_notes(messages)]
    assert marked == [False, True, False, True, False, False, False, False]
    assert mark_older_notes([]) == []


@pytest.mark.parametrize(
    "text", ["x" * 50_000, '"\n' * 30_000, "ä" * 50_000, "\U0001f600" * 20_000]
)
def test_a_large_result_is_cut_to_its_limit(text: str) -> None:
    shuffled = "".join(random.Random(1).choices(text + "abcdefghij" * 3_000, k=60_000))
    for output in (shuffled, [shuffled]):
        cut = fit_output(output, 8_192)
        assert cut["truncated"] is True
        assert cut["original_bytes"] > 50_000
        assert len(cut["preview"]) > 1_000
        assert len(encode(cut)) <= 8_192


def test_a_result_that_only_its_compression_makes_small_is_cut() -> None:
    cut = fit_output({"log": "again and again\n" * 1_000_000}, 8_192)
    assert cut["truncated"] is True and cut["original_bytes"] > 16_000_000
    side: Any = {"actions": {"state_delta": {"k": "x" * 5_000_000}}}
    record = succeeded_record(TASK, ToolExecutionResult("fine", side), 1, 8_192)
    assert record.framework_data is None and record.output["result"] == "fine"
    fitting = {"log": "again and again\n" * 4_000}
    assert fit_output(fitting, 8_192) == fitting


def test_results_of_one_response_share_a_budget() -> None:
    assert result_limit(256 * 1024, 1) == 256 * 1024
    assert result_limit(256 * 1024, 64) == 32 * 1024
    assert result_limit(256 * 1024, MAX_CALLS) * MAX_CALLS <= 2 * 1024 * 1024


def test_side_data_that_cannot_be_stored_is_dropped_and_the_result_kept() -> None:
    record = succeeded_record(TASK, ToolExecutionResult("fine", object()), 1, 4_096)
    assert record.framework_data is None
    assert record.output["result"] == "fine"
    assert "was not stored: it is no JSON" in record.output["not_stored"]
    noise = random.Random(1).randbytes(4_000).hex()
    large: Any = ToolExecutionResult({"a": 1}, {"actions": {"state_delta": {"k": noise}}})
    record = succeeded_record(TASK, large, 1, 4_096)
    assert record.framework_data is None
    assert record.output["a"] == 1
    assert "limit 2048; see AgentSessionOptions.max_result_bytes" in record.output["not_stored"]
    large = ToolExecutionResult(noise, {"actions": noise})
    record = succeeded_record(TASK, large, 1, 4_096)
    assert record.output["truncated"]
    assert record.output["not_stored"]
    assert len(encode(record.output)) <= 4_096
    both = ToolExecutionResult("fine", object(), not_stored=["1 image was left out"])
    note = succeeded_record(TASK, both, 1, 4_096).output["not_stored"]
    assert note.startswith("1 image was left out; what the call left beside its result")
    # Also if the output is cut, and what the tool itself calls by that name stays.
    large = ToolExecutionResult(noise, not_stored=["1 image was left out"])
    record = succeeded_record(TASK, large, 1, 4_096)
    assert (record.output["truncated"], record.output["not_stored"]) == (
        True,
        "1 image was left out",
    )
    own = ToolExecutionResult({"not_stored": [1]}, not_stored=["1 image was left out"])
    assert succeeded_record(TASK, own, 1, 4_096).output == {
        "result": {"not_stored": [1]},
        "not_stored": "1 image was left out",
    }
    wrong: Any = ToolExecutionResult("fine", not_stored=7)  # type: ignore[arg-type]
    assert succeeded_record(TASK, wrong, 1, 4_096).output == "fine"
    not_a_result: Any = "text"
    record = succeeded_record(TASK, not_a_result, 1, 4_096)
    assert record.status is ToolCallStatus.SUCCEEDED
    assert record.output == {"unencodable": True, "preview": "'text'"}


def test_an_ill_formed_result_is_still_one() -> None:
    image = ImageReference("file:a", "image/png")
    wrong: Any = [image, "file:b"]
    record = succeeded_record(TASK, ToolExecutionResult("fine", images=wrong), 1, 4_096)
    assert (record.status, record.output, record.images) == ("succeeded", "fine", (image,))
    for no_list in (None, 7):
        result = ToolExecutionResult("fine", images=no_list)  # type: ignore[arg-type]
        record = succeeded_record(TASK, result, 1, 4_096)
        assert (record.status, record.output, record.images) == ("succeeded", "fine", ())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"heartbeat_timeout": timedelta(seconds=0.5)}, "heartbeat_timeout must be a whole number"),
        ({"tool_call_timeout": 60}, "tool_call_timeout must be a timedelta"),
        ({"model_attempts": 0}, "model_attempts must be 1 to"),
        ({"model_attempts": True}, "model_attempts must be an int"),
        ({"max_result_bytes": 10**9}, "max_result_bytes must be 4096 to"),
        ({"model_retry_interval": timedelta(minutes=1)}, "model_retry_limit must not be shorter"),
    ],
)
def test_wrong_options_are_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        AgentSessionOptions(**changes)


def test_options_take_many_hours() -> None:
    assert AgentSessionOptions(tool_call_timeout=timedelta(days=3)).tool_call_timeout.days == 3


def test_the_page_cache_is_bounded_and_only_a_cache() -> None:
    pages = [
        encode([message_to_json(AgentMessage(MessageRole.USER, "x" * number))])
        for number in range(100, 120)
    ]
    cache = PageCache(max_bytes=1_000)
    for page in pages * 2:
        assert cache.read(page)[0].framework_item == decode(page)[0]["framework_item"]
    assert cache.read(pages[-1]) is cache.read(pages[-1])
    assert len(cache) < 8


class FakeStream:
    def __init__(self) -> None:
        self.messages: list[list[dict[str, Any]]] = []
        self.sizes: list[int] = []

    def write(self, context: object, value: str) -> None:
        self.messages.append(json.loads(value))
        self.sizes.append(len(value))


def _events(stream: FakeStream) -> StepEvents:
    context: Any = SimpleNamespace(step_execution_id="RunModel-1", attempt=2)
    given: Any = stream
    return StepEvents(given, context, "t1")


async def test_events_are_gathered_into_few_messages() -> None:
    stream = FakeStream()
    events = _events(stream)
    for number in range(3):
        events.emit("text_delta", text=str(number))
    assert stream.messages == []
    events.close()
    events.emit("text_delta", text="too late")
    (batch,) = stream.messages
    assert [event["seq"] for event in batch] == [0, 1, 2]
    assert {event["turn_id"] for event in batch} == {"t1"}
    assert {(event["step_execution_id"], event["attempt"]) for event in batch} == {
        ("RunModel-1", 2)
    }


async def test_full_and_old_batches_are_sent() -> None:
    stream = FakeStream()
    events = _events(stream)
    events.emit("text_delta", text="x" * GATHER_BYTES)
    assert len(stream.messages) == 1
    events.emit("text_delta", text="y")
    async with asyncio.timeout(10):
        while len(stream.messages) < 2:  # noqa: ASYNC110 - the timer under test has no event
            await asyncio.sleep(0.01)
    events.close()
    assert len(stream.messages) == 2


async def test_no_event_breaks_its_caller_or_the_size_limit() -> None:
    stream = FakeStream()
    events = _events(stream)
    events.emit("tool_call_started", arguments={"x": object()})
    events.emit("text_delta", text=math.nan)
    events.emit("text_delta", text="z" * 500_000, tool_name="t")
    events.emit("text_delta", text="\ud800", turn_id="forged", seq=-1)
    await asyncio.to_thread(events.emit, "text_delta", text="from a thread")
    await asyncio.sleep(0)
    events.close()
    sent = [event for batch in stream.messages for event in batch]
    assert [event.get("text") for event in sent] == [None, "\ud800", "from a thread"]
    assert sent[0]["is_cut"] is True and sent[0]["tool_name"] == "t"
    assert [event["seq"] for event in sent] == [0, 1, 2]
    assert {event["turn_id"] for event in sent} == {"t1"}
    assert max(stream.sizes) <= MAX_MESSAGE_BYTES + 2 < 100 * 1024


def test_the_unknown_text_says_what_to_do() -> None:
    assert "unknown" in OUTCOME_UNKNOWN_TOOL_RESULT
    assert "Do not call it again" in OUTCOME_UNKNOWN_TOOL_RESULT
