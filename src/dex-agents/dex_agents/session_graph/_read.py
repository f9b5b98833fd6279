"""Reads what is drawn."""

from __future__ import annotations

from dex_agents._arguments import check_instance
from dex_agents._history_events import read_history_events
from dex_agents.session_graph._history import SessionHistory, build_history


async def read_session_history(
    server_address: str, session_id: str, *, token: str = ""
) -> SessionHistory:
    """What a session did so far, also of one that is closed. Needs no Worker.

    Args:
        server_address: ``host:port`` of the engine.
        token: Bearer token for an engine that asks for one.

    Raises:
        grpc.aio.AioRpcError: The engine cannot be reached, or knows no such session.
    """
    check_instance("token", token, str, "leave it out for an engine that asks for none")
    events = [event async for event in read_history_events(server_address, session_id, token=token)]
    return build_history(session_id, events)
