"""A loopback server that speaks Gemini's REST protocol, for ADK's real ``Gemini`` class.

Use it with ``Gemini(model="gemini-2.5-flash", base_url=server.url)`` and ``GOOGLE_API_KEY`` set to
anything, or set ``GOOGLE_GEMINI_BASE_URL``. Answers come from a script, in order, or from a
function of the request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


def text_part(text: str, *, thought: bool = False) -> dict[str, Any]:
    """A text or thought part."""
    return {"text": text, "thought": True} if thought else {"text": text}


def call_part(name: str, *, signature: str | None = None, **arguments: Any) -> dict[str, Any]:
    """A function call part."""
    part: dict[str, Any] = {"functionCall": {"name": name, "args": arguments}}
    if signature is not None:
        part["thoughtSignature"] = signature
    return part


@dataclass
class Answer:
    """One answer of the model.

    Attributes:
        chunks: Parts of each streamed chunk; a request without streaming gets all of them at once.
        finish_reason: Reason of the last chunk.
        usage: Token counts of the last chunk.
        status: HTTP status; any other than 200 sends ``error`` instead of chunks.
        error: Body of a failure.
        headers: Further headers.
        chunk_delay_s: Pause before each chunk.
        drop_after: Close the connection after so many chunks, as a lost network does.
    """

    chunks: Sequence[Sequence[dict[str, Any]]] = ()
    finish_reason: str = "STOP"
    usage: dict[str, int] = field(
        default_factory=lambda: {
            "promptTokenCount": 11,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 3,
            "totalTokenCount": 19,
        }
    )
    status: int = 200
    error: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    chunk_delay_s: float = 0.0
    drop_after: int | None = None

    def responses(self, model: str, *, merged: bool) -> list[dict[str, Any]]:
        """The JSON bodies of the chunks."""
        chunks = [list(chunk) for chunk in self.chunks]
        if merged:
            chunks = [[part for chunk in chunks for part in chunk]]
        bodies: list[dict[str, Any]] = []
        for index, parts in enumerate(chunks):
            candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
            if not parts:
                del candidate["content"]
            body: dict[str, Any] = {"candidates": [candidate], "modelVersion": model}
            if index == len(chunks) - 1:
                candidate["finishReason"] = self.finish_reason
                body["usageMetadata"] = self.usage
            bodies.append(body)
        return bodies


def say(*chunks: str, **fields: Any) -> Answer:
    """An answer of text, one chunk for each argument."""
    return Answer([[text_part(chunk)] for chunk in chunks], **fields)


@dataclass(frozen=True)
class RecordedRequest:
    """What a client sent."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


Script = Sequence[Answer] | Callable[[RecordedRequest], Answer]


class GeminiServer:
    """The server, a context manager; runs in threads of its own.

    Args:
        script: Answers in order, or a function that makes one.
    """

    def __init__(self, script: Script) -> None:
        self.requests: list[RecordedRequest] = []
        self._script = script
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                return

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                owner._answer(self, RecordedRequest(self.path, body, dict(self.headers)))

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

    def _next(self, request: RecordedRequest) -> Answer:
        with self._lock:
            self.requests.append(request)
            index = len(self.requests) - 1
        if callable(self._script):
            return self._script(request)
        if index >= len(self._script):
            return Answer(status=400, error={"error": {"message": f"call {index} is not scripted"}})
        return self._script[index]

    def _answer(self, handler: BaseHTTPRequestHandler, request: RecordedRequest) -> None:
        answer = self._next(request)
        if answer.status != 200:
            self._send(handler, answer.status, json.dumps(answer.error or {}), answer.headers)
            return
        model = request.path.partition("/models/")[2].partition(":")[0]
        if ":streamGenerateContent" not in request.path:
            time.sleep(answer.chunk_delay_s)
            (body,) = answer.responses(model, merged=True)
            self._send(handler, 200, json.dumps(body), answer.headers)
            return
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        for index, body in enumerate(answer.responses(model, merged=False)):
            if answer.drop_after is not None and index >= answer.drop_after:
                handler.close_connection = True
                return
            time.sleep(answer.chunk_delay_s)
            data = f"data: {json.dumps(body)}\r\n\r\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")

    @staticmethod
    def _send(
        handler: BaseHTTPRequestHandler, status: int, body: str, headers: dict[str, str]
    ) -> None:
        data = body.encode()
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)
