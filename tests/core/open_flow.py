"""A session Flow that tells what it stores beside what clients see."""

from __future__ import annotations

from typing import Any

from dex import Context, RPCResult, rpc

from core.conftest import Stage
from dex_agents import AgentSessionFlow
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode

OF_A_TURN = (
    resources.turn_states,
    resources.run_states,
    resources.tool_contexts,
    resources.records,
    resources.call_notes,
    resources.interrupts,
    resources.unapproved,
    resources.accepted,
    resources.steering,
)
"""Maps whose entries go with their turn."""


class OpenFlow(AgentSessionFlow):
    """For ``stages.play(flow_class=...)``."""

    @rpc(name="stored", load_attribute_maps=OF_A_TURN)
    def stored_rpc(self, context: Context) -> RPCResult[bytes]:
        """Keys of the maps whose entries go with their turn, and of Channels that hold messages."""
        found = {map_.name: list(map_.get_all_instance_keys(context)) for map_ in OF_A_TURN}
        for channels in resources.OF_A_TURN:
            found[channels.name] = list(channels.get_all_instance_keys(context))
        return RPCResult(encode({name: keys for name, keys in found.items() if keys}))


async def stored(stage: Stage, session_id: str = "s") -> dict[str, Any]:
    """What an :class:`OpenFlow` tells; what is empty is left out."""
    assert isinstance(stage.flow, OpenFlow)
    found: dict[str, Any] = decode(await stage.client.invoke_rpc(stage.flow.stored_rpc, session_id))
    return found
