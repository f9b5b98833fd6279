"""The three wheels build, install into a fresh environment and import there."""

from __future__ import annotations

import ast
import configparser
import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.requirements import REPOSITORY

DISTRIBUTIONS = {
    "dex-lite": "dex_lite",
    "dex-agents": "dex_agents",
    "dex-agents-google-adk": "dex_agents_google_adk",
}
REQUIRES = {
    "dex-lite": [
        "dex-python-sdk<2,>=1.23",
        "grpcio>=1.70",
        "lark>=1.2",
        "msgspec>=0.19",
        "rich>=13",
        "typer>=0.15",
        "uvloop>=0.21",
    ],
    "dex-agents": [
        "dex-python-sdk<2,>=1.23",
        "grpcio>=1.70",
        "jsonschema>=4.20",
        "pydantic<3,>=2.11",
    ],
    "dex-agents-google-adk": [
        "dex-agents==0.5.0",
        "dex-python-sdk<2,>=1.23",
        "google-adk<3,>=2.13",
        "pydantic<3,>=2.11",
    ],
}
EXTRAS = {
    "dex-lite": {"metrics"},
    "dex-agents": {"ag-ui", "connectors", "mcp", "otel", "s3", "testing", "uvloop"},
    "dex-agents-google-adk": {"demo"},
}
SCRIPTS = {
    "dex-lite": {"dex-lite": "dex_lite._cli:main"},
    "dex-agents": {"dex-agents-session-graph": "dex_agents.session_graph._cli:main"},
    "dex-agents-google-adk": {
        "dex-agents-demo": "dex_agents_google_adk.demo:main",
        "dex-agents-demo-web": "dex_agents_google_adk.demo.web:main",
    },
}
OTHER_ENTRY_POINTS = {
    "dex-agents": {"dex_lite.decoders": {"dex-agents": "dex_agents._session.encoding:decode"}},
}


