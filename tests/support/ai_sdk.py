"""The real AI SDK, in Node, as the reader of UI message streams."""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.ci import missing
from support.requirements import REPOSITORY

PROGRAM = REPOSITORY / "tests/ui_stream/node"
PINS = ("package.json", "package-lock.json")
INSTALL_S = 100.0
READ_S = 60.0


@dataclass(frozen=True)
class Reading:
    """What ``useChat`` would hold after the streams."""

    message: Any
    errors: list[str]

    def parts(self, kind: str) -> list[Any]:
        """Parts of one type."""
        return [part for part in self.message["parts"] if part["type"] == kind]


def read_streams(cases: Sequence[tuple[int, Sequence[str]]]) -> list[Reading]:
    """Read responses with the package's major versions, each response of a case on top of the last."""
    given = [{"version": version, "responses": list(texts)} for version, texts in cases]
    process = _reader()
    assert process.stdin is not None and process.stdout is not None
    watch = threading.Timer(READ_S, process.kill)
    watch.start()
    try:
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    finally:
        watch.cancel()
    if not answer:
        _reader.cache_clear()
        raise AssertionError(f"the reader ended with {process.wait()}; its error is above")
    return [Reading(**reading) for reading in json.loads(answer)]


@functools.cache
def _reader() -> subprocess.Popen[str]:
    """One process for all tests, as Node takes a second to load the packages."""
    process = subprocess.Popen(
        [_node(), str(installed() / "read.mjs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    return process


def _node() -> str:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        missing("Node with npm is not installed")
    return node


@functools.cache
def installed() -> Path:
    """A folder with the pinned packages and the program, installed once for each lock."""
    _node()
    digest = hashlib.sha256(b"".join((PROGRAM / name).read_bytes() for name in PINS))
    folder = REPOSITORY / ".ci-cache" / f"node-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            for name in PINS:
                shutil.copy(PROGRAM / name, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            process = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                env={**os.environ, "npm_config_update_notifier": "false"},
                check=False,
            )
            if process.returncode != 0:
                missing(f"npm cannot install the AI SDK: {process.stderr[-500:]}")
            (folder / "installed").touch()
    shutil.copy(PROGRAM / "read.mjs", folder)
    return folder
