"""A suite in several processes ends like one in a single process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.inner_pytest import run_pytest

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose tests run in three processes."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    return tmp_path


def test_every_test_runs_once_and_failures_are_shown(project: Path) -> None:
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (project / name).write_text(_MODULE if name != "test_b.py" else "def test_it(): ...\n")
    done = run_pytest(project, "-v")
    assert done.returncode == 1
    assert "2 failed, 49 passed, 2 skipped" in done.stdout
    assert done.stdout.count("test_a.py::test_number[7] FAILED") == 1
    assert len(re.findall(r"printed 7 in p[0-2]\n", done.stdout)) == 2
    assert "printed 8 in" not in done.stdout
    assert "assert 7 != 7" in done.stdout


def test_a_process_that_ends_fails_the_run_and_names_its_test(project: Path) -> None:
    (project / "test_end.py").write_text("import os\n\ndef test_end(): os._exit(0)\n")
    (project / "test_it.py").write_text("def test_it(): ...\n")
    done = run_pytest(project)
    assert done.returncode == 1
    assert "a process of the suite has ended: test_end.py::test_end" in done.stdout


@pytest.mark.parametrize("maximum", [1, 3])
def test_it_stops_after_as_many_failures_as_were_asked_for(project: Path, maximum: int) -> None:
    text = (
        "import pytest\n@pytest.mark.parametrize('n', range(200))\ndef test_it(n): assert n < 0\n"
    )
    (project / "test_it.py").write_text(text)
    done = run_pytest(project, f"--maxfail={maximum}")
    assert done.returncode == 1
    assert f"stopping after {maximum} failures" in done.stdout
    assert f"= {maximum} failed in" in done.stdout
