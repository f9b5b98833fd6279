"""dex-lite: a Dex engine in one process on one SQLite file.

Unmodified ``dex-python-sdk`` Workers and Clients connect to :attr:`RunningEngine.address`.
"""

from __future__ import annotations

from dex_lite._errors import (
    DataFileCorruptError,
    DataFileInUseError,
    DataFileLinkedError,
    DataFileReplacedError,
    DataFileVersionError,
    DataFileWriteError,
    DataFolderError,
    DexLiteError,
    EngineStoppedError,
    ExtraMissingError,
    PortInUseError,
    TokenFileError,
    TokenNeededError,
)
from dex_lite._options import EngineOptions
from dex_lite._server import RunningEngine, open_engine
from dex_lite._wire.limits import Limits

__all__ = [
    "DataFileCorruptError",
    "DataFileInUseError",
    "DataFileLinkedError",
    "DataFileReplacedError",
    "DataFileVersionError",
    "DataFileWriteError",
    "DataFolderError",
    "DexLiteError",
    "EngineOptions",
    "EngineStoppedError",
    "ExtraMissingError",
    "Limits",
    "PortInUseError",
    "RunningEngine",
    "TokenFileError",
    "TokenNeededError",
    "open_engine",
]
