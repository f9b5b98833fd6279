"""Places at which a test kills a process; one comparison each where no test asks for it.

``DEX_AGENTS_FAILPOINTS`` is a list of ``PLACE[@SESSION][#N]=ACTION``, divided by commas: what
happens when a process gets to that place, of that session only, for the N-th time (the first, by
default); ``*`` as the place counts all places of a session. ``kill`` is a SIGKILL of the process
itself, ``kill*3`` of the first three that get there; ``kill:FILE`` one of the process whose id the
file holds, for example the engine, after which this one goes on. A marker file in
``DEX_AGENTS_FAILPOINT_DIR``, named as the left side, keeps it from happening again in any process
that shares the folder. ``DEX_AGENTS_FAILPOINT_LOG`` names a file that gets a line ``PLACE SESSION``
for every place passed.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from dex_agents._arguments import shown

_ARMED: dict[str, str] = {
    name: action
    for name, found, action in (
        entry.rpartition("=") for entry in os.environ.get("DEX_AGENTS_FAILPOINTS", "").split(",")
    )
    if found
}
_LOG = os.environ.get("DEX_AGENTS_FAILPOINT_LOG", "")
_passed: Counter[str] = Counter()


def reach(place: str, session_id: str = "") -> None:
    """Pass a place; see the module."""
    if not _ARMED and not _LOG:
        return
    if _LOG:
        _append(_LOG, f"{place} {session_id}\n")
    for name in (place, f"{place}@{session_id}", f"*@{session_id}"):
        _passed[name] += 1
        numbered = f"{name}#{_passed[name]}"
        candidates = (name, numbered) if _passed[name] == 1 else (numbered,)
        for candidate in candidates:
            if (action := _ARMED.get(candidate)) is not None:
                _kill(candidate, action)


def _append(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _kill(name: str, action: str) -> None:
    action, _, times = action.partition("*")
    for number in range(1, int(times or 1) + 1):
        _kill_once(name if number == 1 else f"{name}.{number}", action)


def _kill_once(name: str, action: str) -> None:
    victim = _victim(action)
    marker = Path(os.environ["DEX_AGENTS_FAILPOINT_DIR"]) / name
    try:
        descriptor = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.fsync(descriptor)
    os.close(descriptor)
    os.kill(victim, signal.SIGKILL)


def _victim(action: str) -> int:
    if action == "kill":
        return os.getpid()
    word, found, path = action.partition(":")
    if word != "kill" or not found:
        raise ValueError(f"a failpoint's action must be kill or kill:FILE, got {shown(action)}")
    return int(Path(path).read_text())
