"""Who holds a data file, and that only living holders count."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dex_lite._errors import DataFileInUseError, DataFolderError
from dex_lite._lockfile import LockFile

_HOLD = """
import sys
from dex_lite._lockfile import LockFile
lock = LockFile(sys.argv[1], "127.0.0.1:8801")
print("held", flush=True)
sys.stdin.read()
"""

# The parent dies, the child it forked lives on and inherited the parent's open files.
_FORK = """
import os, sys
from dex_lite._lockfile import LockFile
lock = LockFile(sys.argv[1])
if os.fork() == 0:
    print("child", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait3(os.WNOHANG)
sys.stdout.write("")
os._exit(0)
"""


def _start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_second_holder_is_told_who_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holder = _start(_HOLD, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    try:
        with pytest.raises(DataFileInUseError) as caught:
            LockFile(str(path))
    finally:
        holder.communicate()
    error = caught.value
    assert (error.pid, error.host, error.address) == (
        holder.pid,
        socket.gethostname(),
        "127.0.0.1:8801",
    )
    for part in (str(path), str(holder.pid), socket.gethostname(), "127.0.0.1:8801"):
        assert part in str(error)


def test_killed_holder_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holder = _start(_HOLD, path)
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    LockFile(str(path)).release()


def test_fork_of_a_dead_holder_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent = _start(_FORK, path)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "child\n"
    assert parent.wait(10) == 0
    LockFile(str(path)).release()
    parent.communicate()


def test_one_process_holds_a_file_once(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    lock = LockFile(path)
    with pytest.raises(DataFileInUseError, match=f"process {os.getpid()}"):
        LockFile(path)
    lock.release()
    lock.release()
    LockFile(path).release()


def test_address_can_be_told_later(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    lock = LockFile(path, "a much longer address than the one that follows")
    lock.set_address("host:1")
    with pytest.raises(DataFileInUseError) as caught:
        LockFile(path)
    assert caught.value.address == "host:1"
    lock.release()
    lock.set_address("ignored")


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b'{"pid": 1}', b"\xff\x00"])
def test_unreadable_holder_still_refuses(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.db"
    lock = LockFile(str(path))
    Path(lock.path).write_bytes(content)
    with pytest.raises(DataFileInUseError, match="another process") as caught:
        LockFile(str(path))
    assert caught.value.pid is None
    lock.release()


def test_lock_file_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataFolderError, match="missing"):
        LockFile(str(tmp_path / "missing" / "a.db"))
