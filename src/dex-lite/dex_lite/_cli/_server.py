"""The connection of a command to a running server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import grpc
import typer
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_lite._cli._exits import FAILED, UNREACHABLE, USAGE, CommandFailed
from dex_lite._wire.hints import RECEIVES, STEPS_WITHOUT_WORKER, from_metadata

_DETAILS_KEY = "grpc-status-details-bin"
_CALL_TIMEOUT_S = 15.0
_MAX_MESSAGE_BYTES = 64 << 20
_ROOM_FOR_FRAMES = 64 << 10


class Server:
    """Calls of one command. Every failure is a `CommandFailed` in plain words."""

    def __init__(self, channel: Any, address: str, token: str) -> None:
        self._stub = dex_pb2_grpc.FlowServiceStub(channel)
        self._address = address
        self._metadata = [(RECEIVES, str(_MAX_MESSAGE_BYTES - _ROOM_FOR_FRAMES))]
        if token:
            self._metadata.append(("authorization", f"Bearer {token}"))

    def call(self, name: str, request: Any, timeout_s: float = _CALL_TIMEOUT_S) -> Any:
        """The answer to one call of FlowService."""
        try:
            return getattr(self._stub, name)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise CommandFailed(*self._explain(error, timeout_s)) from None

    def call_with_hints(self, name: str, request: Any, key: str) -> tuple[Any, list[Any]]:
        """The answer, and what the server says beside it under a key of `_wire/hints.py`."""
        try:
            response, call = getattr(self._stub, name).with_call(
                request, timeout=_CALL_TIMEOUT_S, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise CommandFailed(*self._explain(error, _CALL_TIMEOUT_S)) from None
        return response, from_metadata(key, call.trailing_metadata() or ())

    def poll(self, name: str, request: Any, wait_s: float) -> Any:
        """The answer to a long poll, or None if its time ran out without one."""
        try:
            return getattr(self._stub, name)(
                request, timeout=wait_s + _CALL_TIMEOUT_S, metadata=self._metadata
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and _is_from_server(error):
                return None
            raise CommandFailed(*self._explain(error, wait_s + _CALL_TIMEOUT_S)) from None

    def summary(self, flow_id: str, run_id: str = "") -> pb.GetFlowSummaryResponse:
        """The main facts of the given run, or of the newest one of the Flow id."""
        request = pb.GetFlowSummaryRequest(flow_id=flow_id, run_id=run_id)
        response: pb.GetFlowSummaryResponse = self.call("GetFlowSummary", request)
        return response

    def live_state(self, flow_id: str, run_id: str) -> tuple[pb.GetFlowStateResponse, list[str]]:
        """What is live in a run, and the types of its Steps that no connected Worker could take."""
        request = pb.GetFlowStateRequest(flow_id=flow_id, run_id=run_id)
        return self.call_with_hints("GetFlowState", request, STEPS_WITHOUT_WORKER)

    def events(self, flow_id: str, run_id: str, first: int = 0) -> list[pb.FlowHistoryEvent]:
        """All history events of a run from an id on."""
        request = pb.GetHistoryEventsRequest(
            flow_id=flow_id, run_id=run_id, start_internal_event_id=first
        )
        events: list[pb.FlowHistoryEvent] = []
        while True:
            page = self.call("GetHistoryEvents", request)
            events += page.events
            if not page.next_page_token:
                return events
            request.next_page_token = page.next_page_token

    def _explain(self, error: Any, timeout_s: float) -> tuple[str, int]:
        code, detail = error.code(), str(error.details() or "").rstrip(".")
        at = f"the server at {self._address}"
        if code is grpc.StatusCode.UNAVAILABLE and not _is_from_server(error):
            return (
                f"no Dex server answers at {self._address}. Start one with `dex-lite dev`, or "
                "name another with --address or DEX_SERVER_ADDRESS.",
                UNREACHABLE,
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            return f"{at} takes no calls: {detail}. Start it again.", UNREACHABLE
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and not _is_from_server(error):
            return (
                f"{at} did not answer within {timeout_s:g} s. "
                "See whether it is a Dex server and not overloaded, then try again.",
                UNREACHABLE,
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"{at} cannot do this: {detail}. Upgrade the server.", FAILED
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return f"{at} refuses: {detail}. Give a token with --token or DEX_TOKEN.", FAILED
        if code is grpc.StatusCode.NOT_FOUND and detail.endswith("is closed"):
            return f"{detail}. `dex-lite flow show` says how it ended.", FAILED
        if code is grpc.StatusCode.NOT_FOUND:
            return (
                f"{detail}. `dex-lite flow list` shows what the server has; a run is named "
                "with --run.",
                FAILED,
            )
        return f"{at} refuses: {detail or code.name}.", FAILED


def _is_from_server(error: Any) -> bool:
    """Whether the server itself said so, and not the transport on the way to it."""
    return any(key == _DETAILS_KEY for key, _ in error.trailing_metadata() or ())


def _address(value: str) -> str:
    scheme, slashes, rest = value.partition("://")
    if slashes:
        raise CommandFailed(
            f"address {value!r} is not HOST:PORT. Leave {scheme + slashes!r} out, "
            f"and what comes behind the port: {rest.partition('/')[0] or '127.0.0.1:8801'}",
            USAGE,
        )
    host, colon, port = value.rpartition(":")
    if not colon or not host or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:
        raise CommandFailed(
            f"address {value!r} is not HOST:PORT. Give one such as 127.0.0.1:8801.", USAGE
        )
    return value


Address: TypeAlias = Annotated[
    str,
    typer.Option(envvar="DEX_SERVER_ADDRESS", callback=_address, help="HOST:PORT of the server."),
]
Token: TypeAlias = Annotated[
    str, typer.Option(envvar="DEX_TOKEN", help="Sent as bearer token with every call.")
]
Run: TypeAlias = Annotated[str, typer.Option(help="Id of a run; without it, the newest one.")]
FlowId: TypeAlias = Annotated[str, typer.Argument(help="The Flow id.", show_default=False)]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

DEFAULT_ADDRESS = "127.0.0.1:8801"


@contextmanager
def connect(address: str, token: str) -> Iterator[Server]:
    """A connection for the time of one command."""
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
    with grpc.insecure_channel(address, options=options) as channel:
        yield Server(channel, address, token)
