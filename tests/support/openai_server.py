"""A loopback server that speaks OpenAI's chat completions, for ADK's real ``LiteLlm`` class.

Use it with ``LiteLlm(model="openai/gpt-x", api_base=server.url, api_key="x")``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.loopback import EventStream, LoopbackServer, RecordedRequest, send_json


def chat_call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A tool call with an id of the model's choice."""
    return raw_call(call_id, name, json.dumps(arguments, ensure_ascii=False))


def raw_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """The same with arguments as any text."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


@dataclass
class ChatAnswer:
    """One answer of the model.

    Attributes:
        text: Its text, in the pieces in which it is streamed.
        calls: Its tool calls; the arguments of each are streamed in two pieces.
        finish_reason: Why it ends, by default as the content says.
        status: HTTP status; any other than 200 sends ``error`` instead.
        error: Body of a failure.
        headers: Further headers.
    """

    text: Sequence[str] = ()
    calls: Sequence[dict[str, Any]] = ()
    finish_reason: str = ""
    status: int = 200
    error: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The finish reason that is sent."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")

    def whole(self, model: str) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.text) or None}
        if self.calls:
            message["tool_calls"] = list(self.calls)
        choice = {"index": 0, "message": message, "finish_reason": self.reason}
        return {**_frame("chat.completion", model), "choices": [choice], "usage": USAGE}

    def chunks(self, model: str) -> list[dict[str, Any]]:
        """The bodies of a streamed answer."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in self.text]
        for index, call in enumerate(self.calls):
            whole = call["function"]["arguments"]
            half = len(whole) // 2
            begin = {**call, "function": {**call["function"], "arguments": whole[:half]}}
            deltas.append({"tool_calls": [{"index": index, **begin}]})
            rest: dict[str, Any] = {"index": index, "function": {"arguments": whole[half:]}}
            deltas.append({"tool_calls": [rest]})
        choices: list[dict[str, Any]] = [
            {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas
        ]
        choices.append({"index": 0, "delta": {}, "finish_reason": self.reason})
        frame = _frame("chat.completion.chunk", model)
        bodies = [{**frame, "choices": [choice]} for choice in choices]
        return [*bodies, {**frame, "choices": [], "usage": USAGE}]


USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 8,
    "total_tokens": 19,
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def _frame(kind: str, model: str) -> dict[str, Any]:
    return {"id": "chat-1", "object": kind, "created": 1, "model": model}


class OpenAiServer(LoopbackServer):
    """The server.

    Args:
        script: Answers in order.
    """

    def __init__(self, script: Sequence[ChatAnswer]) -> None:
        super().__init__()
        self._script = script

    def respond(
        self, handler: BaseHTTPRequestHandler, request: RecordedRequest, number: int
    ) -> None:
        """Answer with the next of the script."""
        if number >= len(self._script):
            error = {"error": {"message": f"call {number} is not scripted"}}
            send_json(handler, 400, error, {})
            return
        answer, model = self._script[number], request.body["model"]
        if answer.status != 200:
            send_json(handler, answer.status, answer.error or {}, answer.headers)
            return
        if not request.body.get("stream"):
            send_json(handler, 200, answer.whole(model), answer.headers)
            return
        stream = EventStream(handler, answer.headers)
        for body in answer.chunks(model):
            stream.send(json.dumps(body))
        stream.send("[DONE]")
        stream.end()
