"""A place that logs over and over is heard once in ten seconds, with the number of the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from dex_agents._quiet_logs import RepeatFilter

LOGGER = logging.getLogger("test_quiet_logs")


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.lines: list[str] = []
        self.addFilter(RepeatFilter(lambda: self.now))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)


def test_one_line_in_ten_seconds(heard: Heard) -> None:
    for number in range(70):
        LOGGER.warning("stream %d lost", number)
        LOGGER.warning("another place")
    assert heard.lines == ["stream 0 lost", "another place"]
    heard.now += 10
    LOGGER.warning("stream %d lost", 70)
    assert heard.lines[2:] == ["stream 70 lost (and 69 more like this)"]
    heard.now += 10
    LOGGER.warning("stream %d lost", 71)
    assert heard.lines[3:] == ["stream 71 lost"]


def test_errors_are_all_heard(heard: Heard) -> None:
    for _ in range(3):
        LOGGER.error("broken")
    assert heard.lines == ["broken"] * 3


def test_what_it_remembers_is_bounded(heard: Heard) -> None:
    for number in range(5_000):
        LOGGER.warning(f"made up {number}")
    assert len(heard.lines) == 5_000
    (repeats,) = heard.filters
    assert isinstance(repeats, RepeatFilter)
    assert len(repeats._places) <= 1_000
