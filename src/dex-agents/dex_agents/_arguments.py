"""Checks of arguments that many public functions take; each text names the argument and the way out."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

_LONGEST = 60
_MOST = 2**31 - 1
"""Counts go to engines as 32 bits."""
_NAME_CHARACTERS = 4096
_FILE_NAME_BYTES = 255
"""What file systems take as the name of one file or folder."""
_NONE = type(None)
_FLOW_TYPE_CHARACTERS = 200
_FORBIDDEN_IN_NAMES = "/$:"
_WORDS = {bool: "True or False", Mapping: "a mapping", Sequence: "a list", _NONE: "None"}


def check_server_address(address: object, name: str = "server_address") -> None:
    """An engine's address is ``host:port``; raises TypeError, ValueError."""
    hint = "must be host:port without a scheme, such as 127.0.0.1:8801"
    if not isinstance(address, str):
        raise TypeError(f"{name} {hint}, got {shown(address)}")
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    if not host.strip() or not is_port or "/" in address or not address.isprintable():
        raise ValueError(f"{name} {hint}, got {address[:80]!r}")


def shown(value: object) -> str:
    """What was given, for an error: never longer than a line, whatever its ``repr`` does."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return f"an int of {value.bit_length()} bits"  # Python refuses to write very long ones
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def check_name(name: str, value: object, most: int = _NAME_CHARACTERS) -> None:
    """A name is a printable text of so many characters, not blank; raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    if not value.strip() or not value.isprintable():
        raise ValueError(f"{name} must be a printable text that is not blank, got {value[:80]!r}")
    if len(value) > most:
        raise ValueError(f"{name} must have at most {most} characters, got {len(value)}")


def check_file_name(name: str, value: object, most: int = _FILE_NAME_BYTES) -> None:
    """The name of a file in a folder, of so many bytes; raises TypeError, ValueError."""
    check_name(name, value)
    assert isinstance(value, str)
    if "/" in value or "\\" in value or value in (".", ".."):
        raise ValueError(f"{name} must be a file name without a folder, got {shown(value)}")
    if (size := len(value.encode())) > most:
        raise ValueError(f"{name} must be a file name of at most {most} bytes, got {size}")


def check_function_path(name: str, value: object) -> None:
    """A text ``module:function`` for another process; raises TypeError, ValueError."""
    if not isinstance(value, str) or value.strip(" "):
        check_name(name, value)
    assert isinstance(value, str)
    module, _, function = value.partition(":")
    if not module or not function:
        raise ValueError(f"{name} must look like 'module:function', got {shown(value)}")
    if (
        not all(module.split("."))
        or any(c in module for c in "/\\ ")
        or not function.isidentifier()
    ):
        raise ValueError(
            f"{name} must look like 'myshop.agent:build_flow', a module by its dotted name and a "
            f"function in it, got {shown(value)}"
        )


def check_flow_type(value: object) -> None:
    """The name of a Flow of sessions; raises TypeError, ValueError."""
    check_name("flow_type", value, most=_MOST)
    assert isinstance(value, str)
    if len(value) > _FLOW_TYPE_CHARACTERS or any(c in _FORBIDDEN_IN_NAMES for c in value):
        raise ValueError(
            f"flow_type must have at most {_FLOW_TYPE_CHARACTERS} characters and none of / $ and :, "
            f"got {len(value)}: {value[:80]!r}"
        )


def check_count(name: str, value: object, least: int) -> None:
    """A count is an int from ``least`` to 2**31 - 1; raises TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(value)}")
    if value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST}, got {shown(value)}")


def check_instance(name: str, value: object, kind: type, hint: str = "") -> None:
    """Raises TypeError if the value is not of this kind; ``hint`` says how to get one."""
    if not isinstance(value, kind):
        way_out = f"; {hint}" if hint else ""
        raise TypeError(
            f"{name} must be {_with_article(kind)}, got {type(value).__name__}{way_out}"
        )


def check_fields(
    owner: object, kinds: Mapping[str, type | tuple[type, ...]], error: type[TypeError] = TypeError
) -> None:
    """Raises ``error`` for the first field that is of none of its kinds.

    A bool is no int, and a text is no list, as almost never is meant what Python says there.
    """
    for name, kind in kinds.items():
        value = getattr(owner, name)
        if type(value) is kind:
            continue
        taken = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, taken) or _is_confused(value, taken):
            words = " or ".join(_WORDS.get(k) or _with_article(k) for k in taken)
            raise error(f"{type(owner).__name__}.{name} must be {words}, got {_kind_of(value)}")


def check_items(
    owner: object, name: str, kind: type, hint: str = "", error: type[TypeError] = TypeError
) -> None:
    """Raises ``error`` if the field is no list of this kind; ``hint`` says how to get one."""
    check_fields(owner, {name: Sequence}, error)
    items: Iterable[object] = getattr(owner, name)
    way_out = f"; {hint}" if hint else ""
    for item in items:
        if not isinstance(item, kind):
            raise error(
                f"{type(owner).__name__}.{name} must hold {kind.__name__} objects, got "
                f"{_kind_of(item)}{way_out}"
            )


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"


def _is_confused(value: object, taken: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool not in taken
    return isinstance(value, str | bytes) and Sequence in taken


def _kind_of(value: object) -> str:
    return "None" if value is None else type(value).__name__


def check_list(name: str, value: object, kind: type, hint: str) -> None:
    """A list of one kind; raises TypeError, whose ``hint`` says where one comes from."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list, got {_kind_of(value)}; {hint}")
    for item in value:
        if not isinstance(item, kind):
            raise TypeError(
                f"{name} must hold {kind.__name__} objects, got {_kind_of(item)}; {hint}"
            )


