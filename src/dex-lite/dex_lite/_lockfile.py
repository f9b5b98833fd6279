"""Who holds a data file.

The lock is a kernel lock (`flock`) on `<data file>.lock`: it ends with the process, so a holder
that died never blocks the next one. The file's content only serves the error text of the one that
is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import weakref

from dex_lite._errors import DataFileInUseError, DataFolderError

LOCK_SUFFIX = ".lock"
_LIVE: weakref.WeakSet[LockFile] = weakref.WeakSet()


class LockFile:
    """The held lock.

    Release it with `release`; the lock file itself stays, because removing it would let two win.
    """

    def __init__(self, data_path: str, address: str = "") -> None:
        self.path = data_path + LOCK_SUFFIX
        self._fd = -1
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataFolderError(data_path, f"{self.path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, host, holder_address = _read_holder(fd)
            os.close(fd)
            raise DataFileInUseError(data_path, pid, host, holder_address) from None
        except OSError as error:
            os.close(fd)
            reason = f"the file system of {self.path} has no file locks: {error.strerror}"
            raise DataFolderError(data_path, reason) from error
        self._fd = fd
        _LIVE.add(self)
        self.set_address(address)

    def set_address(self, address: str) -> None:
        """Write who holds the file and where it serves.

        Best effort, the lock does not depend on it.
        """
        if self._fd < 0:
            return
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "address": address}
        content = json.dumps(holder).encode() + b"\n"
        with contextlib.suppress(OSError):
            # One write over the old content, then cut: a reader never sees an empty file.
            os.pwrite(self._fd, content, 0)
            os.ftruncate(self._fd, len(content))

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _LIVE.discard(self)


def _read_holder(fd: int) -> tuple[int | None, str, str]:
    try:
        holder = json.loads(os.pread(fd, 4096, 0))
        return int(holder["pid"]), str(holder["host"]), str(holder["address"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, "", ""


def _close_in_child() -> None:
    # A forked child shares the lock's file description and would keep the file locked after its
    # parent died.
    for lock in list(_LIVE):
        lock.release()


os.register_at_fork(after_in_child=_close_in_child)
