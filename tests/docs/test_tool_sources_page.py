"""The MCP server of docs/guide/tool-sources.md, and the program that starts it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from docs.test_code_blocks import read_blocks
from support.requirements import REPOSITORY

PAGE = REPOSITORY / "docs" / "guide" / "tool-sources.md"


def test_the_server_and_its_program(tmp_path: Path) -> None:
    for block in read_blocks(PAGE):
        name = block.code.partition("\n")[0].removeprefix("# ")
        if name.endswith(".py"):
            (tmp_path / name).write_text(block.code)
    done = subprocess.run(
        [sys.executable, "list_notes.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "read_note read Read a note.\n"
    assert f"It prints `{done.stdout.strip()}`" in PAGE.read_text()
    assert f"version {version('mcp').partition('.')[0]} of the package `mcp`" in PAGE.read_text()
