"""A Worker process that comes back whenever it is killed: ``python -m support.forking_worker FLOW SERVER DATA_DIR``.

A start of Python and its imports takes longer than everything that a kill test looks at. So this
process imports once and forks a real Worker, and another one after each SIGKILL.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

from dex_agents import _worker_main


def main() -> None:
    """Fork Workers until one ends in another way than by SIGKILL."""
    flow, server, data_dir = sys.argv[1:]
    importlib.import_module(flow.partition(":")[0])
    # The group's SIGTERM is for the Worker; its clean end is ours.
    signal.signal(signal.SIGTERM, _ignore)
    while True:
        pid = os.fork()
        if pid == 0:
            sys.argv = [sys.argv[0], flow, server, f"{data_dir}/worker-cache", data_dir]
            _worker_main.main()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != -signal.SIGKILL:
            sys.exit(code)


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler, as an ignored signal would be ignored by the children too."""


if __name__ == "__main__":
    main()
