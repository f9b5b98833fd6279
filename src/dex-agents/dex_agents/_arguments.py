"""Checks of arguments that many public functions take; each text names the argument and the way out."""

from __future__ import annotations

import os
from pathlib import Path


def check_server_address(address: object) -> None:
    """An engine's address is ``host:port``; raises TypeError, ValueError."""
    name = "server_address"
    hint = "must be host:port without a scheme, such as 127.0.0.1:8801"
    if not isinstance(address, str):
        raise TypeError(f"{name} {hint}, got {address!r}")
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    if not host.strip() or not is_port or "/" in address or not address.isprintable():
        raise ValueError(f"{name} {hint}, got {address[:80]!r}")


def check_name(name: str, value: object) -> None:
    """A name is a printable text that is not blank; raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    if not value.strip() or not value.isprintable():
        raise ValueError(f"{name} must be a printable text that is not blank, got {value[:80]!r}")


def check_count(name: str, value: object, least: int) -> None:
    """A count is an int from ``least`` on; raises TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_instance(name: str, value: object, kind: type, hint: str = "") -> None:
    """Raises TypeError if the value is not of this kind; ``hint`` says how to get one."""
    if not isinstance(value, kind):
        way_out = f"; {hint}" if hint else ""
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}{way_out}")


def path_of(name: str, value: object) -> Path:
    """The path that an argument names; raises TypeError, ValueError."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name} must be a path (str or os.PathLike), got {type(value).__name__}")
    text = os.fspath(value)
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name} must be a path, got {text[:80]!r}")
    return Path(text)
