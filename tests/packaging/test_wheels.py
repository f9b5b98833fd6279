"""The three wheels build, install into a fresh environment and import there."""

from __future__ import annotations

import ast
import email
import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest
from support.requirements import REPOSITORY

DISTRIBUTIONS = {
    "dex-lite": "dex_lite",
    "dex-agents": "dex_agents",
    "dex-agents-google-adk": "dex_agents_google_adk",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Path of each wheel by distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
            "--no-index", "--wheel-dir", str(folder),
            *(str(REPOSITORY / "src" / name) for name in DISTRIBUTIONS),
        ],
        check=True,
    )  # fmt: skip
    return {
        name: next(folder.glob(f"{package}-0.5.0-*.whl"))
        for name, package in DISTRIBUTIONS.items()
    }


@pytest.fixture(scope="module")
def fresh_python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment with only the wheels; third-party packages come from this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()
    )  # fmt: skip
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps",
            "--no-index", *map(str, wheels.values()),
        ],
        check=True,
    )  # fmt: skip
    # Behind the wheels, so that the editable installs of this environment cannot shadow them.
    (site / "zz-third-party.pth").write_text(
        f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
    )
    return python


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_adapter_metadata_is_as_specified(wheels: dict[str, Path]) -> None:
    metadata = _metadata(wheels["dex-agents-google-adk"])
    assert metadata["Name"] == "dex-agents-google-adk"
    assert metadata["Version"] == "0.5.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"]
    requires = [r for r in metadata.get_all("Requires-Dist", []) if "extra" not in r]
    assert sorted(requires) == [
        "dex-agents==0.5.0",
        "dex-python-sdk<2,>=1.23",
        "google-adk<3,>=2.13",
        "pydantic<3,>=2.11",
    ]
    assert set(metadata.get_all("Classifier", [])) == {
        "Development Status :: 3 - Alpha",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Typing :: Typed",
    }
    labels = {url.split(",")[0] for url in metadata.get_all("Project-URL", [])}
    assert labels == {"Homepage", "Repository", "Changelog"}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_wheel_holds_type_marker_and_licence(wheels: dict[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        names = archive.namelist()
    assert f"{DISTRIBUTIONS[name]}/py.typed" in names
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)
    assert not any(n.startswith("tests/") for n in names)


def test_wheels_import_in_a_fresh_environment(fresh_python: Path, tmp_path: Path) -> None:
    script = """
import importlib, json, importlib.metadata as m
out = {}
for name, package in %r.items():
    module = importlib.import_module(package)
    out[name] = [m.version(name), module.__file__, sorted(getattr(module, '__all__', []))]
import dex_agents.testing, dex_agents_google_adk.demo
out['scripts'] = sorted(
    e.name for e in m.entry_points(group='console_scripts') if e.name.startswith('dex-') and e.load()
)
print(json.dumps(out))
""" % (DISTRIBUTIONS,)
    done = subprocess.run(
        [fresh_python, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    out = json.loads(done.stdout.splitlines()[-1])
    for name in DISTRIBUTIONS:
        version, file, _ = out[name]
        assert version == "0.5.0"
        assert Path(file).is_relative_to(fresh_python.parents[1]), file
    assert {"AgentSessionClient", "ToolEffect", "ToolPolicy"} <= set(out["dex-agents"][2])
    assert {
        "AdkAgentRunner",
        "IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY",
        "adk_agent_session_flow",
        "idempotency_key_for_tool_call",
    } <= set(out["dex-agents-google-adk"][2])
    assert out["scripts"] == ["dex-agents-demo", "dex-lite"]


def _imports(package: str) -> Iterator[tuple[Path, str]]:
    folder = next((REPOSITORY / "src").glob(f"*/{package}"))
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield path.relative_to(folder), alias.name
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path.relative_to(folder), node.module


def _roots(package: str, *, outside: tuple[str, ...] = ()) -> set[str]:
    return {
        ".".join(name.split(".")[:2]) if name.startswith("google.") else name.split(".")[0]
        for path, name in _imports(package)
        if path.parts[0] not in outside
    }


def test_dependencies_point_one_way() -> None:
    assert not _roots("dex_lite") & {"dex_agents", "dex_agents_google_adk", "google.adk"}
    assert not _roots("dex_agents") & {"dex_agents_google_adk", "google.adk"}
    assert "dex_lite" not in _roots("dex_agents", outside=("testing",))
    assert "dex_lite" not in _roots("dex_agents_google_adk", outside=("demo",))


def test_only_the_public_entry_of_dex_lite_is_used() -> None:
    for package in ("dex_agents", "dex_agents_google_adk"):
        inner = {name for _, name in _imports(package) if name.startswith("dex_lite.")}
        assert inner == set()
