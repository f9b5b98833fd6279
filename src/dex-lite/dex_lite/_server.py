"""An engine that serves: file, port, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
from dex.dexpb import dex_pb2_grpc

from dex_lite._auth import TokenFile, TokenInterceptor, check_exposure
from dex_lite._calls import ByName, CallMeter
from dex_lite._engine import Engine
from dex_lite._errors import DexLiteError, PortInUseError
from dex_lite._flow_service import FlowService
from dex_lite._journal import Journal
from dex_lite._logs import event
from dex_lite._matching import Matcher
from dex_lite._meter import Meter
from dex_lite._metrics import serve_metrics
from dex_lite._options import EngineOptions
from dex_lite._stream_log import StreamLog
from dex_lite._worker_service import add_worker_task_service

_CALLS_END_WITHIN_S = 2.0


class RunningEngine:
    """An engine that serves on :attr:`address`; made by :func:`open_engine`.

    Its metrics are at ``http://{metrics_address}/metrics``, if they were asked for.
    """

    def __init__(
        self,
        path: str,
        address: str,
        failed: asyncio.Future[DexLiteError],
        metrics_address: str | None = None,
    ) -> None:
        self.path = path
        self.address = address
        self.metrics_address = metrics_address
        self._failed = failed

    async def wait_failed(self) -> DexLiteError:
        """Wait until the engine stops because it can no longer store; the reason."""
        return await asyncio.shield(self._failed)


@contextlib.asynccontextmanager
async def open_engine(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    options: EngineOptions | None = None,
    token_file: str | os.PathLike[str] | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> AsyncIterator[RunningEngine]:
    """Open a data file and serve it until the block ends.

    Args:
        path: The SQLite file; it and its folder are made if they are not there.
        host: Address to serve on. One that other machines reach needs a token file.
        port: 0 lets the system choose; see ``address`` of the result.
        options: Settings.
        token_file: One valid bearer token on each line; every call and stream has to bring one of
            them. It is read again when it changes.
        metrics_port: Serve metrics for Prometheus there; 0 lets the system choose. Needs the extra
            ``metrics``.
        metrics_host: Address of the metrics. One that other machines reach needs a token file, and
            asks for one of its tokens as the engine does; the loopback asks for none.

    Raises:
        TypeError, ValueError: A path, a host, a port or ``options`` is none.
        DexLiteError: The file or the port cannot be used; the text says who holds it and the way out.
    """
    _check_path(path)
    _check_port("port", port)
    if metrics_port is not None:
        _check_port("metrics_port", metrics_port)
    _check_host("host", host)
    _check_host("metrics_host", metrics_host)
    if token_file is not None:
        _check_token_file(token_file)
    check_exposure(host, token_file)
    if metrics_port is not None:
        check_exposure(metrics_host, token_file)
    if options is not None and not isinstance(options, EngineOptions):
        raise TypeError(f"options must be an EngineOptions, got {type(options).__name__}")
    tokens = None if token_file is None else TokenFile(token_file)
    options = options or EngineOptions()
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[DexLiteError] = loop.create_future()
    stop_for_good: list[Engine] = []

    def on_failed(error: BaseException) -> None:
        event(logging.ERROR, "engine_failed", f"the engine stops: {error}")
        if not failed.done():
            failed.set_result(
                error if isinstance(error, DexLiteError) else DexLiteError(str(error))
            )
        for engine in stop_for_good:
            engine.matcher.close()
            engine.stop(str(error))

    meter = Meter()
    journal = Journal.open(
        str(Path(path)),
        durability=options.durability,
        loop=loop,
        on_failed=on_failed,
        on_commit=meter.committed,
    )
    closing = contextlib.AsyncExitStack()
    try:
        limits = options.limits
        matcher = Matcher(
            eager_registration=options.eager_registration,
            most_streams=limits.worker_streams,
            most_streams_per_worker=limits.streams_per_worker,
        )
        engine = Engine(journal, matcher, StreamLog(journal, limits), options, meter)
        stop_for_good.append(engine)
        started = time.monotonic()
        engine.recover()
        recovered_s = time.monotonic() - started
        server = grpc.aio.server(
            interceptors=[
                CallMeter(meter, limits.calls),
                *([] if tokens is None else [TokenInterceptor(tokens)]),
            ],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", options.limits.request),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        dex_pb2_grpc.add_FlowServiceServicer_to_server(FlowService(engine), ByName(server))
        add_worker_task_service(server, matcher)
        name = f"[{host}]" if ":" in host and not host.startswith("[") else host
        try:
            bound = server.add_insecure_port(f"{name}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise PortInUseError(host, port)
        address = f"{name}:{bound}"
        journal.set_address(address)
        metrics_address = None
        if metrics_port is not None:
            metrics_address = await closing.enter_async_context(
                serve_metrics(engine, metrics_host, metrics_port, tokens)
            )
        await server.start()
        event(
            logging.INFO,
            "engine_started",
            "the engine serves",
            address=address,
            metrics_address=metrics_address,
            path=journal.path,
            durability=options.durability,
            open_flows=len(engine.runs),
            recovered_s=round(recovered_s, 3),
        )
        try:
            yield RunningEngine(str(path), address, failed, metrics_address)
        finally:
            await _shut_down(engine, matcher, server, options)
    finally:
        await closing.aclose()
        await journal.close()
        event(logging.INFO, "engine_stopped", "the engine gave the file free", path=journal.path)
        if not failed.done():
            failed.cancel()


async def _shut_down(
    engine: Engine, matcher: Matcher, server: grpc.aio.Server, options: EngineOptions
) -> None:
    """Let running handlers end, then answer everybody who still waits that it is over."""
    event(logging.INFO, "engine_stopping", "the engine waits for what runs", wait_s=options.drain_s)
    engine.begin_stop()
    await asyncio.gather(matcher.drain(options.drain_s), engine.dialer.drain(options.drain_s))
    matcher.close()
    await engine.dialer.close()
    engine.stop("the engine is stopping")
    await server.stop(_CALLS_END_WITHIN_S)


def _check_port(name: str, port: object) -> None:
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"{name} must be an int, got {port!r:.80}")
    if not 0 <= port < 65536:
        raise ValueError(f"{name} must be from 0 to 65535, got {port}")


def _check_path(path: object) -> None:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be a path (str or os.PathLike), got {type(path).__name__}")
    text = os.fspath(path)
    if not text.strip() or "\0" in text:
        raise ValueError(f"path must be the path of a data file, got {text[:80]!r}")


def _check_token_file(path: object) -> None:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"token_file must be a path (str or os.PathLike), got {type(path).__name__}; it names a "
            "file with a token on each line"
        )


def _check_host(name: str, host: object) -> None:
    if not isinstance(host, str):
        raise TypeError(f"{name} must be a str such as '127.0.0.1', got {type(host).__name__}")
    if not host.strip() or not host.isprintable():
        raise ValueError(f"{name} must be the name or number of an address, got {host[:80]!r}")
