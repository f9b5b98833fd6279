"""Named errors of dex-lite.

Each message names the thing that is wrong and the way out of it. The command line prints these
messages as they are.
"""

from __future__ import annotations

import os


class DexLiteError(Exception):
    """Base class of every error that dex-lite raises on purpose."""


class DataFolderError(DexLiteError):
    """The folder of the data file cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"cannot use data file {path}: {reason}. "
            "Choose a file in a folder that exists and that this user may write to."
        )
        self.path = path
        self.reason = reason


class DataFileMissingError(DataFolderError):
    """There is no data file of that name, and this was no call that makes one."""

    def __init__(self, path: str) -> None:
        full = os.path.abspath(path)
        reason = "it is a folder" if os.path.isdir(path) else "there is no such file"
        text = f"{path}: {reason}" + (f" ({full})" if full != path else "")
        DexLiteError.__init__(
            self,
            f"no data file {text}. Name the file that `dex-lite dev` serves: "
            "the one of its --data, else .dex-lite/dev.db in the folder where it was started.",
        )
        self.path = path
        self.reason = reason


class DataFileInUseError(DexLiteError):
    """Another engine holds the data file."""

    def __init__(self, path: str, pid: int | None, host: str, address: str) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        if host:
            holder += f" on {host}"
        if address:
            holder += f", serving {address}"
        super().__init__(
            f"data file {path} is in use by {holder}. "
            "Connect to that engine, stop it, or choose another data file."
        )
        self.path = path
        self.pid = pid
        self.host = host
        self.address = address


class DataFileCorruptError(DexLiteError):
    """The data file is damaged, or is no data file of dex-lite."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"data file {path} cannot be read: {reason}. "
            "It was left as it is. Restore it from a backup, or choose another data file."
        )
        self.path = path
        self.reason = reason


class DataFileVersionError(DexLiteError):
    """The data file was written by a newer release."""

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(
            f"data file {path} has format {found}, this release of dex-lite reads up to format "
            f"{supported}. It was left as it is. Upgrade dex-lite, or choose another data file."
        )
        self.path = path
        self.found = found
        self.supported = supported


class DataFileWriteError(DexLiteError):
    """A commit failed while the engine ran: the engine stops for good."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"data file {path} could not be written: {reason}. The engine has stopped; everything "
            "it acknowledged is in the file. Mend the disk, then start it again."
        )
        self.path = path
        self.reason = reason


class DataFileReplacedError(DataFileWriteError):
    """The data file, its log or its lock file is not there any more or is another file."""

    def __init__(self, path: str, name: str) -> None:
        if name.endswith(".lock"):
            text = (
                "another one could serve the data file at the same time from now on. Start the engine "
                "again, and leave the lock file where it is."
            )
        else:
            text = (
                "nothing that it wrote from now on could be found again. If that was a backup which was "
                "restored, start the engine again; else put back the file, or restore a backup."
            )
        DexLiteError.__init__(
            self,
            f"{name} was removed or replaced while the engine ran. The engine has stopped, as {text}",
        )
        self.path = path
        self.reason = f"{name} was removed or replaced"


class DataFileLinkedError(DexLiteError):
    """The data file has several names."""

    def __init__(self, path: str, names: int) -> None:
        super().__init__(
            f"data file {path} has {names} names (hard links), and an engine on each would write to "
            "it with a log of its own. Remove the other names; `dex-lite backup` makes a copy."
        )
        self.path = path
        self.names = names


class BackupError(DexLiteError):
    """A copy of the data file could not be made."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot write backup {path}: {reason}.")
        self.path = path
        self.reason = reason


class PortInUseError(DexLiteError):
    """The address to serve on is taken."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"{host}:{port} is in use by another process. "
            "Stop that process, or choose another port (0 lets the system choose one)."
        )
        self.host = host
        self.port = port


class AddressError(DexLiteError):
    """The address to serve on cannot be used."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot serve on {host}:{port}: {reason}. Choose another host or port.")
        self.host = host
        self.port = port
        self.reason = reason


class TokenFileError(DexLiteError):
    """The file with the valid tokens cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"token file {path} cannot be used: {reason}. "
            "Put one token of at least 16 characters on each line."
        )
        self.path = path
        self.reason = reason


class TokenNeededError(DexLiteError):
    """The engine would be reachable from other machines without a token."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"refused to serve on {host}: other machines could reach the engine, and no token is "
            "asked for. Name a token file (--token-file FILE), or serve on 127.0.0.1."
        )
        self.host = host


class ExtraMissingError(DexLiteError):
    """A part of dex-lite needs a package that is not installed."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(
            f"{package} is not installed. Install it with: pip install 'dex-lite[{extra}]'"
        )
        self.extra = extra
        self.package = package


class EngineStoppedError(DexLiteError):
    """The engine was used after it stopped."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(
            "the engine has stopped" + (f": {reason}" if reason else "") + ". Open it again."
        )
        self.reason = reason


class SearchTooSlowError(DexLiteError):
    """A search ran longer than the engine lets one run."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"the search did not end within {limit_s:g} s. Ask for less: name values of indexes, or a "
            "range of StartTime."
        )
        self.limit_s = limit_s


class StreamError(DexLiteError):
    """Base class of what can be wrong with a Stream call."""


class StreamArgumentError(StreamError):
    """A name, value, source, capacity or page size of a Stream call is not valid."""


class StreamTokenError(StreamError):
    """A resume or page token is not one of this Stream and Flow id."""


class StreamLimitError(StreamError):
    """There are as many Streams as there may be."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"there may be at most {limit} Streams, by Flow type and name. Use one name for many Flow "
            "ids, or start the engine with a larger Limits(streams=...)"
        )
        self.limit = limit


class StreamOverCapacity(StreamError):
    """One message alone is larger than the capacity of its Stream."""

    def __init__(self, stream_name: str, cost: int, capacity: int) -> None:
        super().__init__(
            f"a message of {cost} bytes does not fit into Stream {stream_name!r} "
            f"with a capacity of {capacity} bytes"
        )
        self.cost = cost
        self.capacity = capacity
