"""What the engine tells its own command line beyond the protocol, in the trailing metadata of an answer.

Nobody has to send or read it. A key ends in ``-bin``, so its value may hold any text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

# Of GetFlowState: types of Steps that are ready while no Worker is connected that could take them.
STEPS_WITHOUT_WORKER = "dex-lite-steps-without-worker-bin"
# Of SearchFlows: places in the page of Flows that have such Steps.
FLOWS_WITHOUT_WORKER = "dex-lite-flows-without-worker-bin"
_MOST_BYTES = 4_096  # of the 8 KiB that gRPC lets all metadata of an answer have


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
