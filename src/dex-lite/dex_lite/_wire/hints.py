"""What the engine and its own command line tell each other beyond the protocol, in the metadata of a call.

Nobody has to send or read it. A key of the trailing metadata ends in ``-bin``, so its value may hold any text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

# Of GetFlowState: types of Steps that are ready while no Worker is connected that could take them.
STEPS_WITHOUT_WORKER = "dex-lite-steps-without-worker-bin"
# Of SearchFlows: places in the page of Flows that have such Steps.
FLOWS_WITHOUT_WORKER = "dex-lite-flows-without-worker-bin"
# Of a call: how many bytes its answer may have, if that is more than the SDK receives.
RECEIVES = "dex-lite-receives"
_LONGEST_NUMBER = 18
_MOST_BYTES = 4_096  # of the 8 KiB that gRPC lets all metadata of an answer have


def received_bytes(metadata: Iterable[tuple[str, str | bytes]], least: int) -> int:
    """How large an answer the caller takes; ``least`` is what everybody does."""
    for name, value in metadata:
        if name == RECEIVES and value.isdigit() and len(value) < _LONGEST_NUMBER:
            return max(least, int(value))
    return least


def to_metadata(key: str, found: Sequence[str] | Sequence[int]) -> tuple[tuple[str, bytes], ...]:
    """The metadata; nothing if nothing was found, and the first ones if all are too much."""
    if not found:
        return ()
    kept = list(found)
    while len(data := json.dumps(kept).encode()) > _MOST_BYTES:
        del kept[len(kept) // 2 :]
    return ((key, data),)


def from_metadata(key: str, metadata: Iterable[tuple[str, str | bytes]]) -> list[str | int]:
    """What a server said under the key; nothing of a server that does not know it."""
    for name, value in metadata:
        if name == key:
            found: list[str | int] = json.loads(value)
            return found
    return []
