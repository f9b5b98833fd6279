"""The ASGI application: JSON for commands, a UI message stream for what happens."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dex_agents import (
    AgentSessionClient,
    InterruptError,
    InvalidInputError,
    RequestIdReusedError,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionError,
    SessionNotFoundError,
    SessionUnavailableError,
)
from dex_agents.session_graph import history_svg, read_session_history
from dex_agents.ui_stream import AI_SDK_HEADERS, AiSdkEncoder, open_ui_stream

PAGE = Path(__file__).with_name("page.html")
MAX_BODY_BYTES = 256 * 1024
_PAGE_POLICY = "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_STATUS: list[tuple[type[Exception], int]] = [
    (SessionNotFoundError, 404),
    (SessionAlreadyExistsError, 409),
    (SessionClosedError, 410),
    (RequestIdReusedError, 409),
    (InterruptError, 409),
    (InvalidInputError, 400),
    (SessionUnavailableError, 503),
]
_JSON_OBJECT = TypeAdapter(dict[str, Any])
_Handler = Callable[[Request], Awaitable[Response]]


def web_app(
    sessions: AgentSessionClient, *, server_address: str, hosts: tuple[str, ...] = ("127.0.0.1",)
) -> Starlette:
    """The application.

    Args:
        server_address: ``host:port`` of the engine, for the picture of a session's history.
        hosts: Names under which it may be called; anything else could be a page of somebody
            else that talks to it from the user's browser.
    """
    handlers = _Handlers(sessions, server_address)
    session = "/api/sessions/{session_id}"
    return Starlette(
        routes=[
            Route("/", handlers.page),
            Route(session, _answering(handlers.show)),
            Route(f"{session}/messages", _answering(handlers.send), methods=["POST"]),
            Route(f"{session}/turns/{{turn_id}}", _answering(handlers.stream)),
            Route(f"{session}/messages/{{message_id}}/turn", _answering(handlers.stream)),
            Route(
                f"{session}/interrupts/{{interrupt_id}}",
                _answering(handlers.resolve),
                methods=["POST"],
            ),
            Route(f"{session}/cancel", _answering(handlers.cancel), methods=["POST"]),
            Route(f"{session}/history.svg", _answering(handlers.history)),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
    )


class _Handlers:
    def __init__(self, sessions: AgentSessionClient, server_address: str) -> None:
        self._sessions = sessions
        self._server_address = server_address

    async def page(self, request: Request) -> Response:
        return HTMLResponse(
            PAGE.read_text(encoding="utf-8"), headers={"content-security-policy": _PAGE_POLICY}
        )

    async def show(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        snapshot = await self._sessions.get_agent_snapshot(session_id)
        page = await self._sessions.list_messages(session_id)
        messages = [
            {
                "role": "note" if message.is_note else str(message.role),
                "text": message.text,
                "turnId": message.turn_id,
            }
            for message in page.messages
        ]
        is_open = snapshot.status in ("running", "waiting")
        turn_id = snapshot.turn_id or (f"t{snapshot.turns_done + 1}" if is_open else "")
        return JSONResponse({"status": snapshot.status, "turnId": turn_id, "messages": messages})

    async def send(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        body = await _body(request)
        text, message_id = body.get("text", ""), body.get("messageId") or uuid.uuid4().hex
        # Either call changes nothing when the same message comes again.
        try:
            await self._sessions.start_session(session_id, text, message_id=message_id)
        except SessionAlreadyExistsError:
            await self._sessions.send_user_message(session_id, text, message_id=message_id)
        return JSONResponse({"messageId": message_id})

    async def stream(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        frames = await open_ui_stream(
            self._sessions,
            session_id,
            AiSdkEncoder(session_id, ends_when_paused=False),
            turn_id=request.path_params.get("turn_id", ""),
            message_id=request.path_params.get("message_id", ""),
            last_event_id=request.headers.get("last-event-id", ""),
        )
        headers = {**AI_SDK_HEADERS, "cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(_soon(frames), media_type="text/event-stream", headers=headers)

    async def resolve(self, request: Request) -> Response:
        body = await _body(request)
        await self._sessions.resolve_interrupt(
            request.path_params["session_id"],
            request.path_params["interrupt_id"],
            approved=body.get("approved", ""),
            message=body.get("message"),
            arguments_digest=body.get("argumentsDigest"),
        )
        return JSONResponse({})

    async def cancel(self, request: Request) -> Response:
        is_cancelled = await self._sessions.cancel_turn(request.path_params["session_id"])
        return JSONResponse({"cancelled": is_cancelled})

    async def history(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        await self._sessions.get_agent_snapshot(session_id)  # it is one of ours
        history = await read_session_history(self._server_address, session_id)
        return Response(history_svg(history), media_type="image/svg+xml")


async def _soon(frames: AsyncIterator[str]) -> AsyncIterator[str]:
    """The same, with the word to come back at once when the line breaks."""
    yield "retry: 300\n\n"
    async for frame in frames:
        yield frame


def _answering(handler: _Handler) -> _Handler:
    """Failures of a session as HTTP has them; their texts are made for whoever called."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except SessionError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
            return JSONResponse({"error": str(error)}, status)

    return answer


async def _body(request: Request) -> dict[str, Any]:
    # A form of a foreign page cannot send this type without the browser asking first.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise InvalidInputError("send application/json")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise InvalidInputError(f"a request may have {MAX_BODY_BYTES} bytes")
    try:
        return _JSON_OBJECT.validate_json(data)
    except ValidationError:
        raise InvalidInputError("send a JSON object") from None
