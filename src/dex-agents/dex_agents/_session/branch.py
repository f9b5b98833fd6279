"""Which turns of a session there are, and their messages, as a client reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dex import RPCInvokeOptions, WorkerInvocationError

from dex_agents._contract import AgentMessage, Json
from dex_agents._session import resources
from dex_agents._session.connection import SessionConnection
from dex_agents._session.live_turns import live_turns
from dex_agents._session.records import Header, message_from_json

_PAGE_BYTES = 2_500_000


@dataclass(frozen=True)
class Branch:
    """Which turns of a session there are, as of one moment."""

    header: Header
    summaries: Sequence[int]
    note: Json

    def readable_turns(self, *, with_removed: bool = False) -> list[int]:
        """Numbers of the finished turns whose messages are there, oldest first."""
        removed = () if with_removed else self.header.removed
        return live_turns(removed, self.header.forgotten_turns + 1, self.header.finished_turns)


async def read_branch(connection: SessionConnection, session_id: str) -> Branch:
    """Where a session stands."""
    data = await connection.call(connection.flow.read_branch_rpc, session_id)
    return Branch(Header.from_json(data["header"]), data["summaries"], data["note"])


async def read_pages(
    connection: SessionConnection,
    session_id: str,
    turns: Sequence[int],
    *,
    with_outcomes: bool = False,
) -> list[Any]:
    """Pages in the given order, as many as fit into one answer; one that is gone is empty.

    Args:
        with_outcomes: Whether each tells how its turn ended, if that is known.
    """
    keys = [resources.page_key(number) for number in turns]
    loaded = [resources.messages, *([resources.outcomes] if with_outcomes else [])]
    options = RPCInvokeOptions(
        load_attribute_map_instances=tuple(of.load(key) for key in keys for of in loaded)
    )
    request = {"keys": keys, "max_bytes": _PAGE_BYTES}
    try:
        return list(
            await connection.call(connection.flow.read_pages_rpc, session_id, request, options)
        )
    except WorkerInvocationError as error:
        if error.worker_error_type != "TASK_TOO_LARGE" or len(keys) == 1:
            raise
        half = turns[: len(turns) // 2]
        return await read_pages(connection, session_id, half, with_outcomes=with_outcomes)


def messages_of(pages: Sequence[Any]) -> list[AgentMessage]:
    """The messages of pages, in order."""
    return [message_from_json(item) for page in pages for item in page["messages"]]
