"""What the client refuses before it stores or sends anything.

Each check raises ``InvalidInputError``, whose text names the argument, its limit and a way out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dex_agents._arguments import shown
from dex_agents._errors import InvalidInputError
from dex_agents._media.reference import ImageReference

MAX_ID_CHARACTERS = 200
MAX_IMAGES = 100
MAX_ARGUMENTS_BYTES = 64 * 1024
MAX_JSON_DEPTH = 64
MAX_REFERENCE_CHARACTERS = 256
MAX_STATE_BYTES = 4096
MAX_TURN = 99_999_999
"""The last turn whose page has its place in order."""
MAX_PAGE_TURNS = 100
MAX_TIMEOUT_S = 366 * 24 * 3600
_MAX_TOKEN_CHARACTERS = 4096
_MAX_URI_CHARACTERS = 2048
_UPLOAD = "; upload each image with put_image of the media store first"
_FORBIDDEN_IN_IDS = "/$:"
_TURN_ID = re.compile(r"t[1-9][0-9]{0,7}", re.ASCII)
_REFERENCE = re.compile(f"[A-Za-z0-9._:/@+-]{{1,{MAX_REFERENCE_CHARACTERS}}}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def check_session_id(session_id: object, name: str = "session_id") -> None:
    """Refuse what can be no Flow id."""
    text = _text(name, session_id)
    _check_length(name, text, MAX_ID_CHARACTERS, "; choose a shorter one")
    bad = sorted({c for c in text if c in _FORBIDDEN_IN_IDS or not c.isprintable()})
    if bad:
        raise InvalidInputError(
            f"{name} {text!r} must not contain {', '.join(map(repr, bad))}; "
            "letters, digits, '-', '_' and '.' are always taken"
        )


def check_text(name: str, text: object, limit: int) -> None:
    """Refuse what is no text for a model, or longer than ``limit`` bytes."""
    size = len(_encodable(name, _text(name, text)))
    if size > limit:
        raise InvalidInputError(
            f"{name} has {size} bytes, at most {limit} are taken; "
            "shorten it, or raise AgentSessionOptions.max_message_bytes"
        )


def check_steering_size(text: str, limit: int) -> None:
    """Refuse what is too long for an open turn."""
    size = len(text.encode("utf-8"))
    if size > limit:
        raise InvalidInputError(
            f"text has {size} bytes, a message into an open turn at most "
            f"{limit}; send a longer one with send_user_message"
        )


def check_command_id(name: str, value: object) -> None:
    """Refuse what cannot name a message or an answer."""
    text = _text(name, value)
    _check_length(name, text, MAX_ID_CHARACTERS, "; leave it out and one is made")
    _encodable(name, text)


def check_interrupt_id(interrupt_id: object) -> str:
    """Refuse what can name no interrupt. Whether it can be one's id is not known before a look."""
    return _text("interrupt_id", interrupt_id, "; see snapshot.pending_interrupts")


def is_interrupt_id(text: str) -> bool:
    """Whether it could be an id at all; the engine takes no other text as a name."""
    return text.isprintable() and "/" not in text and len(text) <= MAX_ID_CHARACTERS


def check_state(state: object, limit: int) -> None:
    """Refuse what can be no session state."""
    if not isinstance(state, Mapping):
        raise InvalidInputError(
            f"state must be a mapping of names to JSON values, got {type(state).__name__}"
        )
    check_json("state", dict(state), limit)


def check_one_of(**values: object) -> None:
    """Refuse more than one of arguments that exclude each other."""
    given = [name for name, value in values.items() if value is not None]
    if len(given) > 1:
        raise InvalidInputError(f"{' and '.join(given)} exclude each other; leave one of them out")


def check_turn_id(turn_id: object) -> None:
    """Refuse what names no turn."""
    if not isinstance(turn_id, str) or not is_turn_id(turn_id):
        raise InvalidInputError(
            f"turn_id must be like 't12', got {shown(turn_id)}; take snapshot.turn_id, or leave it "
            "out for the turn that is open"
        )


