"""Child processes of the demo, each in a process group of its own, so that one signal ends all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path


class ChildProcess:
    """One child that says on stdout when it is ready."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], *, ready: str, log: Path, timeout_s: float = 60
    ) -> ChildProcess:
        """Start ``python`` with the arguments and wait for the line that contains ``ready``.

        Raises:
            RuntimeError: The process ended or stayed silent; the text has the end of its log.
        """
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        child = cls(name, process, log)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                while line := await process.stdout.readline():
                    if ready in line.decode(errors="replace"):
                        return child
        except TimeoutError:
            child.kill()
            raise RuntimeError(
                f"the {name} was not ready in {timeout_s:g} s: {child._tail()}"
            ) from None
        await process.wait()
        raise RuntimeError(f"the {name} ended with code {process.returncode}: {child._tail()}")

    def kill(self) -> None:
        """SIGKILL the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self, timeout_s: float = 20) -> None:
        """SIGTERM, and SIGKILL if that does not help in time."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._process.wait()
            except TimeoutError:
                self.kill()
        await self._process.wait()

    async def wait(self) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        return await self._process.wait()

    def _tail(self) -> str:
        text = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return text[-1000:] or "(nothing in its log)"
