"""An engine's counts in the text format of Prometheus, on a port of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from socketserver import BaseServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from dex_lite._address import check_address
from dex_lite._auth import TokenFile, is_loopback
from dex_lite._errors import EngineStoppedError, ExtraMissingError, TokenFileError

if TYPE_CHECKING:
    from dex_lite._engine import Engine

_Answer = TypeVar("_Answer")
_Wsgi: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]
_LOOP_ANSWERS_WITHIN_S = 10.0
_POLL_S = 0.05  # how soon a stop is noticed


class _EngineCollector:
    """Reads an engine when somebody asks. The loop owns the engine, so the reading happens there."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def collect(self) -> Iterator[Any]:
        yield from _on_loop(self._loop, lambda: list(self._families()))

    def _families(self) -> Iterator[Any]:
        from prometheus_client import core

        engine, meter = self._engine, self._engine.meter

        def counter(name: str, text: str, labels: tuple[str, ...], counts: Any) -> Any:
            family = core.CounterMetricFamily(f"dex_lite_{name}", text, labels=labels)
            for key, count in counts:
                family.add_metric(key, count)
            return family

        def gauge(name: str, text: str, value: float) -> Any:
            return core.GaugeMetricFamily(f"dex_lite_{name}", text, value=value)

        def histogram(name: str, text: str, labels: tuple[str, ...], found: Any) -> Any:
            family = core.HistogramMetricFamily(f"dex_lite_{name}", text, labels=labels)
            for key, durations in found:
                family.add_metric(key, durations.cumulated(), durations.sum)
            return family

        commits = meter.commit_seconds
        yield counter("commits", "Commits on disk.", (), [((), sum(commits.counts))])
        yield counter("writes", "Records in these commits.", (), [((), meter.writes)])
        yield histogram("commit_seconds", "Duration of a commit.", (), [((), commits)])
        for what, text in (
            ("dispatched", "Step methods sent to a Worker."),
            ("completed", "Step methods that gave a result."),
            ("given_back", "Step methods sent to a Worker that did not start them."),
        ):
            counts = [((key[1],), n) for key, n in meter.steps.items() if key[0] == what]
            yield counter(f"steps_{what}", text, ("method",), counts)
        yield counter(
            "steps_failed",
            "Attempts of Step methods that failed.",
            ("method", "reason"),
            meter.failed.items(),
        )
        yield counter("calls", "Answered calls.", ("method", "code"), meter.calls.items())
        yield histogram(
            "call_seconds",
            "Duration of a call, long polls included.",
            ("method",),
            [((name,), durations) for name, durations in meter.call_seconds.items()],
        )
        steps = [step for run in engine.runs.values() for step in run.state.steps.values()]
        yield gauge("open_flows", "Open Flows.", len(engine.runs))
        yield gauge("open_steps", "Step executions that have not ended.", len(steps))
        waits = sum(step.phase == "waiting" for step in steps)
        yield gauge("open_waits", "Step executions that wait for their condition.", waits)
        yield gauge("queue_depth", "Tasks that no Worker has taken yet.", engine.matcher.depth)
        yield gauge("worker_streams", "Connected Worker streams.", engine.matcher.stream_count)
        yield gauge("workers", "Worker processes.", engine.matcher.worker_count)
        sizes = core.GaugeMetricFamily(
            "dex_lite_data_file_bytes", "Size of the data file and its log.", labels=("file",)
        )
        for label, suffix in (("data", ""), ("log", "-wal")):
            with contextlib.suppress(FileNotFoundError):
                sizes.add_metric((label,), os.path.getsize(engine.journal.path + suffix))
        yield sizes


def _on_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], _Answer]) -> _Answer:
    answer: Future[_Answer] = Future()
    try:
        loop.call_soon_threadsafe(_answer, answer, read)
    except RuntimeError:
        raise EngineStoppedError from None
    return answer.result(_LOOP_ANSWERS_WITHIN_S)


def _guarded(served: _Wsgi, tokens: TokenFile, loop: asyncio.AbstractEventLoop) -> _Wsgi:
    """Only for readers that bring a valid token."""

    def call(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        try:
            # The loop owns the tokens too.
            may_read = scheme.lower() == "bearer" and _on_loop(loop, lambda: tokens.accepts(token))
        except TokenFileError:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the engine cannot read its token file\n"]
        if may_read:
            return served(environ, start_response)
        headers = [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")]
        start_response("401 Unauthorized", headers)
        return [b"these metrics need a valid 'Authorization: Bearer TOKEN'\n"]

    return call


def _answer(answer: Future[_Answer], read: Callable[[], _Answer]) -> None:
    try:
        answer.set_result(read())
    except BaseException as error:
        answer.set_exception(error)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds until a silent reader is given up

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.asynccontextmanager
async def serve_metrics(
    engine: Engine, host: str, port: int, tokens: TokenFile | None
) -> AsyncIterator[str]:
    """Serve ``/metrics`` until the block ends; yields the address.

    Where other machines reach it, every reader has to bring one of ``tokens``.

    Raises:
        ExtraMissingError: prometheus-client is not installed.
        PortInUseError: Somebody else serves there.
    """
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError:
        raise ExtraMissingError("metrics", "prometheus-client") from None
    loop = asyncio.get_running_loop()
    check_address(host, port)
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine, loop))
    kind = _Server6 if ":" in host else _Server
    served: _Wsgi = make_wsgi_app(registry)
    if tokens is not None and not is_loopback(host):
        served = _guarded(served, tokens, loop)
    server = make_server(host, port, served, kind, _Handler)
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL_S,), name="dex-lite-metrics", daemon=True
    )
    thread.start()
    try:
        yield f"[{host}]:{server.server_port}" if ":" in host else f"{host}:{server.server_port}"
    finally:
        # Not on the loop: a reader that is served right now waits for it.
        await loop.run_in_executor(None, _stop, server, thread)


def _stop(server: BaseServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()
