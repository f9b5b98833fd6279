"""Failpoints: which places, whose, and for the how manieth time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import dex_agents
from dex_agents.testing import failpoint_env, is_failpoint_reached

# The module alone, as the package would take a second to import.
PASS = """
import sys
sys.path.insert(0, sys.argv[1])
from _failpoints import reach
for place in sys.argv[2:]:
    reach(*place.split("@"))
    print(place, flush=True)
"""
PLACES = ("a@one", "a@two", "b@two", "a@two", "a@one")


def run(folder: Path, failpoints: Sequence[str], **env: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PASS, dex_agents.__path__[0], *PLACES],
        env={**os.environ, **failpoint_env(failpoints, folder), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.split()


@pytest.mark.parametrize(
    "name,passed",
    [
        ("a", 0),
        ("a#2", 1),
        ("a@two", 1),
        ("a@two#2", 3),
        ("b@two", 2),
        ("a#4", 4),
        ("*@two#2", 2),
        ("*@two#3", 3),
    ],
)
def test_a_place_kills_at_its_time_once(tmp_path: Path, name: str, passed: int) -> None:
    assert run(tmp_path, [name]) == (-signal.SIGKILL, list(PLACES[:passed]))
    assert is_failpoint_reached(name, tmp_path)
    assert run(tmp_path, [name]) == (0, list(PLACES))


@pytest.mark.parametrize("name", ["a@three", "a#5", "a@two#3", "c"])
def test_other_places_do_not(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, [name]) == (0, list(PLACES))
    assert not is_failpoint_reached(name, tmp_path)


def test_another_process_dies_and_this_one_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as victim:
        (tmp_path / "victim.pid").write_text(str(victim.pid))
        place = f"b@two=kill:{tmp_path / 'victim.pid'}"
        assert run(tmp_path, [place]) == (0, list(PLACES))
        assert victim.wait(timeout=30) == -signal.SIGKILL


def test_an_unknown_action_is_named(tmp_path: Path) -> None:
    code, passed = run(tmp_path, ["b@two=explode"])
    assert (code, passed) == (1, list(PLACES[:2]))


def test_the_log_has_every_place(tmp_path: Path) -> None:
    log = tmp_path / "places"
    assert run(tmp_path, [], DEX_AGENTS_FAILPOINT_LOG=str(log)) == (0, list(PLACES))
    assert log.read_text().split("\n")[:-1] == [place.replace("@", " ") for place in PLACES]
