"""An engine of one's own, or the one that the environment names."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from dex_agents.testing._process import ChildProcess


class PrivateEngine:
    """A running engine; see :func:`private_engine`."""

    def __init__(self, address: str, data_file: Path | None, process: ChildProcess | None) -> None:
        self.address = address
        self.data_file = data_file
        self._process = process

    @property
    def can_be_killed(self) -> bool:
        """Whether the engine is a process of this test."""
        return self._process is not None

    async def kill(self) -> None:
        """SIGKILL the engine.

        Raises:
            RuntimeError: It is not ours.
        """
        self._own().kill()
        await self._own().wait()

    async def restart(self) -> None:
        """Start it again on the same file and port.

        Raises:
            RuntimeError: It is not ours.
        """
        self._own()
        assert self.data_file is not None
        self._process = await _spawn(self.data_file, int(self.address.rpartition(":")[2]))

    async def stop(self) -> None:
        """A clean stop, if it is ours."""
        if self._process is not None:
            await self._process.stop()

    def _own(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError(
                f"the engine at {self.address} was named by DEX_SERVER_ADDRESS: a test cannot kill it"
            )
        return self._process


@contextlib.asynccontextmanager
async def private_engine(data_file: str | os.PathLike[str] | None = None) -> AsyncIterator[PrivateEngine]:
    """An engine for the block.

    ``DEX_SERVER_ADDRESS`` names a running server to use instead. ``DEXCLI`` names a command whose
    ``dev --engine zd --port N`` is started. Otherwise it is dex-lite on ``data_file``, or on a new one.
    """
    named = os.environ.get("DEX_SERVER_ADDRESS")
    if named:
        yield PrivateEngine(named, None, None)
        return
    with tempfile.TemporaryDirectory(prefix="dex-engine-") as folder:
        path = Path(data_file) if data_file is not None else Path(folder) / "engine.db"
        port = _free_port()
        engine = PrivateEngine(f"127.0.0.1:{port}", path, await _spawn(path, port))
        try:
            yield engine
        finally:
            await engine.stop()


async def _spawn(path: Path, port: int) -> ChildProcess:
    command = [
        sys.executable, "-m", "dex_lite", "dev", "--data", str(path), "--port", str(port),
    ]  # fmt: skip
    if os.environ.get("DEXCLI"):
        command = [*shlex.split(os.environ["DEXCLI"]), "dev", "--engine", "zd", "--port", str(port)]
    return await ChildProcess.spawn(
        "the engine", command, ready="ready", log=path.with_suffix(".log"), timeout_s=60
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
