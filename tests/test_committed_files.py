"""No committed file names a registry's host or a path of somebody's machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.requirements import REPOSITORY

# Built from pieces, so that this file does not find itself.
FORBIDDEN = (
    "/wo" + "rk/",
    "/ro" + "ot/",
    "/ho" + "me/",
    "/Use" + "rs/",
    "/tmp" + "/w/",
    "/opt/" + "pypi",
    "/opt/" + "wheels",
    "py" + "pi.org",
    "python" + "hosted.org",
    "index" + "-url",
    "index" + "_url",
    "--find" + "-links /",
    "artifact" + "ory",
)


def committed_files(root: Path) -> list[Path]:
    """Files that git has or would add; without git, all but hidden and ignored folders."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return sorted(_walk(root))
    return [root / name for name in listed if name and (root / name).is_file()]


def _walk(root: Path) -> Iterator[Path]:
    ignored = {"__pycache__", "build", "dist"}
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in ignored and (f == ".ci" or f[0] != ".")]
        for name in names:
            if not name.endswith((".pyc", ".db", ".db-wal", ".db-shm", ".db.lock")):
                yield Path(folder, name)


def forbidden_words(files: list[Path], root: Path) -> list[str]:
    """``file:line: word`` of each forbidden word in a text file."""
    found = []
    for path in files:
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            where = f"{path.relative_to(root)}:{number}"
            found += [f"{where}: {word}" for word in FORBIDDEN if word in line]
    return found


def test_no_registry_host_and_no_machine_path() -> None:
    files = committed_files(REPOSITORY)
    assert REPOSITORY / "ci.sh" in files
    assert REPOSITORY / "requirements.lock" in files
    assert forbidden_words(files, REPOSITORY) == []


@pytest.mark.parametrize("word", FORBIDDEN)
def test_a_forbidden_word_is_found(tmp_path: Path, word: str) -> None:
    (tmp_path / "good.txt").write_text("a path below /tmp or relative/work is fine\n")
    (tmp_path / "bad.toml").write_text(f"# settings\nplace = '{word}'\n")
    assert f"bad.toml:2: {word}" in forbidden_words(committed_files(tmp_path), tmp_path)
    assert not any("good" in f for f in forbidden_words(committed_files(tmp_path), tmp_path))
