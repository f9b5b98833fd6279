"""A program at a terminal: what a person would see of it, and type."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import AsyncIterator, Mapping, Sequence


class Terminal:
    """The person's side."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.seen = ""
        self._descriptor = descriptor

    def type(self, text: str) -> None:
        """Press these keys; ``\\x03`` is Ctrl-C."""
        os.write(self._descriptor, text.encode())

    async def wait_for(self, text: str, within_s: float = 90.0) -> None:
        """Wait until the program has printed a text since it started."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while text not in self.seen and await self._read():
                    pass
        assert text in self.seen, self.seen

    async def wait_for_end(self, within_s: float = 60.0) -> int:
        """Read on until the program has ended; its exit code."""
        async with asyncio.timeout(within_s):
            while await self._read():
                pass
            return await asyncio.to_thread(self.process.wait)

    async def _read(self) -> bool:
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:  # Linux says so when the last program has left the terminal
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@contextlib.asynccontextmanager
async def at_terminal(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Terminal]:
    """Run a program with a terminal of its own for the block."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        # The terminal becomes the one whose Ctrl-C the program gets.
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
