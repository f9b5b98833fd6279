"""An engine of one's own, or the one that the environment names."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from dex_agents._arguments import path_of
from dex_agents.testing._process import ChildProcess

# Below the ports that systems give to outgoing connections. A client that retries against a killed
# engine's port in that range can connect to itself, and then the engine cannot have it back.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 5


class PrivateEngine:
    """A running engine; see :func:`private_engine`.

    Attributes:
        address: ``host:port``; the same after a restart.
        data_file: Its data; ``None`` if it is not ours.
    """

    def __init__(self, address: str, data_file: Path | None, process: ChildProcess | None) -> None:
        self.address = address
        self.data_file = data_file
        self._process = process

    @property
    def pid_file(self) -> Path | None:
        """Holds the process id of the engine that runs now, for failpoints; ``None`` if not ours."""
        return None if self.data_file is None else _pid_file(self.data_file)

    @property
    def can_be_killed(self) -> bool:
        """Whether the engine is a process of this test."""
        return self._process is not None

    async def kill(self) -> None:
        """SIGKILL the engine.

        Raises:
            RuntimeError: It is not ours.
        """
        process, _ = self._own()
        process.kill()
        await process.wait()

    async def wait(self) -> None:
        """Wait until it has ended, for example because a failpoint killed it.

        Raises:
            RuntimeError: It is not ours.
        """
        process, _ = self._own()
        await process.wait()

    async def restart(self) -> None:
        """Start a killed or stopped engine again, on the same file and port.

        Raises:
            RuntimeError: It is not ours, it still runs, or it does not start.
        """
        process, data_file = self._own()
        if process.returncode is None:
            raise RuntimeError(f"the engine at {self.address} still runs: kill or stop it first")
        self._process = await _spawn(data_file, int(self.address.rpartition(":")[2]))

    async def stop(self) -> None:
        """A clean stop, if it is ours."""
        if self._process is not None:
            await self._process.stop()

    def _own(self) -> tuple[ChildProcess, Path]:
        if self._process is None or self.data_file is None:
            raise RuntimeError(
                f"the engine at {self.address} is the one that DEX_TEST_SERVER_ADDRESS names: "
                "a test can neither kill nor restart it"
            )
        return self._process, self.data_file


@contextlib.asynccontextmanager
async def private_engine(
    data_file: str | os.PathLike[str] | None = None,
) -> AsyncIterator[PrivateEngine]:
    """An engine for the block.

    ``DEX_TEST_SERVER_ADDRESS`` names a running server to use instead; ``DEX_SERVER_ADDRESS``, where
    commands find the server that one works with, does not count here. ``DEXCLI`` names a command
    that is started as ``dev --engine zd --port N``. Otherwise it is dex-lite on ``data_file``, or on
    a file that lives as long as the block. The log lies next to the data file.

    Raises:
        RuntimeError: The engine does not start; the text has the end of its log.
    """
    chosen = None if data_file is None else path_of("data_file", data_file)
    named = os.environ.get("DEX_TEST_SERVER_ADDRESS")
    if named:
        yield PrivateEngine(named, None, None)
        return
    with tempfile.TemporaryDirectory(prefix="dex-engine-") as folder:
        path = chosen or Path(folder) / "engine.db"
        port, process = await _spawn_on_free_port(path)
        engine = PrivateEngine(f"127.0.0.1:{port}", path, process)
        try:
            yield engine
        finally:
            await engine.stop()


async def _spawn_on_free_port(path: Path) -> tuple[int, ChildProcess]:
    for tries_left in reversed(range(_PORT_TRIES)):
        port = _choose_port()
        try:
            return port, await _spawn(path, port)
        except RuntimeError:
            # Somebody else may have taken the port in between; every other reason stays.
            if tries_left == 0 or _is_free(port):
                raise
    raise AssertionError("the last try returns or raises")


async def _spawn(path: Path, port: int) -> ChildProcess:
    named = os.environ.get("DEXCLI")
    if named:
        command = [*shlex.split(named), "dev", "--engine", "zd", "--port", str(port)]
    else:
        command = [
            sys.executable,
            "-m",
            "dex_lite",
            "dev",
            "--data",
            str(path),
            "--port",
            str(port),
        ]
    process = await ChildProcess.spawn(
        "the engine", command, ready="ready", log=path.with_suffix(".log")
    )
    _pid_file(path).write_text(str(process.pid))
    return process


def _pid_file(path: Path) -> Path:
    return path.with_suffix(".pid")


def _choose_port() -> int:
    for port in random.sample(_PORTS, 100):
        if _is_free(port):
            return port
    raise RuntimeError(f"no free port among 100 of {_PORTS.start} to {_PORTS.stop - 1}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