def check_texts(name: str, value: object) -> None:
    """A list of texts; raises TypeError, ValueError. A lone text would be taken letter by letter."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise TypeError(f"{name} must be a list of texts, got {_kind_of(value)}")
    for item in value:
        if not isinstance(item, str):
            raise TypeError(f"{name} must hold texts, got {_kind_of(item)}")
        if not _is_sendable(item):
            raise ValueError(
                f"{name} must hold texts without NUL or lone surrogates, got {shown(item)}"
            )


def check_text_mapping(name: str, value: object) -> None:
    """A mapping of texts to texts; raises TypeError, ValueError. What it holds may be secret and is not
    shown.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of texts, got {_kind_of(value)}")
    for item in (*value, *value.values()):
        if not isinstance(item, str):
            raise TypeError(f"{name} must map texts to texts, got {_kind_of(item)}")
    for key, text in value.items():
        if not _is_sendable(key) or not _is_sendable(text):
            raise ValueError(
                f"{name} must map texts to texts without NUL or lone surrogates; look at that of "
                f"{shown(key)}"
            )


def check_sendable(name: str, value: object) -> None:
    """A text that any protocol carries; raises TypeError, ValueError."""
    check_instance(name, value, str)
    if not _is_sendable(str(value)):
        raise ValueError(
            f"{name} must be a text without NUL or lone surrogates, got {shown(value)}"
        )


def _is_sendable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def check_token(token: object) -> None:
    """An engine's token, or empty for none; raises TypeError, ValueError. It is not shown."""
    check_instance("token", token, str, "leave it out for an engine that asks for none")
    assert isinstance(token, str)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            "token must be printable ASCII characters without blanks, as the engine's token file has it"
        )


def check_seconds(name: str, value: object) -> None:
    """Seconds above 0; raises TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be seconds as a number, got {shown(value)}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be seconds above 0, got {shown(value)}")


def check_callable(name: str, value: object, what: str) -> None:
    """Raises TypeError if nothing can call it; ``what`` says what it gets and gives."""
    if not callable(value):
        raise TypeError(f"{name} must be a function {what}, got {_kind_of(value)}")


def path_of(name: str, value: object) -> Path:
    """The path that an argument names; raises TypeError, ValueError."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name} must be a path (str or os.PathLike), got {type(value).__name__}")
    text = os.fspath(value)
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name} must be a path, got {text[:80]!r}")
    if len(text) > _NAME_CHARACTERS:
        raise ValueError(
            f"{name} must be a path of at most {_NAME_CHARACTERS} characters, got {len(text)}"
        )
    try:
        sizes = [len(os.fsencode(part)) for part in Path(text).parts]
    except UnicodeEncodeError:
        raise ValueError(
            f"{name} must be a path without lone surrogates, got {shown(text)}"
        ) from None
    if max(sizes, default=0) > _FILE_NAME_BYTES:
        raise ValueError(
            f"{name} must be a path whose parts have at most {_FILE_NAME_BYTES} bytes each, got one "
            f"of {max(sizes)}"
        )
    return Path(text)


def folder_of(name: str, value: object) -> Path:
    """The folder that an argument names, which is there or can be made; raises TypeError, ValueError."""
    path = path_of(name, value)
    for place in (path, *path.parents):
        if place.is_dir():
            break
        if place.exists() or place.is_symlink():
            raise ValueError(f"{name} must be a folder, but {shown(str(place))} is a file")
    return path
