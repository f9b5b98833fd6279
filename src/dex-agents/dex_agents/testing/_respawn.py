"""A Worker that a SIGKILL does not end for good: ``python -m dex_agents.testing._respawn ...``.

This process imports what the Flow needs, which takes most of a start, and forks one Worker after
the other: whenever a SIGKILL ends one, the next is there at once. It takes the arguments of
``dex_agents._worker_main``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

from dex_agents import _worker_main


def main() -> None:
    """Entry of the process."""
    importlib.import_module(sys.argv[1].partition(":")[0])
    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        # The signal goes to the whole group, so the Worker has it too.
        nonlocal is_stopping
        is_stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    code = 0
    while not is_stopping:
        pid = os.fork()
        if pid == 0:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            _worker_main.main()
            return
        _, status = os.waitpid(pid, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            code = abs(os.waitstatus_to_exitcode(status))
            break
    sys.exit(code)


if __name__ == "__main__":
    main()
