"""Places at which a test kills the process; one comparison each where no test asks for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_ARMED: dict[str, str] = dict(
    entry.split("=", 1)
    for entry in os.environ.get("DEX_AGENTS_FAILPOINTS", "").split(",")
    if "=" in entry
)


def reach(name: str) -> None:
    """Pass the named place.

    ``name=kill`` in ``DEX_AGENTS_FAILPOINTS`` makes the first process that gets here SIGKILL
    itself; a marker file in ``DEX_AGENTS_FAILPOINT_DIR`` keeps it from happening again.
    """
    if _ARMED and _ARMED.get(name) == "kill":
        _kill_once(name)


def _kill_once(name: str) -> None:
    marker = Path(os.environ["DEX_AGENTS_FAILPOINT_DIR"]) / name
    try:
        descriptor = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.fsync(descriptor)
    os.close(descriptor)
    os.kill(os.getpid(), signal.SIGKILL)
