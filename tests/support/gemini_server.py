"""A loopback server that speaks Gemini's REST protocol, for ADK's real ``Gemini`` class.

Use it with ``Gemini(model="gemini-2.5-flash", base_url=server.url)`` and ``GOOGLE_API_KEY`` set to
anything, or set ``GOOGLE_GEMINI_BASE_URL``. Answers come from a script, in order, or from a
function of the request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.loopback import EventStream, LoopbackServer, RecordedRequest, send_json


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


Script = Sequence[Answer] | Callable[[RecordedRequest], Answer]


class GeminiServer(LoopbackServer):
    """The server.

    Args:
        script: Answers in order, or a function that makes one.
    """

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def _next(self, request: RecordedRequest, number: int) -> Answer:
        if callable(self._script):
            return self._script(request)
        if number >= len(self._script):
            error = {"error": {"message": f"call {number} is not scripted"}}
            return Answer(status=400, error=error)
        return self._script[number]

    def respond(
        self, handler: BaseHTTPRequestHandler, request: RecordedRequest, number: int
    ) -> None:
        """Answer with the next of the script."""
        answer = self._next(request, number)
        if answer.status != 200:
            send_json(handler, answer.status, answer.error or {}, answer.headers)
            return
        model = request.path.partition("/models/")[2].partition(":")[0]
        if ":streamGenerateContent" not in request.path:
            time.sleep(answer.chunk_delay_s)
            (body,) = answer.responses(model, merged=True)
            send_json(handler, 200, body, answer.headers)
            return
        stream = EventStream(handler, answer.headers)
        for index, body in enumerate(answer.responses(model, merged=False)):
            if answer.drop_after is not None and index >= answer.drop_after:
                stream.drop()
                return
            time.sleep(answer.chunk_delay_s)
            stream.send(json.dumps(body))
        stream.end()
