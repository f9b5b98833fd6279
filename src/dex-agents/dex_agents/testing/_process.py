"""A child process in a group of its own that says on stdout when it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class ChildProcess:
    """One child; ``kill`` ends its whole group at once."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, line: str):
        self.name = name
        self.ready_line = line
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; ``None`` while it runs."""
        return self._process.returncode

    @classmethod
    async def spawn(
        cls,
        name: str,
        command: Sequence[str],
        *,
        ready: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> ChildProcess:
        """Start a command and wait for the line that contains ``ready``.

        Raises:
            RuntimeError: It ended or stayed silent; the text has the end of its log.
        """
        path = os.pathsep.join(p for p in sys.path if p)
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, **(env or {})},
            )
        child = cls(name, process, log, "")
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                while line := await process.stdout.readline():
                    if ready in line.decode(errors="replace"):
                        child.ready_line = line.decode(errors="replace").strip()
                        return child
        except TimeoutError:
            child.kill()
            await process.wait()
            raise RuntimeError(
                f"{name} was not ready within {timeout_s:g} s: {child.log_tail()}"
            ) from None
        await process.wait()
        raise RuntimeError(f"{name} ended with code {process.returncode}: {child.log_tail()}")

    def kill(self) -> None:
        """SIGKILL the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end; the exit code."""
        return await self._process.wait()

    async def stop(self, timeout_s: float = 40.0) -> int:
        """SIGTERM, then wait; SIGKILL if that takes too long. The exit code."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._process.wait()
            except TimeoutError:
                self.kill()
        return await self._process.wait()

    def log_tail(self) -> str:
        """The end of what it wrote to stderr."""
        text = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return text[-2_000:] or "(it wrote nothing to its log)"
