"""A session Flow that tells what it stores beside what clients see."""

from __future__ import annotations

from typing import Any

from dex import Context, RPCResult, rpc

from core.conftest import Stage
from dex_agents import AgentSessionFlow
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode


class OpenFlow(AgentSessionFlow):
    """For ``stages.play(flow_class=...)``."""

    @rpc(name="stored", load_attribute_maps=(resources.unapproved,))
    def stored_rpc(self, context: Context) -> RPCResult[bytes]:
        """Marks of calls that have not begun, and Channels of calls that hold messages."""
        found = {
            "unapproved": resources.unapproved.get_all_instance_keys(context),
            "finished_calls": resources.finished_calls.get_all_instance_keys(context),
            "answers": resources.answers.get_all_instance_keys(context),
        }
        return RPCResult(encode({name: list(keys) for name, keys in found.items()}))


async def stored(stage: Stage, session_id: str = "s") -> dict[str, Any]:
    """What an :class:`OpenFlow` tells."""
    assert isinstance(stage.flow, OpenFlow)
    found: dict[str, Any] = decode(await stage.client.invoke_rpc(stage.flow.stored_rpc, session_id))
    return found
