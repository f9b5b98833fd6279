"""Bearer tokens: no call or stream without one, rotation while the engine runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dex import FileCredential
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

import dex_lite
from dex_lite._auth import TokenFile, is_loopback
from dex_lite_samples import App, Chain

OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def _write(path: Path, *tokens: str) -> Path:
    """Replace the file as a rotation should: whole or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(f"{token}\n" for token in tokens))
    os.replace(fresh, path)
    return path


@asynccontextmanager
async def _served(folder: Path, *tokens: str) -> AsyncIterator[tuple[str, grpc.aio.Channel]]:
    file = _write(folder / "tokens", *tokens)
    async with (
        dex_lite.open_engine(folder / "engine.db", token_file=file) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        yield engine.address, channel


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def _code(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_every_method_refuses_a_call_without_a_token(tmp_path: Path) -> None:
    methods = pb.DESCRIPTOR.services_by_name["FlowService"].methods
    async with _served(tmp_path, OLD) as (_, channel):
        for method in methods:
            call = channel.unary_unary(f"/dex.FlowService/{method.name}", None, None)
            for metadata in ((), _bearer(NEW), (("authorization", OLD),), _bearer(OLD) * 2):
                code, text = await _code(call(b"", metadata=metadata, timeout=30))
                assert code is grpc.StatusCode.UNAUTHENTICATED, method.name
                assert "token" in text.lower()
                assert OLD not in text
    assert len(methods) > 20


async def test_a_worker_stream_needs_a_token(tmp_path: Path) -> None:
    frame = pb.PollWorkerTaskRequest(
        register=pb.PollWorkerTaskRegister(
            app_worker_id="w", queue="w", flow_types=["F"], sdk_name="s"
        )
    )
    async with _served(tmp_path, OLD) as (_, channel):
        stub = dex_pb2_grpc.WorkerTaskServiceStub(channel)
        refused = stub.PollWorkerTask(iter([frame]), timeout=30)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await refused.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        accepted = stub.PollWorkerTask(metadata=_bearer(OLD), timeout=30)
        await accepted.write(frame)
        assert (await accepted.read()).HasField("registered")
        accepted.cancel()


async def test_tokens_rotate_without_a_restart(tmp_path: Path) -> None:
    async with _served(tmp_path, OLD) as (_, channel):
        stub = dex_pb2_grpc.FlowServiceStub(channel)

        async def code(token: str) -> grpc.StatusCode:
            return (await _code(stub.HealthCheck(Empty(), metadata=_bearer(token), timeout=30)))[0]

        assert await code(NEW) is grpc.StatusCode.UNAUTHENTICATED
        _write(tmp_path / "tokens", OLD, NEW)
        assert await code(NEW) is grpc.StatusCode.OK
        assert await code(OLD) is grpc.StatusCode.OK
        os.remove(tmp_path / "tokens")
        # Nobody new is let in, and the caller is told that it may try again.
        assert await code("some-other-token-0123") is grpc.StatusCode.UNAVAILABLE
        _write(tmp_path / "tokens", NEW)
        assert await code(NEW) is grpc.StatusCode.OK
        assert await code(OLD) is grpc.StatusCode.UNAUTHENTICATED


def test_a_removed_token_is_refused_within_a_second(tmp_path: Path) -> None:
    now = 0.0
    tokens = TokenFile(_write(tmp_path / "tokens", OLD, NEW), lambda: now)
    _write(tmp_path / "tokens", NEW)
    now = 1.0
    assert not tokens.accepts(OLD)
    assert tokens.accepts(NEW)


@pytest.mark.parametrize(
    "content, fault",
    [
        (b"", "holds no token"),
        (b"\n \n", "holds no token"),
        (b"short\n", "token 1 has fewer than 16"),
        (OLD.encode() + b"\nwith a space in it\n", "token 2 holds a space"),
        ("öffentlich-öffentlich".encode(), "must be ASCII"),
        (b"x" * 70_000, "larger than"),
    ],
)
def test_token_files_that_cannot_be_used(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "tokens").write_bytes(content)
    with pytest.raises(dex_lite.TokenFileError, match=fault):
        TokenFile(tmp_path / "tokens")


async def test_an_open_address_needs_a_token_file(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(dex_lite.TokenNeededError, match="--token-file FILE"):
            async with dex_lite.open_engine(tmp_path / "engine.db", host=host):
                pytest.fail("it serves")
        assert not (tmp_path / "engine.db").exists()
    with pytest.raises(dex_lite.TokenNeededError, match=r"0\.0\.0\.0"):
        async with dex_lite.open_engine(
            tmp_path / "engine.db", metrics_host="0.0.0.0", metrics_port=0
        ):
            pytest.fail("it serves")
    with pytest.raises(dex_lite.TokenFileError, match="No such file"):
        async with dex_lite.open_engine(tmp_path / "engine.db", token_file=tmp_path / "none"):
            pytest.fail("it serves")
    file = _write(tmp_path / "tokens", OLD)
    async with dex_lite.open_engine(tmp_path / "a.db", host="0.0.0.0", token_file=file) as engine:
        assert engine.address.startswith("0.0.0.0:")


@pytest.mark.parametrize(
    "host, expected",
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("[::1]", True), ("::", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


async def test_the_unmodified_sdk_sends_its_credential(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text(NEW)
    chain = Chain()
    async with _served(tmp_path, OLD, NEW) as (address, _):
        app = App(address, tmp_path, [chain], FileCredential(mine))
        (tmp_path / "bare").mkdir()
        bare = App(address, tmp_path / "bare", [chain])
        try:
            await app.start_worker()
            await app.client.start_flow(chain, "f", 3)
            assert (await app.client.wait_for_flow("f")).single_output(int) == 0
            with pytest.raises(Exception, match="needs a token"):
                await bare.client.start_flow(chain, "g", 3)
        finally:
            await bare.close()
            await app.close()
