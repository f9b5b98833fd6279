"""Pages of finished turns. Decoded pages are kept by content: a pure cache that changes nothing but time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dex import Context

from dex_agents._contract import AgentMessage
from dex_agents._session import resources
from dex_agents._session.encoding import decode
from dex_agents._session.records import message_from_json

_CACHE_LIMIT = 4_096
_cache: OrderedDict[bytes, tuple[AgentMessage, ...]] = OrderedDict()


def read_page(data: bytes) -> Sequence[AgentMessage]:
    """The messages of one page."""
    found = _cache.get(data)
    if found is None:
        found = tuple(message_from_json(item) for item in decode(data))
        _cache[data] = found
        if len(_cache) > _CACHE_LIMIT:
            _cache.popitem(last=False)
    else:
        _cache.move_to_end(data)
    return found


def read_history(context: Context) -> list[AgentMessage]:
    """Messages of all finished turns, oldest first; the page map must be loaded."""
    keys = sorted(resources.messages.get_all_instance_keys(context))
    return [
        message for key in keys for message in read_page(resources.messages.get(context, key))
    ]
