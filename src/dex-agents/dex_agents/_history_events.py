"""A session's history as the engine has it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_agents._arguments import check_name, check_server_address, check_token

_CALL_TIMEOUT_S = 30.0


async def read_history_events(
    server_address: str, session_id: str, *, token: str = ""
) -> AsyncIterator[pb.FlowHistoryEvent]:
    """All history events of a session's current run, oldest first.

    Args:
        token: Bearer token for an engine that asks for one.

    Raises:
        TypeError, ValueError: The address is not ``host:port``, or the session id is blank.
        grpc.aio.AioRpcError: The engine cannot be reached, or knows no such session.
    """
    check_server_address(server_address)
    check_name("session_id", session_id)
    check_token(token)
    # A page of history holds whole Step inputs, which may be more than gRPC's own limit of 4 MiB.
    unlimited = [("grpc.max_receive_message_length", -1)]
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with grpc.aio.insecure_channel(server_address, options=unlimited) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        summary = await stub.GetFlowSummary(
            pb.GetFlowSummaryRequest(flow_id=session_id), timeout=_CALL_TIMEOUT_S, metadata=metadata
        )
        page_token = b""
        while True:
            page = await stub.GetHistoryEvents(
                pb.GetHistoryEventsRequest(
                    flow_id=session_id,
                    run_id=summary.flow_execution_id.run_id,
                    next_page_token=page_token,
                ),
                timeout=_CALL_TIMEOUT_S,
                metadata=metadata,
            )
            for event in page.events:
                yield event
            page_token = page.next_page_token
            if not page_token:
                return
