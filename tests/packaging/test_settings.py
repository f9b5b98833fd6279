"""The settings of the workspace do what they say."""

from __future__ import annotations

import json
import re
import tomllib
import warnings
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support.requirements import REPOSITORY

WORKSPACE = ("dex-lite", "dex-agents", "dex-agents-google-adk")


@pytest.mark.parametrize(
    ("module", "fails"),
    [
        ("dex_lite", True),
        ("dex_lite._wire.tasks", True),
        ("dex_agents", True),
        ("dex_agents._session.flow", True),
        ("dex_agents_google_adk._flow", True),
        ("google.adk.agents", False),
        ("dex", False),
        ("dex_lite_other", False),
    ],
)
def test_warnings_of_our_own_modules_are_errors(module: str, fails: bool) -> None:
    raised = False
    with warnings.catch_warnings(record=True):  # keeps the filters, which are those of the settings
        try:
            warnings.warn_explicit("something", UserWarning, "file.py", 1, module=module)
        except UserWarning:
            raised = True
    assert raised == fails


def _lock() -> dict[str, Version]:
    """Version of each package in the lock; every entry has to have hashes and an exact version."""
    locked: dict[str, Version] = {}
    text = (REPOSITORY / "requirements.lock").read_text()
    for entry in re.split(r"\n(?=\S)", text.replace("\\\n", " ")):
        if entry.startswith("#") or not entry.strip():
            continue
        requirement, _, hashes = entry.partition(" --hash=")
        assert hashes.startswith("sha256:"), entry
        parsed = Requirement(requirement)
        (specifier,) = parsed.specifier
        assert specifier.operator == "==", entry
        locked[canonicalize_name(parsed.name)] = Version(specifier.version)
    return locked


def _dependencies(project: dict[str, object]) -> list[Requirement]:
    table = project["project"]
    assert isinstance(table, dict)
    extras = table.get("optional-dependencies", {}).values()
    return [Requirement(text) for part in (table["dependencies"], *extras) for text in part]


@pytest.mark.parametrize("name", WORKSPACE)
def test_the_lock_satisfies_every_dependency(name: str) -> None:
    locked = _lock()
    project = tomllib.loads((REPOSITORY / "src" / name / "pyproject.toml").read_text())
    for requirement in _dependencies(project):
        if requirement.name in WORKSPACE:
            assert str(requirement.specifier) == "==0.5.0"
            assert requirement.name not in locked
        else:
            assert locked[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", WORKSPACE)
def test_the_development_install_takes_sibling_folders(name: str) -> None:
    installed = distribution(name)
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    assert origin["dir_info"] == {"editable": True}
    assert Path(unquote(urlsplit(origin["url"]).path)) == REPOSITORY / "src" / name
    assert installed.version == "0.5.0"


@pytest.mark.parametrize("name", WORKSPACE)
def test_each_distribution_carries_the_licence(name: str) -> None:
    licence = (REPOSITORY / "LICENSE").read_bytes()
    assert b"Apache License" in licence
    assert (REPOSITORY / "src" / name / "LICENSE").read_bytes() == licence