def is_turn_id(text: str) -> bool:
    """Whether it could be the id of a turn."""
    return _TURN_ID.fullmatch(text) is not None


def check_reason(reason: object) -> str:
    """Refuse a reason that is no text; its length is cut, not refused."""
    if not isinstance(reason, str):
        raise InvalidInputError(
            f"reason must be a str, got {type(reason).__name__}; leave it out for none"
        )
    return reason


def check_approved(approved: object) -> None:
    """Refuse everything but a bool: ``"no"`` and ``[False]`` are true to Python."""
    check_flag("approved", approved)


def check_flag(name: str, value: object) -> None:
    """Refuse everything but a bool, for the same reason."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} must be True or False, got {shown(value)}")


def check_digest(digest: object) -> None:
    """Refuse what can be no digest of arguments, above all an empty one, which compares nothing."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidInputError(
            f"arguments_digest must be 64 hexadecimal digits, got {shown(digest)}; take "
            "PendingInterrupt.arguments_digest, or leave it out"
        )


def check_arguments(arguments: object, approved: bool) -> None:
    """Refuse arguments that no call could have been made with."""
    if not approved:
        raise InvalidInputError(
            "arguments belong to an approval; a rejection says what is wrong in its message"
        )
    if not isinstance(arguments, Mapping):
        raise InvalidInputError(
            "arguments must be a mapping of argument names to JSON values, got "
            f"{type(arguments).__name__}"
        )
    size = len(_json_bytes("arguments", dict(arguments)))
    if size > MAX_ARGUMENTS_BYTES:
        raise InvalidInputError(
            f"arguments take {size} bytes as JSON, at most {MAX_ARGUMENTS_BYTES} are taken; "
            "reject the call with a message instead"
        )


def check_json(name: str, value: object, limit: int) -> None:
    """Refuse what is no JSON value, or takes more than ``limit`` bytes as text."""
    size = len(_json_bytes(name, value))
    if size > limit:
        raise InvalidInputError(
            f"{name} takes {size} bytes as JSON, at most {limit} are taken; "
            "shorten it, or raise AgentSessionOptions.max_message_bytes"
        )


def check_answer(answer: object, limit: int) -> None:
    """Refuse what is no answer to a question."""
    if answer is None:
        raise InvalidInputError(
            "answer must not be None, which is no answer; cancel_turn ends a turn without one"
        )
    check_json("answer", answer, limit)


def check_reference(reference: object) -> str:
    """Refuse what can be no name of a secret. It is not shown, as it may be the secret."""
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise InvalidInputError(
            f"reference must be a name of 1 to {MAX_REFERENCE_CHARACTERS} letters, digits and "
            ". _ : / @ + -; keep the secret, or the URL of an authorization's callback, under such "
            "a name where the credential resolver finds it, and give the name"
        )
    return reference


def check_images(images: object, *, takes_images: bool) -> None:
    """Refuse what are no stored images, or too many for one message."""
    if isinstance(images, (str, bytes)) or not isinstance(images, Sequence):
        raise InvalidInputError(
            f"images must be a list of ImageReference, got {shown(images)}{_UPLOAD}"
        )
    for image in images:
        if not isinstance(image, ImageReference):
            raise InvalidInputError(
                f"images must hold ImageReference objects, got {type(image).__name__}{_UPLOAD}"
            )
        for name, value in (("uri", image.uri), ("mime_type", image.mime_type)):
            text = _text(f"{name} of an image", value)
            _check_length(f"{name} of an image", text, _MAX_URI_CHARACTERS, _UPLOAD)
            _encodable(f"{name} of an image", text)
    if len(images) > MAX_IMAGES:
        raise InvalidInputError(
            f"a message has {len(images)} images, at most {MAX_IMAGES} are taken; "
            "send the rest with another message"
        )
    if images and not takes_images:
        raise InvalidInputError(
            "this Flow takes no images, because it has no media store; pass media_store when "
            "you build it"
        )


