"""Reads what is drawn."""

from __future__ import annotations

import grpc.aio
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_agents._arguments import check_server_address, check_token
from dex_agents._history_events import read_history_events
from dex_agents.session_graph._flow_graph import START
from dex_agents.session_graph._history import SessionHistory, build_history

_CALL_TIMEOUT_S = 30.0
_FLOWS_LOOKED_AT = 200


async def read_session_history(
    server_address: str, session_id: str, *, token: str = ""
) -> SessionHistory:
    """What a session did so far, also of one that is closed. Needs no Worker.

    Args:
        server_address: ``host:port`` of the engine.
        session_id: The session.
        token: Bearer token for an engine that asks for one.

    Raises:
        ValueError: The Flow of that id is no agent session.
        grpc.aio.AioRpcError: The engine cannot be reached, or knows no such session.
    """
    check_token(token)
    events = []
    async for event in read_history_events(server_address, session_id, token=token):
        if event.WhichOneof("payload") == "flow_started_or_continued":
            _check_is_session(session_id, event.flow_started_or_continued)
        events.append(event)
    return build_history(session_id, events)


async def check_flow_type_is_known(server_address: str, flow_type: str, *, token: str = "") -> None:
    """That the engine has sessions of a Flow type.

    Raises:
        ValueError: It has none; the text names the Flow types of its newest Flows.
        grpc.aio.AioRpcError: The engine cannot be reached, or cannot search.
    """
    check_server_address(server_address)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with grpc.aio.insecure_channel(server_address) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)

        async def newest(query: str, count: int) -> list[pb.SearchFlowsResponseEntry]:
            request = pb.SearchFlowsRequest(query=query, page_size=count)
            page = await stub.SearchFlows(request, timeout=_CALL_TIMEOUT_S, metadata=metadata)
            return list(page.flow_runs)

        quoted = flow_type.replace("'", "''")
        found = await newest(f"FlowType = '{quoted}'", 1)
        if not found:
            others = sorted({row.flow_type for row in await newest("", _FLOWS_LOOKED_AT)})
            known = ", ".join(map(repr, others))
            raise ValueError(
                f"the engine at {server_address} has no session of Flow type {flow_type!r}; "
                + (f"its newest Flows are of {known}" if known else "it has no Flows at all")
            )
    async for event in read_history_events(server_address, found[0].flow_id, token=token):
        if event.WhichOneof("payload") == "flow_started_or_continued":
            _check_is_session(found[0].flow_id, event.flow_started_or_continued)
            return


def _check_is_session(flow_id: str, started: pb.FlowStartedOrContinuedHistoryEvent) -> None:
    if started.initial_start.start_step_type not in ("", START):
        raise ValueError(
            f"Flow {flow_id!r} is no agent session, its Flow type is {started.flow_type!r}; "
            "`dex-lite flow show` draws any Flow"
        )
