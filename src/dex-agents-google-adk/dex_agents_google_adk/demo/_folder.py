"""Where a demo keeps its data."""

from __future__ import annotations

import tempfile
from pathlib import Path


def data_folder(given: Path | None, prefix: str) -> Path:
    """The folder of ``--data``, made if it is missing, or a new temporary one.

    Raises:
        RuntimeError: There is a file in its place.
        OSError: It cannot be made.
    """
    if given is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    try:
        given.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise RuntimeError(f"--data names a folder, and {given} is, or lies in, a file") from None
    return given
