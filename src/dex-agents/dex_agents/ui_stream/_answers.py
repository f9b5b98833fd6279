"""Answers that a UI sends back, given to the session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dex_agents._arguments import check_instance, check_list
from dex_agents._contract import Json
from dex_agents._session.checks import check_session_id
from dex_agents._session.client import AgentSessionClient
from dex_agents._session.views import PendingInterrupt


async def pending_interrupts(
    sessions: AgentSessionClient, session_id: str
) -> Sequence[PendingInterrupt]:
    """What the session waits for now."""
    return (await sessions.get_agent_snapshot(session_id)).pending_interrupts


async def answer_approvals(
    sessions: AgentSessionClient, session_id: str, messages: Sequence[Mapping[str, Json]]
) -> list[str]:
    """Give the approvals in the UI messages of the AI SDK to the session.

    Args:
        sessions: The client of the sessions.
        session_id: The session that is answered.
        messages: ``messages`` of the request that ``useChat`` sends.

    Returns:
        Ids of the approvals in the newest message, for ``after_interrupts``. What is not pending any
        more is left alone, so the same request may come twice.

    Raises:
        TypeError: ``messages`` is no list of objects.
        InterruptError, InvalidInputError: An answer does not fit; the ones before it were taken.
    """
    check_instance("sessions", sessions, AgentSessionClient)
    check_session_id(session_id)
    check_list("messages", messages, Mapping, "it is messages of the body that useChat sends")
    parts = _parts(messages[-1]) if messages else []
    digests = {
        part.get("id"): part["data"].get("argumentsDigest")
        for part in parts
        if part.get("type") == "data-interrupt" and isinstance(part.get("data"), Mapping)
    }
    approvals = [
        part["approval"]
        for part in parts
        if part.get("state") == "approval-responded" and isinstance(part.get("approval"), Mapping)
    ]
    if not approvals:
        return []  # the session may not have begun yet
    pending = {item.interrupt_id for item in await pending_interrupts(sessions, session_id)}
    answered = []
    for approval in approvals:
        interrupt_id = approval.get("id")
        answered.append(str(interrupt_id))
        if interrupt_id not in pending:
            continue
        pending.remove(interrupt_id)
        await sessions.resolve_interrupt(
            session_id,
            interrupt_id,
            approved=approval.get("approved") is True,
            message=approval.get("reason") or None,
            arguments_digest=digests.get(interrupt_id),
        )
    return answered


def _parts(message: Mapping[str, Json]) -> Iterable[Mapping[str, Json]]:
    parts = message.get("parts")
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
