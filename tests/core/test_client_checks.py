"""Every argument of the client is checked before anything is sent: the engine here is away."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from core.conftest import TURN_S, Stages
from core.scripted_runner import ScriptedRunner
from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    ImageReference,
    InterruptError,
    InvalidInputError,
    SessionUnavailableError,
    TurnWaitTimeoutError,
)

Command = Callable[[AgentSessionClient, Any], Awaitable[Any]]
LONE = "a\ud800"
IMAGE = ImageReference("file:a", "image/png")
WRONG: Any = 7

# Every function of the client, with one argument left open.
SESSION_ID: dict[str, Command] = {
    "start_session": lambda c, v: c.start_session(v, "hi"),
    "send_user_message": lambda c, v: c.send_user_message(v, "hi"),
    "steer_user_message": lambda c, v: c.steer_user_message(v, "hi"),
    "get_agent_snapshot": lambda c, v: c.get_agent_snapshot(v),
    "cancel_turn": lambda c, v: c.cancel_turn(v),
    "close_session": lambda c, v: c.close_session(v),
    "resolve_interrupt": lambda c, v: c.resolve_interrupt(v, "i", approved=True),
    "answer_question": lambda c, v: c.answer_question(v, "i", 1),
    "provide_credential": lambda c, v: c.provide_credential(v, "i", "x"),
    "list_messages": lambda c, v: c.list_messages(v),
    "rewind": lambda c, v: c.rewind(v, "t2"),
    "fork_session": lambda c, v: c.fork_session(v, "f"),
    "read_events": lambda c, v: anext(c.read_events(v)),
    "wait_for_turn": lambda c, v: c.wait_for_turn(v, 1, timeout_s=1),
    "wait_until_settled": lambda c, v: c.wait_until_settled(v, turns_done=1, timeout_s=1),
}
TEXT: dict[str, Command] = {
    "start_session": lambda c, v: c.start_session("s", v),
    "send_user_message": lambda c, v: c.send_user_message("s", v),
    "steer_user_message": lambda c, v: c.steer_user_message("s", v),
}
IMAGES: dict[str, Command] = {
    "start_session": lambda c, v: c.start_session("s", "hi", images=v),
    "send_user_message": lambda c, v: c.send_user_message("s", "hi", images=v),
}
MESSAGE_ID: dict[str, Command] = {
    "send_user_message": lambda c, v: c.send_user_message("s", "hi", message_id=v),
    "steer_user_message": lambda c, v: c.steer_user_message("s", "hi", message_id=v),
}
ANSWER_ID: dict[str, Command] = {
    "resolve_interrupt": lambda c, v: c.resolve_interrupt("s", "i", approved=True, answer_id=v),
    "answer_question": lambda c, v: c.answer_question("s", "i", 1, answer_id=v),
    "provide_credential": lambda c, v: c.provide_credential("s", "i", "x", answer_id=v),
}
INTERRUPT_ID: dict[str, Command] = {
    "resolve_interrupt": lambda c, v: c.resolve_interrupt("s", v, approved=True),
    "answer_question": lambda c, v: c.answer_question("s", v, 1),
    "provide_credential": lambda c, v: c.provide_credential("s", v, "x"),
}
WAITS: dict[str, Command] = {
    "wait_for_turn": lambda c, v: c.wait_for_turn("s", v, timeout_s=1),
    "wait_until_settled": lambda c, v: c.wait_until_settled("s", turns_done=v, timeout_s=1),
}
TIMEOUTS: dict[str, Command] = {
    "wait_for_turn": lambda c, v: c.wait_for_turn("s", 1, timeout_s=v),
    "wait_until_settled": lambda c, v: c.wait_until_settled("s", turns_done=1, timeout_s=v),
}
TURN_ID: dict[str, Command] = {"cancel_turn": lambda c, v: c.cancel_turn("s", turn_id=v)}
TARGET: dict[str, Command] = {"rewind": lambda c, v: c.rewind("s", v)}
NEW_ID: dict[str, Command] = {"fork_session": lambda c, v: c.fork_session("s", v)}
SEEN: dict[str, Command] = {"rewind": lambda c, v: c.rewind("s", "t2", expected_last_turn_id=v)}
FORK_BEFORE: dict[str, Command] = {
    "fork_session": lambda c, v: c.fork_session("s", "f", before_turn_id=v)
}
FORK_AFTER: dict[str, Command] = {
    "fork_session": lambda c, v: c.fork_session("s", "f", after_turn_id=v)
}
BOTH: dict[str, Command] = {
    "fork_session": lambda c, v: c.fork_session("s", "f", before_turn_id=v, after_turn_id=v)
}
REFERENCE: dict[str, Command] = {
    "provide_credential": lambda c, v: c.provide_credential("s", "i", v)
}
CALLBACK: dict[str, Command] = {
    "provide_credential": lambda c, v: c.provide_credential("s", "i", "x", state=v)
}
REQUEST_ID: dict[str, Command] = {"rewind": lambda c, v: c.rewind("s", "t2", request_id=v)}
REMOVED: dict[str, Command] = {
    "list_messages": lambda c, v: c.list_messages("s", include_removed=v)
}
REASON: dict[str, Command] = {"close_session": lambda c, v: c.close_session("s", reason=v)}
TURNS: dict[str, Command] = {"list_messages": lambda c, v: c.list_messages("s", turns=v)}
BEFORE: dict[str, Command] = {"list_messages": lambda c, v: c.list_messages("s", before_turn=v)}
TOKEN: dict[str, Command] = {"read_events": lambda c, v: anext(c.read_events("s", resume_token=v))}
ANSWER: dict[str, Command] = {"answer_question": lambda c, v: c.answer_question("s", "i", v)}


def resolving(name: str, *, approved: bool = True) -> dict[str, Command]:
    """``resolve_interrupt`` with one of its other arguments left open."""
    return {
        "resolve_interrupt": lambda c, v: c.resolve_interrupt(
            "s", "i", **{"approved": approved, name: v}
        )
    }


SHORTEN = "shorten it, or raise AgentSessionOptions.max_message_bytes"
UPLOAD = "upload each image with put_image of the media store first"
PENDING = "see snapshot.pending_interrupts"
TAKE_TURN = "take snapshot.turn_id, or leave it out for the turn that is open"
TAKE_DIGEST = "take PendingInterrupt.arguments_digest, or leave it out"
TAKE_TOKEN = 'take AgentEventBatch.resume_token, or use "" for all that are kept'
LOOK = "get_agent_snapshot looks without waiting"
SECONDS = "timeout_s must be a number of seconds above 0 and at most 31622400"
ALWAYS = "letters, digits, '-', '_' and '.' are always taken"
JSON_TYPES = "use str, int, float, bool, None, list and dict"
NO_REFERENCE = (
    "reference must be a name of 1 to 256 letters, digits and . _ : / @ + -; keep the secret, or the "
    "URL of an authorization's callback, under such a name where the credential resolver finds it, and "
    "give the name"
)
TOO_DEEP = "it is nested deeper than 64; make it flatter"
SURROGATE = "is no valid Unicode text: character 1 is a lone surrogate; leave it out"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


CASES: list[tuple[dict[str, Command], Any, str]] = [
    (SESSION_ID, 7, "session_id must be a str, got int"),
    (SESSION_ID, None, "session_id must be a str, got NoneType"),
    (SESSION_ID, True, "session_id must be a str, got bool"),
    (SESSION_ID, b"s", "session_id must be a str, got bytes"),
    (SESSION_ID, "", "session_id must not be blank"),
    (SESSION_ID, " \t", "session_id must not be blank"),
    (
        SESSION_ID,
        "x" * 201,
        "session_id has 201 characters, at most 200 are taken; choose a shorter one",
    ),
    (SESSION_ID, "a/b", f"session_id 'a/b' must not contain '/'; {ALWAYS}"),
    (SESSION_ID, "a$b:c", f"session_id 'a$b:c' must not contain '$', ':'; {ALWAYS}"),
    (SESSION_ID, "a\nb", f"session_id 'a\\nb' must not contain '\\n'; {ALWAYS}"),
    (SESSION_ID, "a\0", f"session_id 'a\\x00' must not contain '\\x00'; {ALWAYS}"),
    (SESSION_ID, LONE, f"session_id 'a\\ud800' must not contain '\\ud800'; {ALWAYS}"),
    (TEXT, None, "text must be a str, got NoneType"),
    (TEXT, ["hi"], "text must be a str, got list"),
    (TEXT, "", "text must not be blank"),
    (TEXT, " \n", "text must not be blank"),
    (TEXT, "x" * 1001, f"text has 1001 bytes, at most 1000 are taken; {SHORTEN}"),
    (TEXT, "ä" * 501, f"text has 1002 bytes, at most 1000 are taken; {SHORTEN}"),
    (TEXT, LONE, f"text {SURROGATE}"),
    (IMAGES, "one", f"images must be a list of ImageReference, got 'one'; {UPLOAD}"),
    (IMAGES, IMAGE, f"images must be a list of ImageReference, got {IMAGE!r}; {UPLOAD}"),
    (IMAGES, [b"\x89PNG"], f"images must hold ImageReference objects, got bytes; {UPLOAD}"),
    (IMAGES, [ImageReference("a", "")], "mime_type of an image must not be blank"),
    (IMAGES, [ImageReference(LONE, "image/png")], f"uri of an image {SURROGATE}"),
    (
        IMAGES,
        [ImageReference("x" * 2049, "image/png")],
        f"uri of an image has 2049 characters, at most 2048 are taken; {UPLOAD}",
    ),
    (
        IMAGES,
        [IMAGE] * 101,
        "a message has 101 images, at most 100 are taken; send the rest with another message",
    ),
    (
        IMAGES,
        [IMAGE],
        "this Flow takes no images, because it has no media store; pass media_store when you "
        "build it",
    ),
    (MESSAGE_ID, 7, "message_id must be a str, got int"),
    (MESSAGE_ID, "", "message_id must not be blank"),
    (
        MESSAGE_ID,
        "x" * 201,
        "message_id has 201 characters, at most 200 are taken; leave it out and one is made",
    ),
    (MESSAGE_ID, LONE, f"message_id {SURROGATE}"),
    (ANSWER_ID, 7, "answer_id must be a str, got int"),
    (ANSWER_ID, "", "answer_id must not be blank"),
    (
        ANSWER_ID,
        "x" * 201,
        "answer_id has 201 characters, at most 200 are taken; leave it out and one is made",
    ),
    (ANSWER_ID, LONE, f"answer_id {SURROGATE}"),
    (TARGET, 2, "before_turn_id must be a str, got int"),
    (TARGET, " ", "before_turn_id must not be blank"),
    (TARGET, LONE, f"before_turn_id {SURROGATE}"),
    *(
        (commands, value, f"{name} {text}")
        for name, commands in (
            ("expected_last_turn_id", SEEN),
            ("before_turn_id", FORK_BEFORE),
            ("after_turn_id", FORK_AFTER),
        )
        for value, text in (
            (2, "must be a str, got int"),
            (" ", "must not be blank"),
            (LONE, SURROGATE),
            ("t" * 1001, f"has 1001 bytes, at most 1000 are taken; {SHORTEN}"),
        )
    ),
    (BOTH, "t2", "before_turn_id and after_turn_id exclude each other; leave one of them out"),
    (NEW_ID, 7, "new_session_id must be a str, got int"),
    (NEW_ID, "../s", f"new_session_id '../s' must not contain '/'; {ALWAYS}"),
    (
        NEW_ID,
        "x" * 201,
        "new_session_id has 201 characters, at most 200 are taken; choose a shorter one",
    ),
    *((REFERENCE, value, NO_REFERENCE) for value in (7, "", "a b", "a\0", LONE, "x" * 257, "s=1")),
    (CALLBACK, 7, "state must be a str, got int"),
    (CALLBACK, LONE, f"state {SURROGATE}"),
    (REQUEST_ID, 7, "request_id must be a str, got int"),
    (REQUEST_ID, LONE, f"request_id {SURROGATE}"),
    (INTERRUPT_ID, None, f"interrupt_id must be a str, got NoneType; {PENDING}"),
    (INTERRUPT_ID, " ", f"interrupt_id must not be blank; {PENDING}"),
    (TURN_ID, 1, f"turn_id must be like 't12', got 1; {TAKE_TURN}"),
    (TURN_ID, "", f"turn_id must be like 't12', got ''; {TAKE_TURN}"),
    (TURN_ID, "t0", f"turn_id must be like 't12', got 't0'; {TAKE_TURN}"),
    (TURN_ID, "t1.1", f"turn_id must be like 't12', got 't1.1'; {TAKE_TURN}"),
    (TURN_ID, "t" + "1" * 99, f"turn_id must be like 't12', got 't{'1' * 55}...; {TAKE_TURN}"),
    (TURN_ID, LONE, f"turn_id must be like 't12', got 'a\\ud800'; {TAKE_TURN}"),
    (REASON, None, "reason must be a str, got NoneType; leave it out for none"),
    (REASON, 7, "reason must be a str, got int; leave it out for none"),
    (REMOVED, 1, "include_removed must be True or False, got 1"),
    (resolving("approved"), 1, "approved must be True or False, got 1"),
    (resolving("approved"), "no", "approved must be True or False, got 'no'"),
    (resolving("approved"), None, "approved must be True or False, got None"),
    (resolving("message"), 7, "message must be a str, got int"),
    (resolving("message"), " ", "message must not be blank"),
    (resolving("message"), LONE, f"message {SURROGATE}"),
    (
        resolving("message"),
        "x" * 1001,
        f"message has 1001 bytes, at most 1000 are taken; {SHORTEN}",
    ),
    (
        resolving("payload"),
        {1},
        f"payload must be a JSON value: payload has the type set; {JSON_TYPES}",
    ),
    (
        resolving("payload"),
        "x" * 999,
        f"payload takes 1001 bytes as JSON, at most 1000 are taken; {SHORTEN}",
    ),
    (
        resolving("arguments_digest"),
        7,
        f"arguments_digest must be 64 hexadecimal digits, got 7; {TAKE_DIGEST}",
    ),
    (
        resolving("arguments_digest"),
        "",
        f"arguments_digest must be 64 hexadecimal digits, got ''; {TAKE_DIGEST}",
    ),
    (
        resolving("arguments_digest"),
        "A" * 64,
        f"arguments_digest must be 64 hexadecimal digits, got '{'A' * 56}...; {TAKE_DIGEST}",
    ),
    (
        resolving("arguments", approved=False),
        {},
        "arguments belong to an approval; a rejection says what is wrong in its message",
    ),
    (
        resolving("arguments"),
        [1],
        "arguments must be a mapping of argument names to JSON values, got list",
    ),
    (
        resolving("arguments"),
        {1: 2},
        "arguments must be a JSON value: arguments has the name 1; use str names",
    ),
    (
        resolving("arguments"),
        {"a": [b"x"]},
        f"arguments must be a JSON value: arguments['a'][0] has the type bytes; {JSON_TYPES}",
    ),
    (
        resolving("arguments"),
        {"a": "x" * 65536},
        "arguments take 65544 bytes as JSON, at most 65536 are taken; "
        "reject the call with a message instead",
    ),
    (
        ANSWER,
        None,
        "answer must not be None, which is no answer; cancel_turn ends a turn without one",
    ),
    (
        ANSWER,
        float("nan"),
        "answer must be a JSON value: answer is nan; use None or a text",
    ),
    (
        ANSWER,
        {"a": float("-inf")},
        "answer must be a JSON value: answer['a'] is -inf; use None or a text",
    ),
    (ANSWER, 10**300, "answer must be a JSON value: answer is a number with over 300 digits"),
    (ANSWER, object, f"answer must be a JSON value: answer has the type type; {JSON_TYPES}"),
    (
        ANSWER,
        [LONE],
        "answer must be a JSON value: character 1 of answer[0] is a lone surrogate; leave it out",
    ),
    (
        ANSWER,
        {LONE: 1},
        "answer must be a JSON value: answer has the name 'a\\ud800', which is no valid Unicode "
        "text; rename it",
    ),
    (ANSWER, {True: 1}, "answer must be a JSON value: answer has the name True; use str names"),
    (ANSWER, nested(65), f"answer must be a JSON value: {TOO_DEEP}"),
    (ANSWER, nested(100_000), f"answer must be a JSON value: {TOO_DEEP}"),
    (ANSWER, endless(), f"answer must be a JSON value: {TOO_DEEP}"),
    (
        ANSWER,
        "x" * 999,
        f"answer takes 1001 bytes as JSON, at most 1000 are taken; {SHORTEN}",
    ),
    *(
        (
            TURNS,
            value,
            f"turns must be 1 to 100, got {shown}; read more with next_before_turn of the page",
        )
        for value, shown in (
            (0, "0"),
            (-1, "-1"),
            (101, "101"),
            (True, "True"),
            (1.0, "1.0"),
            ("1", "'1'"),
            (None, "None"),
            (10**5000, "an int of 16610 bits"),
        )
    ),
    *(
        (
            BEFORE,
            value,
            f"before_turn must be 1 to 99999999, got {shown}; leave it out for the newest turns",
        )
        for value, shown in (
            (0, "0"),
            (-5, "-5"),
            (True, "True"),
            (2.5, "2.5"),
            (10**8, "100000000"),
        )
    ),
    *(
        (WAITS, value, f"turns_done must be 0 to 99999999, got {shown}; the first turn is 1")
        for value, shown in ((-1, "-1"), (True, "True"), (1.5, "1.5"), ("1", "'1'"), (None, "None"))
    ),
    *(
        (TIMEOUTS, value, f"{SECONDS}, got {shown}; {LOOK}")
        for value, shown in (
            (0, "0"),
            (-1, "-1"),
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (True, "True"),
            ("1", "'1'"),
            (None, "None"),
            (10**9, "1000000000"),
        )
    ),
    (TOKEN, None, 'resume_token must be a str, got NoneType; use "" for all that are kept'),
    (
        TOKEN,
        LONE,
        "resume_token 'a\\ud800' is none: at most 4096 printable characters are; " + TAKE_TOKEN,
    ),
    (
        TOKEN,
        "x" * 4097,
        f"resume_token '{'x' * 56}... is none: at most 4096 printable characters are; {TAKE_TOKEN}",
    ),
]


def _cases() -> Iterator[Any]:
    for commands, value, text in CASES:
        for name, command in commands.items():
            yield pytest.param(command, value, text, id=f"{name}: {json.dumps(text)[1:61]}")


@pytest.mark.parametrize(("command", "value", "text"), list(_cases()))
async def test_a_wrong_argument_is_refused_before_anything_is_sent(
    offline: AgentSessionClient, command: Command, value: Any, text: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        await command(offline, value)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("command", "value"),
    [
        pytest.param(command, value, id=f"{name}: {value!r:.30}")
        for commands, value in (
            (SESSION_ID, "ä-1_x.é"),
            (SESSION_ID, "x" * 200),
            (TEXT, "x" * 1000),
            (TEXT, "\U0001f600\0"),
            (MESSAGE_ID, "a/b $:\n"),
            (TURN_ID, "t99999999"),
            (REQUEST_ID, "a/b $:\n"),
            (REASON, "x" * 100_000),
            (REASON, LONE),
            (resolving("payload"), {"a": [1, 2.5, None, True, "ä"]}),
            (resolving("arguments_digest"), "0" * 64),
            (ANSWER, nested(64)),
            (ANSWER, False),
            (TURNS, 100),
            (WAITS, 0),
        )
        for name, command in commands.items()
    ],
)
async def test_a_right_argument_is_sent(
    offline: AgentSessionClient, command: Command, value: Any
) -> None:
    # A wait may also find that its time is over while it tries again.
    with pytest.raises((SessionUnavailableError, TurnWaitTimeoutError)):
        await command(offline, value)


@pytest.mark.parametrize("interrupt_id", ["a/b", "i\ud800", "i\n", "x" * 201])
async def test_what_can_be_no_interrupt_is_not_pending(
    offline: AgentSessionClient, interrupt_id: str
) -> None:
    for command in INTERRUPT_ID.values():
        with pytest.raises(InterruptError) as refused:
            await command(offline, interrupt_id)
        assert str(refused.value) == (
            f"interrupt {repr(interrupt_id)[:200]} of session 's' is not pending: this session never "
            "asked it; see snapshot.pending_interrupts"
        )


async def test_turns_behind_the_newest_are_refused(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        await stage.sessions.start_session("s", "hi")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        page = await stage.sessions.list_messages("s", before_turn=2)
        assert [message.text for message in page.messages] == ["hi", "done"]
        with pytest.raises(InvalidInputError) as refused:
            await stage.sessions.list_messages("s", before_turn=50)
        assert str(refused.value) == (
            "before_turn must be at most 2, as session 's' has done 1 turns, got 50; leave it out "
            "for the newest turns"
        )
        first = await stage.sessions.list_messages("s", before_turn=1)
        assert (first.messages, first.next_before_turn) == ((), None)


def test_a_client_refuses_what_is_no_client() -> None:
    flow = AgentSessionFlow(ScriptedRunner([]), flow_type="Offline")
    no_client: Any = object()
    with pytest.raises(TypeError, match="AsyncClient, got object"):
        AgentSessionClient(no_client, flow)
