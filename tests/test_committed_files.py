"""No committed file names a registry's host or a path of somebody's machine."""

from __future__ import annotations

import subprocess

from support.requirements import REPOSITORY

# Built from pieces, so that this file does not find itself.
FORBIDDEN = (
    "/wo" + "rk/",
    "/ro" + "ot/",
    "/ho" + "me/",
    "/opt/" + "pypi",
    "/opt/" + "wheels",
    "py" + "pi.org",
    "python" + "hosted.org",
    "index" + "-url =",
    "artifact" + "ory",
)


def test_no_registry_host_and_no_machine_path() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert "ci.sh" in listed
    found = []
    for name in listed:
        path = REPOSITORY / name
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        found += [f"{name}: {word}" for word in FORBIDDEN if word in text]
    assert found == []
