"""ci.sh sets up once, runs its stages in order and says what is missing. Its tools are fakes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.requirements import REPOSITORY

# The interpreter: everything real but "-m venv", which makes tools that write down their arguments.
PYTHON = f"""#!/usr/bin/env bash
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p .venv/bin
  for tool in python ruff mypy dex-agents-demo; do
    printf '#!/usr/bin/env bash\\necho "%s $*" >>log\\n[ ! -e "fail-%s" ]\\n' $tool $tool \\
      >.venv/bin/$tool
    chmod +x .venv/bin/$tool
  done
  echo venv >>log
else
  exec {sys.executable} "$@"
fi
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with ci.sh, a lock and one distribution."""
    shutil.copy(REPOSITORY / "ci.sh", tmp_path)
    (tmp_path / "requirements.lock").write_text("one==1\n")
    (tmp_path / "src" / "one").mkdir(parents=True)
    (tmp_path / "src" / "one" / "pyproject.toml").write_text("")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def _ci(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "log").unlink(missing_ok=True)
    return subprocess.run(
        ["bash", "ci.sh", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHON": str(folder / "python"), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def _log(folder: Path) -> list[str]:
    """First words of each call."""
    path = folder / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [" ".join(line.split()[:3]) for line in lines]


WORKSPACE = ["python -m pip", "python -m pip"]
PIP = ["venv", "python -m pip", *WORKSPACE]
STYLE = ["ruff check src", "ruff format --check"]
TYPES = "mypy src/dex-lite/dex_lite src/dex-agents/dex_agents"
TESTS = "python -m pytest"


def test_without_arguments_it_sets_up_and_checks_everything(workspace: Path) -> None:
    done = _ci(workspace)
    assert done.returncode == 0, done.stderr
    first = [*PIP, *STYLE]
    calls = _log(workspace)
    assert calls[: len(first)] == first
    # Types and tests run side by side.
    assert sorted(calls[len(first) :]) == sorted([TYPES, TESTS])
    log = (workspace / "log").read_text()
    assert "--no-deps --no-compile --require-hashes -r requirements.lock" in log
    assert "--no-deps --no-build-isolation -e src/dex-lite" in log
    for name in ("install the locked packages", "lint", "format", "types", "tests"):
        assert f"== {name}: ok, " in done.stderr


def test_setup_is_skipped_until_the_lock_or_a_project_changes(workspace: Path) -> None:
    _ci(workspace, "setup")
    assert _log(workspace) == PIP
    _ci(workspace, "setup")
    assert _log(workspace) == []
    (workspace / "src" / "one" / "pyproject.toml").write_text("# changed\n")
    _ci(workspace, "setup")
    assert _log(workspace) == WORKSPACE
    (workspace / "requirements.lock").write_text("one==2\n")
    _ci(workspace, "setup")
    assert _log(workspace) == PIP


def test_a_setup_that_failed_is_done_again(workspace: Path) -> None:
    (workspace / "fail-python").touch()
    done = _ci(workspace, "lint")
    assert done.returncode == 1
    assert "== install the locked packages: failed, " in done.stderr
    assert _log(workspace) == ["venv", "python -m pip"]
    (workspace / "fail-python").unlink()
    assert _ci(workspace, "lint").returncode == 0
    assert _log(workspace) == [*PIP, *STYLE, TYPES]


def test_tests_that_fail_fail_the_run(workspace: Path) -> None:
    _ci(workspace, "setup")
    (workspace / "fail-python").touch()
    done = _ci(workspace)
    assert done.returncode == 1
    assert "== tests: failed, " in done.stderr
    assert [call for call in _log(workspace) if call != TYPES] == [*STYLE, TESTS]


def test_a_failed_stage_ends_the_run(workspace: Path) -> None:
    _ci(workspace, "setup")
    (workspace / "fail-mypy").touch()
    done = _ci(workspace)
    assert done.returncode == 1
    assert "== types: failed, " in done.stderr
    assert sorted(_log(workspace)) == sorted([*STYLE, TYPES, TESTS])


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (("demo", "--yes"), "dex-agents-demo --yes"),
        (("bench", "--rounds", "3"), "python tests/bench/run.py --rounds 3"),
        (("test", "-k", "one two"), "python -m pytest -k one two"),
        (("long", "-x"), "python -m pytest -m long --timeout 3600 -x"),
    ],
)
def test_commands_pass_their_arguments_on(
    workspace: Path, arguments: tuple[str, ...], call: str
) -> None:
    _ci(workspace, "setup")
    assert _ci(workspace, *arguments).returncode == 0
    assert (workspace / "log").read_text() == f"{call}\n"


def test_help_and_an_unknown_command(workspace: Path) -> None:
    usage = _ci(workspace, "help")
    assert usage.returncode == 0
    assert "./ci.sh demo" in usage.stdout
    unknown = _ci(workspace, "dmeo")
    assert unknown.returncode == 2
    assert unknown.stderr == usage.stdout
    assert _log(workspace) == []


def test_a_missing_python_is_named(workspace: Path) -> None:
    tools = workspace / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    (tools / "python3").write_text(
        '#!/usr/bin/env bash\n[ "$1" = -V ] && echo Python 3.9.1 || exit 1\n'.replace(
            "/usr/bin/env bash", str(tools / "bash")
        )
    )
    (tools / "python3").chmod(0o755)
    done = _ci(workspace, "setup", PYTHON="", PATH=str(tools))
    assert done.returncode == 1
    assert "Python 3.11 or newer is missing; found: python3 (Python 3.9.1)" in done.stderr
    named = _ci(workspace, "setup", PYTHON="/no/such/python")
    assert named.returncode == 1
    assert "PYTHON=/no/such/python is not Python 3.11 or newer" in named.stderr


def test_ci_run_starts_it() -> None:
    run = REPOSITORY / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert os.access(REPOSITORY / "ci.sh", os.X_OK)
    assert run.read_text().splitlines()[-1] == "exec bash ./ci.sh"