def _pip(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run pip without the settings of the machine and without a network."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHONPATH"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pip", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def _build(sources: Sequence[Path], folder: Path) -> None:
    done = _pip(
        "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, *sources
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the three wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    _build([REPOSITORY / "src" / name for name in DISTRIBUTIONS], folder)
    return folder


@pytest.fixture(scope="module")
def wheels(wheel_folder: Path) -> dict[str, Path]:
    """Path of each wheel by distribution."""
    return {
        name: next(wheel_folder.glob(f"{package}-0.5.0-*.whl"))
        for name, package in DISTRIBUTIONS.items()
    }


def _environment(folder: Path) -> Path:
    """Python of a new environment that has our third-party packages but none of our own."""
    venv.create(folder, with_pip=False)
    third_party = folder / "third-party"
    third_party.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith((*DISTRIBUTIONS.values(), "_dex_", "__editable__")):
            (third_party / entry.name).symlink_to(entry)
    (site,) = folder.glob("lib/python*/site-packages")
    # Behind the environment's own packages, and no .pth file in there is looked at.
    (site / "third-party.pth").write_text(f"{third_party}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def fresh_python(wheel_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment into which the adapter with its demo was installed."""
    python = _environment(tmp_path_factory.mktemp("fresh"))
    done = _pip(
        "--python", python, "install", "--no-index", "--find-links", wheel_folder,
        "dex-agents-google-adk[demo]",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return python


def _run(python: Path, folder: Path, script: str) -> object:
    """JSON that the script prints as its last line, run in a folder that is not ours."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_metadata_is_as_specified(wheels: dict[str, Path], name: str) -> None:
    metadata = _metadata(wheels[name])
    assert metadata["Name"] == name
    assert metadata["Version"] == "0.5.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"]
    requires = [r for r in metadata.get_all("Requires-Dist", []) if "extra" not in r]
    assert sorted(requires) == REQUIRES[name]
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS[name]
    assert set(metadata.get_all("Classifier", [])) == {
        "Development Status :: 3 - Alpha",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Typing :: Typed",
    }
    labels = {url.split(",")[0] for url in metadata.get_all("Project-URL", [])}
    assert labels == {"Homepage", "Repository", "Changelog"}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_lock_is_within_the_ranges(name: str) -> None:
    """What the suite runs on is what the wheels ask for, and no less than it."""
    lock = (REPOSITORY / "requirements.lock").read_text()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    for asked in map(Requirement, REQUIRES[name]):
        if asked.name in DISTRIBUTIONS:
            continue
        assert pins[asked.name] in asked.specifier, asked
        assert version(asked.name) == pins[asked.name]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_long_description_is_the_readme(wheels: dict[str, Path], name: str) -> None:
    readme = (REPOSITORY / "src" / name / "README.md").read_text()
    assert readme.startswith(f"# {name}\n")
    payload = _metadata(wheels[name]).get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.decode().strip() == readme.strip()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_wheel_holds_type_marker_and_licence(wheels: dict[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        names = archive.namelist()
        (licence,) = (n for n in names if n.endswith(".dist-info/licenses/LICENSE"))
        assert archive.read(licence) == (REPOSITORY / "LICENSE").read_bytes()
    assert f"{DISTRIBUTIONS[name]}/py.typed" in names
    assert {n.split("/")[0].partition("-")[0] for n in names} == {DISTRIBUTIONS[name]}
    assert not [n for n in names if n.endswith((".pyc", ".db"))]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_entry_points(wheels: dict[str, Path], name: str) -> None:
    parser = configparser.ConfigParser()
    with zipfile.ZipFile(wheels[name]) as archive:
        for entry in archive.namelist():
            if entry.endswith(".dist-info/entry_points.txt"):
                parser.read_string(archive.read(entry).decode())
    found = {section: dict(parser[section]) for section in parser.sections()}
    assert found == {"console_scripts": SCRIPTS[name], **OTHER_ENTRY_POINTS.get(name, {})}


def test_wheels_import_in_a_fresh_environment(fresh_python: Path, tmp_path: Path) -> None:
    script = f"""
import importlib, json, importlib.metadata as metadata
out = {{}}
for name, package in {DISTRIBUTIONS!r}.items():
    module = importlib.import_module(package)
    out[name] = [metadata.version(name), module.__file__, sorted(getattr(module, "__all__", []))]
import dex_agents_google_adk.demo, dex, google.adk
from dex_agents.s3 import S3MediaStore
from dex_agents.testing import read_step_history
out["scripts"] = sorted(
    e.name
    for e in metadata.entry_points(group="console_scripts")
    if e.name.startswith("dex-") and e.load()
)
print(json.dumps(out))
"""
    out = _run(fresh_python, tmp_path, script)
    assert isinstance(out, dict)
    for name in DISTRIBUTIONS:
        version, file, _ = out[name]
        assert version == "0.5.0"
        assert "site-packages" in Path(file).relative_to(fresh_python.parents[1]).parts
    assert {"AgentSessionClient", "ToolEffect", "ToolPolicy"} <= set(out["dex-agents"][2])
    assert {
        "AdkAgentRunner",
        "IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY",
        "adk_agent_session_flow",
        "idempotency_key_for_tool_call",
    } <= set(out["dex-agents-google-adk"][2])
    assert out["scripts"] == sorted(name for scripts in SCRIPTS.values() for name in scripts)


CONSUMER = """
from datetime import timedelta
from dex import AsyncClient
from dex_agents import AgentSessionClient, AgentSessionFlow, ToolEffect, ToolPolicy

async def use(client: AsyncClient, flow: AgentSessionFlow) -> str:
    sessions = AgentSessionClient(client, flow)
    await sessions.start_session("s", "hello")
    snapshot = await sessions.wait_for_turn("s", 1, timeout_s=10)
    return "" if snapshot.last_turn is None else snapshot.last_turn.final_text

policy: ToolPolicy = ToolPolicy(ToolEffect.READ)
"""
WRONG = 'from dex_agents import ToolPolicy\nwrong = ToolPolicy(effect="read", timeout=3)\n'


def test_a_strict_type_check_of_a_consumer_passes_and_finds_what_is_wrong(
    fresh_python: Path, tmp_path: Path
) -> None:
    for source, code in ((CONSUMER, 0), (WRONG, 1)):
        (tmp_path / "consumer.py").write_text(source)
        checked = subprocess.run(
            [
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--python-executable",
                fresh_python,
                "consumer.py",
            ],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert checked.returncode == code, checked.stdout
    assert "consumer.py:2: error" in checked.stdout
    assert checked.stdout.count("error:") == 2, checked.stdout


def test_scripts_of_the_installed_wheels_start(fresh_python: Path, tmp_path: Path) -> None:
    for script in ("dex-lite", "dex-agents-demo"):
        done = subprocess.run(
            [fresh_python.parent / script, "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout


def test_adapter_alone_brings_core_and_not_the_engine(wheel_folder: Path, tmp_path: Path) -> None:
    python = _environment(tmp_path / "fresh")
    done = _pip(
        "--python", python, "install", "--no-index", "--find-links", wheel_folder,
        "dex-agents-google-adk",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    script = """
import importlib.util, json, sys
import dex, dex_agents, dex_agents_google_adk, google.adk
print(json.dumps([importlib.util.find_spec("dex_lite") is None, "dex_lite" in sys.modules]))
"""
    assert _run(python, tmp_path, script) == [True, False]


def test_core_and_adapter_of_different_versions_do_not_resolve(
    wheel_folder: Path, wheels: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "dex-agents"
    shutil.copytree(REPOSITORY / "src" / "dex-agents", other)
    settings = other / "pyproject.toml"
    settings.write_text(settings.read_text().replace('version = "0.5.0"', 'version = "0.5.1"'))
    _build([other], tmp_path)
    (newer,) = tmp_path.glob("dex_agents-0.5.1-*.whl")
    python = _environment(tmp_path / "fresh")
    install = ("--python", python, "install", "--no-index", "--dry-run")
    adapter = wheels["dex-agents-google-adk"]
    refused = _pip(*install, adapter, newer)
    assert refused.returncode != 0
    assert "conflicting dependencies" in refused.stderr
    accepted = _pip(*install, adapter, wheels["dex-agents"])
    assert accepted.returncode == 0, accepted.stderr


def _imports(package: str) -> Iterator[tuple[Path, str]]:
    """File and full dotted name of each absolute import of a package, nested ones too."""
    folder = next((REPOSITORY / "src").glob(f"*/{package}"))
    for path in sorted(folder.rglob("*.py")):
        for name in _imported_names(path.read_text()):
            yield path.relative_to(folder), name


def _imported_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _importers(package: str, imported: str) -> set[str]:
    """Files of a package that import another one."""
    return {
        path.as_posix() for path, name in _imports(package) if f"{name}.".startswith(f"{imported}.")
    }


def test_imports_are_found_in_every_form() -> None:
    source = """
import a.b, c as d
from google import adk
def f():
    if x:
        from e.f import g
from . import h
"""
    assert sorted(_imported_names(source)) == ["a.b", "c", "e.f.g", "google.adk"]


def test_dependencies_point_one_way() -> None:
    for package in ("dex_lite", "dex_agents"):
        assert _importers(package, "google.adk") == set()
        assert _importers(package, "dex_agents_google_adk") == set()
    assert _importers("dex_lite", "dex_agents") == set()
    core = _importers("dex_agents", "dex_lite")
    assert {path for path in core if not path.startswith("testing/")} == set()
    adapter = _importers("dex_agents_google_adk", "dex_lite")
    assert {path for path in adapter if not path.startswith("demo/")} == set()
    assert _importers("dex_agents_google_adk", "google.adk")
    assert _importers("dex_agents_google_adk", "dex_agents")


def test_only_the_public_entry_of_dex_lite_is_used() -> None:
    lite = next((REPOSITORY / "src").glob("*/dex_lite"))
    modules = {path.stem for path in lite.iterdir() if path.suffix == ".py" or path.is_dir()}
    for package in ("dex_agents", "dex_agents_google_adk"):
        used = {name for _, name in _imports(package) if name.startswith("dex_lite.")}
        assert {name for name in used if name.split(".")[1] in modules} == set()
