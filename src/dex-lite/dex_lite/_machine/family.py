"""What one command causes in other runs. All turns belong to one commit: they happen together or not at all."""

from __future__ import annotations

from collections.abc import Iterator

from dex_lite._machine import decide
from dex_lite._machine.turn import Turn


def spread(turn: Turn) -> Iterator[Turn]:
    """The command's own turn and then every other one, each complete before the next is made."""
    yield turn
    for started in turn.calls:
        yield from spread(decide.start(started))