def check_page(before_turn: object, turns: object) -> None:
    """Refuse what names no page of the history."""
    _check_int("turns", turns, 1, MAX_PAGE_TURNS, "read more with next_before_turn of the page")
    if before_turn is not None:
        _check_int("before_turn", before_turn, 1, MAX_TURN, "leave it out for the newest turns")


def check_wait(turns_done: object, timeout_s: object) -> None:
    """Refuse what cannot be waited for."""
    _check_int("turns_done", turns_done, 0, MAX_TURN, "the first turn is 1")
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not _is_in(timeout_s, MAX_TIMEOUT_S):
        raise InvalidInputError(
            f"timeout_s must be a number of seconds above 0 and at most {MAX_TIMEOUT_S}, got "
            f"{shown(timeout_s)}; get_agent_snapshot looks without waiting"
        )


def check_resume_token(token: object) -> None:
    """Refuse what no batch of events can have come with."""
    if not isinstance(token, str):
        raise InvalidInputError(
            f'resume_token must be a str, got {type(token).__name__}; use "" for all that are kept'
        )
    if len(token) > _MAX_TOKEN_CHARACTERS or not token.isprintable():
        raise InvalidInputError(
            f"resume_token {shown(token)} is none: at most {_MAX_TOKEN_CHARACTERS} printable "
            'characters are; take AgentEventBatch.resume_token, or use "" for all that are kept'
        )


def _json_bytes(name: str, value: object) -> bytes:
    """A JSON value as stored; what JSON would silently change is refused.

    Raises:
        InvalidInputError: It is no JSON value; the text says where.
    """
    fault = _json_fault(name, value, 0)
    if fault:
        raise InvalidInputError(f"{name} must be a JSON value: {fault}")
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _json_fault(place: str, value: object, depth: int) -> str:
    """Why it is no JSON value that a model can read, with the place; or empty."""
    if depth > MAX_JSON_DEPTH:
        return f"it is nested deeper than {MAX_JSON_DEPTH}; make it flatter"
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        at = _surrogate(value)
        return "" if at is None else f"character {at} of {place} is a lone surrogate; leave it out"
    if isinstance(value, int):
        # Python refuses to write longer ones, and no JSON reader keeps them.
        return "" if abs(value) < 10**300 else f"{place} is a number with over 300 digits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{place} is {value}; use None or a text"
    if isinstance(value, dict):
        return _object_fault(place, value, depth)
    if isinstance(value, (list, tuple)):
        faults = (_json_fault(f"{place}[{i}]", item, depth + 1) for i, item in enumerate(value))
        return next(filter(None, faults), "")
    kind = type(value).__name__
    return f"{place} has the type {kind}; use str, int, float, bool, None, list and dict"


def _object_fault(place: str, value: dict[Any, Any], depth: int) -> str:
    for name, item in value.items():
        if not isinstance(name, str):
            return f"{place} has the name {shown(name)}; use str names"
        if _surrogate(name) is not None:
            return f"{place} has the name {name!r:.40}, which is no valid Unicode text; rename it"
        if fault := _json_fault(f"{place}[{name!r:.40}]", item, depth + 1):
            return fault
    return ""


def _text(name: str, text: object, hint: str = "") -> str:
    if not isinstance(text, str):
        raise InvalidInputError(f"{name} must be a str, got {type(text).__name__}{hint}")
    if not text.strip():
        raise InvalidInputError(f"{name} must not be blank{hint}")
    return text


def _encodable(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{name} is no valid Unicode text: character {error.start} is a lone surrogate; "
            "leave it out"
        ) from None


def _surrogate(text: str) -> int | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def _check_length(name: str, text: str, limit: int, hint: str) -> None:
    if len(text) > limit:
        raise InvalidInputError(
            f"{name} has {len(text)} characters, at most {limit} are taken{hint}"
        )


def _check_int(name: str, value: object, least: int, most: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInputError(f"{name} must be {least} to {most}, got {shown(value)}; {hint}")


def _is_in(value: Any, most: int) -> bool:
    return bool(0 < value <= most)  # NaN is not
