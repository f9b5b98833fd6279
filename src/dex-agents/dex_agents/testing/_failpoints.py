"""Let a process kill itself, or another one, at a named place of the core, once."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dex_agents._arguments import check_file_name, check_name, path_of, shown

_NAME_BYTES = 240
"""The rest of a file name is for the number of a kill behind it."""


def failpoint_env(failpoints: Sequence[str], marker_dir: str | os.PathLike[str]) -> dict[str, str]:
    """Environment of a process that SIGKILLs itself where it first gets to one of these places.

    Args:
        failpoints: Names such as ``"tool.after_call"``; ``"tool.after_call@order-7#2"`` is the
            second time in session ``order-7``, ``"*@order-7#3"`` the third place of any name there.
            ``"NAME=kill*3"`` kills the first three processes
            that get there, ``"NAME=kill:FILE"`` the process whose id the file
            holds instead, such as ``PrivateEngine.pid_file``.
        marker_dir: Where a file remembers a place that has killed, so that each does it once over
            all processes that share the folder.

    Raises:
        TypeError, ValueError: An argument is none.
    """
    if isinstance(failpoints, str | bytes) or not isinstance(failpoints, Sequence):
        raise TypeError(f"failpoints must be a list of names, got {shown(failpoints)}")
    for name in failpoints:
        check_name("a failpoint", name)
        place, found, _ = name.rpartition("=")
        _check_place("a failpoint", place if found else name)
        if "," in name:
            raise ValueError(f"a failpoint must not have a comma, got {shown(name)}; list it twice")
    markers = path_of("marker_dir", marker_dir)
    if not failpoints:
        return {}
    armed = (name if "=" in name else f"{name}=kill" for name in failpoints)
    return {
        "DEX_AGENTS_FAILPOINTS": ",".join(armed),
        "DEX_AGENTS_FAILPOINT_DIR": str(markers),
    }


def is_failpoint_reached(name: str, marker_dir: str | os.PathLike[str]) -> bool:
    """Whether a process was killed at this place.

    Args:
        name: As it was given to :func:`failpoint_env`, without an action.
        marker_dir: The folder that was given there.

    Raises:
        TypeError, ValueError: An argument is none.
    """
    _check_place("name", name)
    return (path_of("marker_dir", marker_dir) / name).exists()


def _check_place(argument: str, name: object) -> None:
    """A marker file has the name of its place; raises TypeError, ValueError."""
    check_file_name(argument, name, _NAME_BYTES)
