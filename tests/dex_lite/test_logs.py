"""Log lines: one for each event, no values of users, no way to fake a line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

import dex_lite
from dex_lite._logs import LogFormat, event, log_to
from dex_lite_samples import App, Mailbox

SECRET = "a value that nobody may see"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The engine's logger, as it was afterwards."""
    logger = logging.getLogger("dex_lite")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.parametrize("log_format", ["json", "text"])
async def test_a_life_of_a_flow_without_its_values(
    tmp_path: Path, logger: logging.Logger, log_format: LogFormat
) -> None:
    out = io.StringIO()
    log_to(log_format, out)
    mailbox = Mailbox()
    async with dex_lite.open_engine(tmp_path / "engine.db") as engine:
        app = App(engine.address, tmp_path, [mailbox])
        await app.start_worker()
        await app.client.start_flow(mailbox, "m", 0)
        await app.call(mailbox.send, "m", SECRET)
        await app.call(mailbox.send, "m", "end")
        await app.client.wait_for_flow("m")
        await app.close()
    assert SECRET not in out.getvalue()
    lines = out.getvalue().splitlines()
    if log_format == "json":
        events = [json.loads(line) for line in lines]
        assert all(line["time"].endswith("Z") and line["level"] for line in events)
        assert [line["flow_id"] for line in events if line["event"] == "flow_closed"] == ["m"]
        names = [line["event"] for line in events]
    else:
        names = [line.split()[2].rstrip(":") for line in lines]
        assert any("flow_closed: a Flow closed flow_id=m " in line for line in lines)
    wanted = (
        "engine_started worker_connected flow_started flow_closed engine_stopping engine_stopped"
    )
    assert "worker_gone" in names  # before or after the engine begins to stop
    assert [name for name in names if name in wanted.split()] == wanted.split()


async def test_a_failed_attempt_names_the_step_and_not_the_text(
    tmp_path: Path, logger: logging.Logger
) -> None:
    out = io.StringIO()
    log_to("json", out)
    async with (
        dex_lite.open_engine(tmp_path / "engine.db") as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        call = dex_pb2_grpc.WorkerTaskServiceStub(channel).PollWorkerTask()
        register = pb.PollWorkerTaskRegister(
            app_worker_id="w", queue="w", flow_types=["F"], sdk_name="s"
        )
        await call.write(pb.PollWorkerTaskRequest(register=register))
        await stub.StartFlow(
            pb.StartFlowRequest(
                flow_id="f",
                flow_type="F",
                request_id="r",
                start_step_type="S",
                step_options=pb.StepOptions(
                    skip_wait_for=True, execute_retry_policy=pb.RetryPolicy(maximum_attempts=1)
                ),
            )
        )
        while not (response := await call.read()).HasField("task"):
            pass
        frame = pb.PollWorkerTaskFrame(
            task_id=response.task.task_id,
            worker_error=pb.WorkerErrorResponse(error_type="Oops", detail=SECRET),
        )
        await call.write(pb.PollWorkerTaskRequest(task_frame=frame))
        await stub.WaitForFlow(pb.WaitForFlowRequest(flow_id="f"))
        call.cancel()
    failed = [
        line
        for line in map(json.loads, out.getvalue().splitlines())
        if line["event"] == "attempt_failed"
    ]
    assert [(line["step"], line["attempt"], line["error_type"]) for line in failed] == [
        ("S-1", 1, "Oops")
    ]
    assert SECRET not in out.getvalue()


def test_handlers_of_others_show_who_and_what(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dex_lite"):
        event(logging.WARNING, "attempt_failed", "it failed", flow_id="a\nb", attempt=2)
    assert caplog.messages == ['it failed flow_id="a\\nb" attempt=2']


def test_an_error_inside_is_traced_without_its_text(logger: logging.Logger) -> None:
    out = io.StringIO()
    log_to("json", out)
    try:
        raise ValueError(SECRET)
    except ValueError:
        logger.exception("it failed")
    line = json.loads(out.getvalue())
    assert line["error"] == "ValueError"
    assert "test_logs.py" in line["trace"][0]
    assert SECRET not in out.getvalue()


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_name_cannot_fake_a_line(logger: logging.Logger, log_format: LogFormat) -> None:
    out = io.StringIO()
    log_to(log_format, out)
    event(logging.INFO, "flow_started", "a Flow started", flow_id="a\n2026 INFO faked x=1")
    logger.warning("%s", "b\nfaked " + "y" * 10_000)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) < 1_000
