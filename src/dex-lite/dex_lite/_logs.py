"""Log lines that a program can read: one line for each event, names and numbers, never a value.

Texts of errors that a handler raised are left out as well, because handlers put values into them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]

_LOGGER = logging.getLogger("dex_lite")
_LONGEST_TEXT = 500


def event(level: int, name: str, message: str, **fields: str | int | float | None) -> None:
    """Log one event. Fields say who and how much; values of users do not belong there."""
    if _LOGGER.isEnabledFor(level):
        # Handlers of other people show the message only, so it has everything.
        extra = {"event": name, "text": message, "fields": fields}
        _LOGGER.log(level, "%s%s", message, _Fields(fields), extra=extra)


class _Fields:
    """Fields as text behind a message, made only if somebody wants it."""

    def __init__(self, fields: dict[str, str | int | float | None]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return "".join(
            f" {key}={_plain(_short_value(value))}" for key, value in self._fields.items()
        )


class _LineFormatter(logging.Formatter):
    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        self._is_json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname,
            "event": getattr(record, "event", "message"),
            "message": _short(getattr(record, "text", None) or record.getMessage()),
        }
        fields = getattr(record, "fields", {})
        line.update((key, _short_value(value)) for key, value in fields.items())
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            line["error"] = kind.__name__
            line["trace"] = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(trace)
            ]
        if self._is_json:
            return json.dumps(line)
        first = f"{line.pop('time')} {line.pop('level')} {line.pop('event')}: {line.pop('message')}"
        return " ".join([_one_line(first), *(f"{key}={_plain(line[key])}" for key in line)])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _short_value(value: object) -> object:
    return _short(value) if isinstance(value, str) else value


def _one_line(text: str) -> str:
    # A name with a line break must not look like another event.
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _plain(value: object) -> str:
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(' "='):
        return value
    return json.dumps(value)


def log_to(log_format: LogFormat, stream: TextIO | None = None) -> logging.Handler:
    """Write the engine's events to a stream (standard error), from now on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LineFormatter(log_format))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    return handler
