"""A place that logs over and over is heard once in ten seconds, with the number of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dex_agents._quiet_logs import LostEngineFilter, RepeatFilter
from dex_agents.testing import Ledger, WorkerProcess, private_engine
from support.kit_flow import kit_client

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


class Gone(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


def sdk_record(text: str, error: Exception, *, is_traced: bool) -> logging.LogRecord:
    info = (type(error), error, None) if is_traced else None
    args = () if is_traced else (error,)
    return logging.LogRecord("dex._pull_worker", logging.ERROR, "f", 1, text, args, info)


@pytest.mark.parametrize(
    ("text", "error", "is_traced", "is_loss"),
    [
        ("Worker task stream disconnected: %s", Gone(grpc.StatusCode.UNAVAILABLE), False, True),
        ("send Worker error frame failed", asyncio.InvalidStateError("finished"), True, True),
        ("send Worker keepalive Pong failed", Gone(grpc.StatusCode.UNAVAILABLE), True, True),
        ("Worker task stream disconnected: %s", Gone(grpc.StatusCode.INTERNAL), False, False),
        ("send Worker error frame failed", ValueError("a bug"), True, False),
        ("Python Worker invocation failed", Gone(grpc.StatusCode.UNAVAILABLE), True, False),
    ],
)
def test_only_the_loss_of_the_engine_is_put_shortly(
    text: str, error: Exception, is_traced: bool, is_loss: bool
) -> None:
    record = sdk_record(text, error, is_traced=is_traced)
    assert LostEngineFilter("host:8801").filter(record)
    is_short = record.getMessage().startswith("the engine at host:8801 is away; ")
    assert is_short == is_loss
    assert (record.levelno == logging.WARNING) == is_loss
    assert (record.exc_info is not None) == (is_traced and not is_loss)


async def test_an_engine_that_goes_and_comes_is_a_line_each_in_the_log_of_a_worker(
    tmp_path: Path,
) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        kit_client(engine, tmp_path) as (client, flow),
    ):
        worker = await WorkerProcess.start(
            "support.kit_flow:build_flow", server_address=engine.address, data_dir=tmp_path
        )
        await client.start_flow(flow, "f", 600.0)
        ledger = Ledger(tmp_path / "ledger.jsonl")
        async with asyncio.timeout(40):
            while not ledger.count("began"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await engine.kill()
            while "is away" not in worker.log.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await engine.restart()
            while "takes tasks again" not in worker.log.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        worker.kill()
        await worker.wait()
        # The Flow itself prints an empty line.
        away, *more, back = [line for line in worker.log.read_text().splitlines() if line]
    assert f"the engine at {engine.address} is away; " in away
    assert all("more like this)" in line for line in more)  # on a slow machine
    assert f"the engine at {engine.address} is back; the Worker takes tasks again" in back
