"""A child process in a group of its own that says on stdout when it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, Self


class Process(Protocol):
    """What is needed of a process that was started."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...

    async def wait(self) -> int: ...


class StartCommand(Protocol):
    """Starts a command in a session of its own, its stdout a pipe, its stderr a file.

    Its stdin is a pipe that ends when this process does, whatever ends it.
    """

    async def __call__(
        self, command: Sequence[str], env: Mapping[str, str], errors: BinaryIO
    ) -> Process: ...


async def exec_command(command: Sequence[str], env: Mapping[str, str], errors: BinaryIO) -> Process:
    """The usual way."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        env=env,
    )


# A suite that starts hundreds of processes may have a faster way.
start_command: StartCommand = exec_command


class ChildProcess:
    """One child. Signals go to its whole group, so nothing that it started is left behind."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self.ready_line = ""
        self._process = process
        self._copying: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Process id, also the id of the group."""
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
        python_path: Sequence[str | os.PathLike[str]] = (),
        timeout_s: float = 60.0,
    ) -> Self:
        """Start a command and wait for the line on stdout that contains ``ready``.

        The child imports what this process can import: its ``PYTHONPATH`` is ``python_path`` and
        then this process's ``sys.path``. What it writes is appended to ``log``.

        Raises:
            RuntimeError: It ended or stayed silent; the text has the end of its log.
        """
        search = [os.fspath(p) for p in python_path] + [p or os.getcwd() for p in sys.path]
        with log.open("ab") as errors:
            process = await start_command(
                command,
                {**os.environ, "PYTHONPATH": os.pathsep.join(search), **(env or {})},
                errors,
            )
        child = cls(name, process, log)
        try:
            async with asyncio.timeout(timeout_s):
                is_ready = await child._wait_ready(ready)
        except TimeoutError:
            await child._end()
            raise RuntimeError(
                f"{name} was not ready within {timeout_s:g} s: {child.log_tail()}"
            ) from None
        except BaseException:
            await child._end()
            raise
        if not is_ready:
            code = await child._end()
            raise RuntimeError(f"{name} ended with code {code}: {child.log_tail()}")
        # A pipe that nobody empties would stop a child that prints a lot.
        child._copying = asyncio.create_task(child._copy_stdout())
        return child

    def kill(self) -> None:
        """SIGKILL the group."""
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end; the exit code."""
        return await self._process.wait()

    async def stop(self, timeout_s: float = 40.0) -> int:
        """SIGTERM, then SIGKILL if it has not ended in time. The exit code."""
        if self.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    await self.wait()
            except TimeoutError:
                self.kill()
            except BaseException:
                self.kill()
                raise
        return await self.wait()

    def log_tail(self) -> str:
        """The end of what it wrote."""
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return text[-2_000:] or "(it wrote nothing to its log)"

    async def _wait_ready(self, ready: str) -> bool:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            text = line.decode(errors="replace").strip()
            if ready in text:
                self.ready_line = text
                return True
            self._append(line)
        return False

    async def _copy_stdout(self) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(65_536):
            self._append(data)

    def _append(self, data: bytes) -> None:
        # The folder of a test may be gone before the child is.
        with contextlib.suppress(FileNotFoundError), self.log.open("ab") as log:
            log.write(data)

    async def _end(self) -> int:
        self.kill()
        return await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
