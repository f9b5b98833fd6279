"""HTTP servers on the loopback address that tests talk to, and what they were sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class RecordedRequest:
    """What a client sent."""

    method: str
    path: str
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> Any:
        """The body as JSON."""
        return json.loads(self.data or b"{}")

    @property
    def form(self) -> dict[str, str]:
        """The fields of a form body."""
        return _first_values(self.data.decode())

    @property
    def query(self) -> dict[str, str]:
        """The fields of the query."""
        return _first_values(urlsplit(self.path).query)


def _first_values(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()}


class LoopbackServer:
    """A server, a context manager; runs in threads of its own.

    Attributes:
        requests: What it was sent, in order of arrival.
    """

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                return

            def _take(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                data = self.rfile.read(length)
                request = RecordedRequest(self.command, self.path, data, dict(self.headers))
                with owner.lock:
                    owner.requests.append(request)
                    number = len(owner.requests) - 1
                owner.respond(self, request, number)

            do_GET = _take
            do_POST = _take
            do_PUT = _take

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def url(self) -> str:
        """Base URL without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def respond(
        self, handler: BaseHTTPRequestHandler, request: RecordedRequest, number: int
    ) -> None:
        """Answer a request, the ``number``-th from 0."""
        raise NotImplementedError


def send_json(
    handler: BaseHTTPRequestHandler, status: int, body: Any, headers: Mapping[str, str]
) -> None:
    """Answer with one JSON body."""
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(data)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


class EventStream:
    """Answers with server-sent events."""

    def __init__(self, handler: BaseHTTPRequestHandler, headers: Mapping[str, str]) -> None:
        self._handler = handler
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    def send(self, data: str) -> None:
        """Send one event."""
        event = f"data: {data}\r\n\r\n".encode()
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self._handler.wfile.flush()

    def drop(self) -> None:
        """Close the connection in the middle, as a lost network does."""
        self._handler.close_connection = True

    def end(self) -> None:
        """End the answer."""
        self._handler.wfile.write(b"0\r\n\r\n")
