"""The test module of docs/guide/testing.md, run as a newcomer runs it."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from docs.test_code_blocks import read_blocks
from support.requirements import REPOSITORY

PAGE = REPOSITORY / "docs" / "guide" / "testing.md"


async def test_the_module_of_the_page_passes(tmp_path: Path) -> None:
    (module,) = [block for block in read_blocks(PAGE) if block.language == "python"]
    (tmp_path / "test_shop.py").write_text(module.code)
    # Its dozens of processes would take most of a minute to import everything.
    (tmp_path / "conftest.py").write_text("from support import prefork\n\nprefork.install()\n")
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rP",
        "-p",
        "no:cacheprovider",
        "--log-level=INFO",
    )
    process = await asyncio.create_subprocess_exec(
        *command, "--rootdir", str(tmp_path), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, out.decode()
    assert "3 passed" in out.decode()
    assert re.search(r"kill at tool\.\w+#\d \(4 of 4\)$", out.decode(), re.M)
    # The table that the page explains.
    assert re.search(r"^place +verdict +repeated$", out.decode(), re.M)
    assert re.search(r"^tool\.before_call#1 +(same|unknown outcome) +\d+$", out.decode(), re.M)
