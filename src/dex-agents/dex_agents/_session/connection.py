"""Calls of a session's RPCs, and what an engine's or Worker's refusal means for the session."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from dex import (
    AsyncClient,
    DexServiceError,
    FlowDefinitionError,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    RPCInvokeOptions,
    RpcLockConflictError,
    RPCResult,
    WorkerInvocationError,
)

from dex_agents._contract import Json
from dex_agents._errors import (
    InvalidInputError,
    SessionClosedError,
    SessionNotFoundError,
    SessionUnavailableError,
)
from dex_agents._session.encoding import decode, encode
from dex_agents._session.flow import AgentSessionFlow

LOCK_WAIT_S = 5.0
ANSWER_S = 90.0
"""Seconds for an answer to come. An engine gives up sooner on a Worker that does not answer; this is
for one that hangs, or that the network swallows."""
# What gRPC calls an engine that is not there, or that went away before it had answered.
_ENGINE_AWAY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_NO_OPTIONS = RPCInvokeOptions()
_SESSIONS_KNOWN = 10_000


class SessionConnection:
    """A client of the engine for the sessions of one Flow.

    All that it keeps about them is which ids are known to be sessions of that Flow.
    """

    def __init__(self, client: AsyncClient, flow: AgentSessionFlow) -> None:
        self.client = client
        self.flow = flow
        self._known: set[str] = set()

    async def call(
        self,
        rpc: Callable[..., RPCResult[bytes]],
        session_id: str,
        request: Json = None,
        options: RPCInvokeOptions = _NO_OPTIONS,
    ) -> Any:
        """Call an RPC of the session. One that needs a lock waits for others to leave it.

        Raises:
            SessionNotFoundError, SessionClosedError, SessionUnavailableError: As they say.
        """
        # None of ours takes null; an RPC without input takes nothing else.
        sent = None if request is None else encode(request)
        async with self.errors(session_id):
            await self.know(session_id)
            until = time.monotonic() + LOCK_WAIT_S
            while time.monotonic() < until:
                try:
                    answer = decode(
                        await self.client.invoke_rpc(rpc, session_id, sent, options=options)
                    )
                except RpcLockConflictError:
                    # Another command of its kind, a deadline, or a turn that opens: all are quick.
                    await asyncio.sleep(random.uniform(0.005, 0.05))
                    continue
                if isinstance(answer, dict) and answer.get("refused") == "incomplete":
                    raise _incomplete(session_id)
                return answer
            raise SessionUnavailableError(
                f"session {session_id!r} is busy with another command for the same thing; "
                "nothing changed, call again"
            )

    async def command(
        self,
        rpc: Callable[..., RPCResult[bytes]],
        session_id: str,
        request: Json,
        options: RPCInvokeOptions = _NO_OPTIONS,
    ) -> Any:
        """As :meth:`call`, for an RPC that a closed session refuses."""
        answer = await self.call(rpc, session_id, request, options)
        if answer.get("refused") == "closed":
            raise closed(session_id)
        return answer

    async def status(self, session_id: str) -> FlowStatus:
        """What the engine says about the session's execution; needs no Worker.

        Raises:
            SessionNotFoundError, SessionUnavailableError: As they say.
            InvalidInputError: The id is one of another Flow type.
        """
        async with self.errors(session_id):
            return await self._describe(session_id)

    async def know(self, session_id: str) -> None:
        """Refuse a session of another Flow type, whose commands would do to it what they say.

        The engine is asked once for each session; an id names one for good.

        Raises:
            InvalidInputError: The id is one of another Flow type.
        """
        if session_id not in self._known:
            await self._describe(session_id)

    async def _describe(self, session_id: str) -> FlowStatus:
        info = await self.client.describe_flow(session_id)
        if info.flow_type != self.flow.get_flow_type():
            raise InvalidInputError(
                f"session {session_id!r} is one of Flow type {info.flow_type!r}, this client is "
                f"for {self.flow.get_flow_type()!r}; build the client with the session's Flow"
            )
        self.remember(session_id)
        return info.status

    def remember(self, session_id: str) -> None:
        """This is a session of the Flow."""
        if len(self._known) >= _SESSIONS_KNOWN:
            self._known.clear()
        self._known.add(session_id)

    async def is_open(self, session_id: str) -> bool:
        """Whether the session has not ended."""
        return await self.status(session_id) is FlowStatus.RUNNING

    @property
    def missing_worker(self) -> str:
        """What to look at where no Worker answers."""
        return (
            f"check that a Worker serves Flow type {self.flow.get_flow_type()!r}, whose task queue its "
            "work waits in, at the same engine"
        )

    @contextlib.asynccontextmanager
    async def errors(self, session_id: str, waits_s: float = 0.0) -> AsyncIterator[None]:
        """Gives the SDK's errors the session's words, also of an engine that never answers.

        Args:
            waits_s: Seconds that the engine is asked to wait before it answers.
        """
        within_s = waits_s + ANSWER_S
        limit = asyncio.timeout(within_s)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise SessionUnavailableError(
                f"the engine did not answer for session {session_id!r} within {within_s:g} s; it may "
                "hang, or the network to the client's server_address swallows what is sent; call again"
            ) from None
        except FlowNotFoundError:
            raise not_found(session_id) from None
        except FlowNotActiveOrNotFoundError:
            if await self.is_open(session_id):
                raise SessionUnavailableError(
                    f"session {session_id!r} could not be reached; call again"
                ) from None
            raise closed(session_id) from None
        except WorkerInvocationError as error:
            if error.worker_code is not None or error.worker_error_type:
                raise
            raise SessionUnavailableError(
                f"no Worker answered for session {session_id!r}: {error.detail}; "
                f"{self.missing_worker}, then call again"
            ) from None
        except DexServiceError as error:
            if error.code not in _ENGINE_AWAY:
                raise
            raise SessionUnavailableError(
                f"the engine at {self.client.options.server_address} (the client's server_address: "
                f"host:port, no scheme) could not be reached for session {session_id!r}: "
                f"{error.detail}; start one, for example with dex-lite dev, or call again"
            ) from None
        except FlowDefinitionError:
            raise unregistered(self.flow) from None


def unregistered(flow: AgentSessionFlow) -> InvalidInputError:
    """The error of a client that was made without the Flow, or with another one of its type."""
    return InvalidInputError(
        f"the AsyncClient does not know this Flow of type {flow.get_flow_type()!r}; make it with "
        "Registry([flow], allow_async_handlers=True) of the same flow object"
    )


def closed(session_id: str) -> SessionClosedError:
    """The error of a session that has ended."""
    return SessionClosedError(
        f"session {session_id!r} is closed and takes no more commands; start another one"
    )


def _incomplete(session_id: str) -> SessionNotFoundError:
    """The error of a fork of which only a part is there."""
    return SessionNotFoundError(
        f"there is no session {session_id!r} yet: it is a fork that was not completed; repeat the "
        "call of fork_session"
    )


def not_found(session_id: str) -> SessionNotFoundError:
    """The error of a session that never began."""
    return SessionNotFoundError(f"there is no session {session_id!r}; start it with start_session")
