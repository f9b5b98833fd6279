"""A pytest of a small project inside a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.requirements import REPOSITORY


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest there, with the modules of these tests and without plugins."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "tests"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
