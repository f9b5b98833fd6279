"""A suite in several processes ends like one in a single process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.requirements import REPOSITORY

_CONFTEST = """
from support.forked_suite import ForkedSuite

def pytest_configure(config):
    config.pluginmanager.register(ForkedSuite(3))
"""
_MODULE = """
import os, pytest

@pytest.fixture(scope="module")
def opened():
    yield os.getpid()
    print("closed by", os.getpid())

@pytest.mark.parametrize("number", range(25))
def test_number(opened, number, tmp_path):
    assert opened == os.getpid()
    print("printed", number, "in", tmp_path.parent.name)
    assert number != 7

def test_skipped(): pytest.skip("not here")
"""


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(_CONFTEST)
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


def test_every_test_runs_once_and_failures_are_shown(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(_MODULE if name != "test_b.py" else "def test_it(): ...\n")
    done = _pytest(tmp_path, "-v")
    assert done.returncode == 1
    assert "2 failed, 49 passed, 2 skipped" in done.stdout
    assert done.stdout.count("test_a.py::test_number[7] FAILED") == 1
    assert len(re.findall(r"printed 7 in p[0-2]\n", done.stdout)) == 2
    assert "printed 8 in" not in done.stdout
    assert "assert 7 != 7" in done.stdout


def test_a_process_that_ends_fails_the_run_and_names_its_test(tmp_path: Path) -> None:
    (tmp_path / "test_end.py").write_text("import os\n\ndef test_end(): os._exit(0)\n")
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    done = _pytest(tmp_path)
    assert done.returncode == 1
    assert "a process of the suite has ended: test_end.py::test_end" in done.stdout


@pytest.mark.parametrize("maximum", [1, 3])
def test_it_stops_after_as_many_failures_as_were_asked_for(tmp_path: Path, maximum: int) -> None:
    text = (
        "import pytest\n@pytest.mark.parametrize('n', range(200))\ndef test_it(n): assert n < 0\n"
    )
    (tmp_path / "test_it.py").write_text(text)
    done = _pytest(tmp_path, f"--maxfail={maximum}")
    assert done.returncode == 1
    assert f"stopping after {maximum} failures" in done.stdout
    assert f"= {maximum} failed in" in done.stdout
