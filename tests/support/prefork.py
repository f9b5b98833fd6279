"""Child processes of the suite without the seconds of their imports.

A start of Python, gRPC and ADK takes three seconds of a core, and the suite starts hundreds of
engines and Workers. So one process imports everything once, and each engine or Worker is a fork of
it: with its own session, environment, output and working folder, to be killed like any other.
Tests of a command itself, and of packages, start real commands.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from dex_agents.testing import _process

# What "python -m NAME" runs: the module that has its main().
_ENTRIES = {
    "dex_lite": "dex_lite._cli",
    "dex_agents._worker_main": "dex_agents._worker_main",
    "dex_agents.testing._respawn": "dex_agents.testing._respawn",
}
_PRELOADED = (*_ENTRIES.values(), "dex_lite", "dex_agents_google_adk")


def install() -> None:
    """Let :mod:`dex_agents.testing` start its processes here."""
    _process.start_command = start


def start_ahead() -> None:
    """Start the process that forks now, for forks of this process to share it."""
    _preforking()


async def start(
    command: Sequence[str], env: Mapping[str, str], errors: BinaryIO
) -> _process.Process:
    """Start a command: a fork if it is one of ours, else a process like any other."""
    if command[:2] != [sys.executable, "-m"] or command[2] not in _ENTRIES:
        return await _process.exec_command(command, env, errors)
    path = await asyncio.to_thread(_preforking)
    loop = asyncio.get_running_loop()
    stdin, own_end = os.pipe()
    read_end, write_end = os.pipe()
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        request = {"module": command[2], "arguments": command[3:], "env": dict(env)}
        data = json.dumps({**request, "cwd": os.getcwd()}).encode()
        sent = socket.send_fds(connection, [data], [stdin, write_end, errors.fileno()])
        connection.sendall(data[sent:])
        connection.shutdown(socket.SHUT_WR)
    finally:
        os.close(stdin)
        os.close(write_end)
    stdout = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(read_end, "rb", 0)
    )
    connection.setblocking(False)
    _, process = await loop.create_connection(lambda: _Fork(stdout, own_end), sock=connection)
    await process.started
    return process


class _Fork(asyncio.Protocol):
    """One child: the line with its id, and when it has ended the line with its code."""

    def __init__(self, stdout: asyncio.StreamReader, stdin: int) -> None:
        self.stdout = stdout
        self._stdin = stdin  # stays open for as long as it runs, or until this process is gone
        self.pid = 0
        self.returncode: int | None = None
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._data = b""
        self._transport: asyncio.BaseTransport | None = None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            name, _, number = line.partition(b" ")
            if name == b"started":
                self.pid = int(number)
                self.started.set_result(None)
            else:
                self.returncode = int(number)
                self._ended.set_result(self.returncode)

    def connection_lost(self, error: Exception | None) -> None:
        os.close(self._stdin)
        lost = RuntimeError("the process that forks engines and Workers has ended")
        for future in (self.started, self._ended):
            if not future.done():
                future.set_exception(lost)
                future.exception()


@functools.cache
def _preforking() -> str:
    """Start the process that forks, and wait until it listens; the path of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="prefork-")
    path = str(Path(folder.name) / "socket")
    search = [entry or os.getcwd() for entry in sys.path]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.prefork", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
    )
    stdin = process.stdin
    assert stdin is not None and process.stdout is not None

    # It lives on as no child of ours, since tests look at what children they have left behind, and
    # ends when its stdin does.
    is_ready = process.stdout.readline()
    process.stdout.close()
    if process.wait() or not is_ready:
        raise RuntimeError("the process that forks engines and Workers does not start")

    def stop() -> None:
        stdin.close()
        folder.cleanup()

    atexit.register(stop)
    return path


class _Server:
    """Forks a child for every connection, and tells it there when the child has ended."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._ended, wake = os.pipe()
        for descriptor in (self._ended, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._wake = wake
        self._children: dict[int, socket.socket] = {}

    def serve(self) -> str:
        """Fork until stdin ends. Returns in the children only, with the module to run."""
        selector = selectors.DefaultSelector()
        for source in (sys.stdin.fileno(), self._listener, self._ended):
            selector.register(source, selectors.EVENT_READ)
        if os.fork():
            os._exit(0)
        # Behind the fork, in whose child the asyncio of Python 3.12 takes the wakeup away.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._listener:
                    if module := self._fork():
                        selector.close()
                        return module
                elif key.fileobj == self._ended:
                    os.read(self._ended, 4096)
                    self._tell_ends()
                elif not os.read(sys.stdin.fileno(), 4096):
                    os._exit(0)

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._children.pop(ended[0])
                with contextlib.suppress(OSError):
                    connection.sendall(f"ended {os.waitstatus_to_exitcode(ended[1])}\n".encode())
                connection.close()

    def _fork(self) -> str | None:
        """A child for the next connection; the module to run, in the child."""
        connection, _ = self._listener.accept()
        data, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        while more := connection.recv(1 << 16):
            data += more
        pid = os.fork()
        if pid:
            self._children[pid] = connection
            for descriptor in streams:
                os.close(descriptor)
            return None
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        connection.sendall(f"started {os.getpid()}\n".encode())
        for mine in (connection, self._listener, *self._children.values()):
            mine.close()
        for descriptor in (self._ended, self._wake):
            os.close(descriptor)
        return _become(json.loads(data))


def _become(request: dict[str, object]) -> str:
    """Take over what makes a process; the module to run."""
    module, arguments, env = request["module"], request["arguments"], request["env"]
    assert isinstance(module, str) and isinstance(arguments, list) and isinstance(env, dict)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(env)
    own = [path for path in env["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    sys.path[:0] = own
    sys.argv = [f"{module}/__main__.py", *arguments]
    # The one module of ours that reads the environment when it is imported.
    importlib.reload(importlib.import_module("dex_agents._failpoints"))
    return module


def main() -> None:
    """Entry of the process that forks, and of each child."""
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    module = _Server(sys.argv[1]).serve()
    importlib.import_module(_ENTRIES[module]).main()


if __name__ == "__main__":
    main()
