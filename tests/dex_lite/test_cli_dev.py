"""`dex-lite dev` as a process: ready line, clean stop, and refusals that say who holds what."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf import empty_pb2

DEV = [sys.executable, "-m", "dex_lite", "dev"]


@contextlib.contextmanager
def running(
    *arguments: str, folder: Path, data: str = ""
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A served engine and the address from its ready line."""
    process = subprocess.Popen(
        [*DEV, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"dex-lite ready on (127\.0\.0\.1:\d+), data in (.+)\n", line)
        if not found:
            process.kill()
            pytest.fail(f"no ready line, but {line!r}; {process.communicate()[1]}")
        assert data in ("", found[2])
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def refused(*arguments: str, folder: Path) -> str:
    """The one line that a start which cannot work leaves on stderr."""
    done = subprocess.run(
        [*DEV, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("dex-lite: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def is_healthy(address: str, *metadata: tuple[str, str]) -> bool:
    with grpc.insecure_channel(address) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        stub.HealthCheck(empty_pb2.Empty(), timeout=10, metadata=metadata)
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_and_clean_stop(tmp_path: Path, number: signal.Signals) -> None:
    with running("--port", "0", folder=tmp_path) as (process, address):
        assert is_healthy(address)
        assert (tmp_path / ".dex-lite" / "dev.db").exists()
        process.send_signal(number)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "dex-lite stopped"
    assert errors == ""
    assert sorted(os.listdir(tmp_path / ".dex-lite")) == ["dev.db", "dev.db.lock"]


def test_chosen_file_and_start_after_a_kill(tmp_path: Path) -> None:
    arguments = ("--port", "0", "--data", "a/b.db")
    with running(*arguments, folder=tmp_path, data="a/b.db, a new file") as (process, _):
        process.kill()
        process.wait()
    assert (tmp_path / "a" / "b.db").exists()
    with running(*arguments, folder=tmp_path, data="a/b.db") as (_, address):
        assert is_healthy(address)


def test_settings_of_the_engine(tmp_path: Path) -> None:
    """With a retention, a closed Flow is gone and its id is free."""
    settings = ("--retention", "0", "--durability", "normal", "--log-format", "json")
    with running("--port", "0", *settings, folder=tmp_path) as (process, address):
        assert process.stderr is not None
        assert json.loads(process.stderr.readline())["durability"] == "normal"
        with grpc.insecure_channel(address) as channel:
            stub = dex_pb2_grpc.FlowServiceStub(channel)
            start = pb.StartFlowRequest(flow_id="f", flow_type="F", request_id="r")
            stub.StartFlow(start, timeout=30)
            stub.StopFlow(pb.StopFlowRequest(flow_id="f"), timeout=30)
            while json.loads(process.stderr.readline())["event"] != "runs_deleted":
                pass
            stub.StartFlow(start, timeout=30)


def test_second_engine_on_the_file_is_told_who_holds_it(tmp_path: Path) -> None:
    with running("--port", "0", folder=tmp_path) as (process, address):
        line = refused("--port", "0", folder=tmp_path)
        assert f"process {process.pid} on {socket.gethostname()}, serving {address}" in line
        assert "dev.db" in line
        assert is_healthy(address)


def test_second_engine_on_the_port_is_refused(tmp_path: Path) -> None:
    with running("--port", "0", folder=tmp_path) as (_, address):
        port = address.rpartition(":")[2]
        line = refused("--port", port, "--data", "other.db", folder=tmp_path)
        assert f"{address} is in use" in line
        assert "another port" in line
        assert is_healthy(address)


def test_unusable_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database")
    assert "not a dex-lite data file" in refused("--port", "0", "--data", "file", folder=tmp_path)
    assert "file" in refused("--port", "0", "--data", "file/a.db", folder=tmp_path)
    assert (tmp_path / "file").read_text() == "no database"


def test_unusable_address(tmp_path: Path) -> None:
    line = refused("--host", "no.such.host.invalid", folder=tmp_path)
    assert "no.such.host.invalid:8801" in line
    assert not (tmp_path / ".dex-lite").exists()


def test_an_open_address_needs_a_token_file(tmp_path: Path) -> None:
    line = refused("--bind", "0.0.0.0", "--port", "0", folder=tmp_path)
    assert "refused to serve on 0.0.0.0" in line
    assert "--token-file FILE" in line
    assert not (tmp_path / ".dex-lite").exists()


def test_a_token_file_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a-token-0123456789\n")
    with running("--port", "0", "--token-file", "tokens", folder=tmp_path) as (_, address):
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            is_healthy(address)
        assert is_healthy(address, ("authorization", "Bearer a-token-0123456789"))


def test_an_unusable_token_file_is_told_once(tmp_path: Path) -> None:
    line = refused("--port", "0", "--token-file", "missing", folder=tmp_path)
    assert "token file missing cannot be used: No such file or directory." in line


def test_metrics_and_logs_are_asked_for(tmp_path: Path) -> None:
    asked = ("--port", "0", "--metrics-port", "0", "--log-format", "json")
    with running(*asked, folder=tmp_path) as (process, address):
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"metrics on (http://127\.0\.0\.1:\d+/metrics)\n", line)
        assert found, line
        with urllib.request.urlopen(found[1], timeout=30) as answer:
            assert b"dex_lite_open_flows 0.0" in answer.read()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    events = [json.loads(line) for line in errors.splitlines()]
    names = [event["event"] for event in events]
    assert names == ["engine_started", "engine_stopping", "engine_stopped"]
    assert events[0]["address"] == address


def test_help_lists_the_options() -> None:
    done = subprocess.run(
        [*DEV, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )
    for option in (
        "--data",
        "--port",
        "--host",
        "--bind",
        "--token-file",
        "--metrics-port",
        "--log-format",
    ):
        assert option in done.stdout
