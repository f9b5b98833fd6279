"""Every Python block of the documentation runs, and every command in it is one that we have.

A Python block is run as a program in an empty folder, unless the comment
``<!-- test: path::name -->`` right above it names the test that runs it. A shell block needs that
comment too, unless all its commands are our own or ``pip install``.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.requirements import REPOSITORY, why_no_test

RUN_TIMEOUT_S = 60.0
PYTHON = ("python", "python3", "py")
SHELL = ("bash", "console", "sh", "shell")
OWN_COMMANDS = (
    ("./ci.sh",),
    ("dex-agents-demo",),
    ("dex-agents-session-graph",),
    ("dex-lite",),
    ("export",),
    ("pip", "install"),
)


@dataclass(frozen=True)
class Block:
    """A fenced block; ``test`` is the test that the comment above it names."""

    path: Path
    line: int
    language: str
    code: str
    test: str | None


def documents(root: Path) -> list[Path]:
    """Pages whose blocks are checked."""
    found = {*root.glob("README.md"), *root.glob("src/*/README.md"), *root.glob("docs/**/*.md")}
    return sorted(found)


def read_blocks(path: Path) -> list[Block]:
    """All fenced blocks of a page."""
    blocks = []
    lines = path.read_text().splitlines()
    number, above = 0, ""
    while number < len(lines):
        line = lines[number]
        opening = re.match(r"\s*(`{3,}|~{3,})\s*([\w-]*)", line)
        number += 1
        if opening is None:
            above = line.strip() or above
            continue
        start, fence = number, opening[1]
        closing = re.compile(rf"\s*{re.escape(fence[0])}{{{len(fence)},}}\s*")
        while number < len(lines) and not closing.fullmatch(lines[number]):
            number += 1
        if number == len(lines):
            raise ValueError(f"{path}:{start}: the block has no end")
        code = textwrap.dedent("\n".join(lines[start:number]) + "\n")
        named = re.fullmatch(r"<!--\s*test:\s*(\S+)\s*-->", above)
        blocks.append(Block(path, start + 1, opening[2].lower(), code, named[1] if named else None))
        number, above = number + 1, ""
    return blocks


def run_block(block: Block, folder: Path, timeout_s: float = RUN_TIMEOUT_S) -> str:
    """Run a Python block in a folder; says what went wrong, empty if nothing did."""
    program = folder / f"{block.path.stem.lower()}_line_{block.line}.py"
    program.write_text("\n" * (block.line - 1) + block.code)  # tracebacks show the page's lines
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.Popen(
        [sys.executable, str(program)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return f"did not end within {timeout_s:g} s\n{output}"
    return "" if process.returncode == 0 else f"exit code {process.returncode}\n{output}"


def unknown_commands(code: str) -> list[str]:
    """Commands of a shell block that are not ours."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        if "$(" in line or "`" in line or "<(" in line:
            found.append(line.strip())
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        command: list[str] = []
        for token in [*lexer, ";"]:
            if token and set(token) <= set(";&|"):
                if command and not any(tuple(command[: len(own)]) == own for own in OWN_COMMANDS):
                    found.append(" ".join(command))
                command = []
            else:
                command.append(token)
    return found


def block_fault(block: Block, root: Path) -> str:
    """Why a block is not covered, before it is run; empty if it is."""
    if block.test is not None:
        return why_no_test(block.test, root)
    if block.language in SHELL and (unknown := unknown_commands(block.code)):
        return f"names no test and has {unknown}"
    return ""


BLOCKS = [block for path in documents(REPOSITORY) for block in read_blocks(path)]
PROGRAMS = [block for block in BLOCKS if block.language in PYTHON and block.test is None]


def _where(block: Block) -> str:
    return f"{block.path.relative_to(REPOSITORY)}:{block.line}"


def test_every_block_is_covered() -> None:
    faults = {_where(block): block_fault(block, REPOSITORY) for block in BLOCKS}
    assert {where: fault for where, fault in faults.items() if fault} == {}


@pytest.mark.parametrize("block", PROGRAMS, ids=_where)
def test_python_block_runs(block: Block, tmp_path: Path) -> None:
    assert run_block(block, tmp_path) == ""


# The checks themselves, on pages made for them.


def _page(root: Path, text: str) -> list[Block]:
    (root / "README.md").write_text(text)
    assert documents(root) == [root / "README.md"]
    return read_blocks(root / "README.md")


def test_pages_are_found(tmp_path: Path) -> None:
    pages = ["README.md", "docs/design/deep.md", "docs/top.md", "src/one/README.md"]
    for page in [*pages, "other.md", "src/one/CHANGES.md"]:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).touch()
    assert documents(tmp_path) == [tmp_path / page for page in pages]


def test_no_pages_are_no_fault(tmp_path: Path) -> None:
    assert documents(tmp_path) == []


def test_blocks_are_read_with_their_line_language_and_test(tmp_path: Path) -> None:
    blocks = _page(
        tmp_path,
        "# Title\n\n```python\na = 1\n```\n"
        "<!-- test: tests/test_a.py::test_b -->\n\n```Bash\nrm x\n```\n"
        "<!-- test: tests/test_a.py::test_b -->\nText in between.\n"
        "- item\n\n  ```py\n  if a:\n      b\n  ```\n"
        "````text\n```python\n````\n",
    )
    assert [(b.line, b.language, b.code, b.test) for b in blocks] == [
        (4, "python", "a = 1\n", None),
        (9, "bash", "rm x\n", "tests/test_a.py::test_b"),
        (16, "py", "if a:\n    b\n", None),
        (20, "text", "```python\n", None),
    ]


def test_a_block_without_an_end_is_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"README\.md:2: the block has no end"):
        _page(tmp_path, "text\n```python\na = 1\n")


def test_a_good_block_runs_in_its_own_folder(tmp_path: Path) -> None:
    (block,) = _page(tmp_path, "```python\nopen('made', 'w').close()\n```\n")
    folder = tmp_path / "run"
    folder.mkdir()
    assert run_block(block, folder) == ""
    assert (folder / "made").exists()


def test_a_failing_block_is_found_with_its_line(tmp_path: Path) -> None:
    (block,) = _page(tmp_path, "Text.\n\n```python\na = 1\nraise SystemError(a)\n```\n")
    fault = run_block(block, tmp_path)
    assert fault.startswith("exit code 1")
    assert "line 5" in fault
    assert "SystemError: 1" in fault


def test_a_block_that_does_not_end_is_found(tmp_path: Path) -> None:
    (block,) = _page(
        tmp_path, "```python\nimport time\nprint('on', flush=True)\ntime.sleep(50)\n```\n"
    )
    assert run_block(block, tmp_path, timeout_s=3).startswith("did not end within 3 s\non")


def test_a_comment_that_names_no_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_b(): ...\n")
    blocks = _page(
        tmp_path,
        "".join(
            f"<!-- test: {test} -->\n```python\n1 / 0\n```\n"
            for test in ("test_a.py::test_b", "test_a.py::test_c", "test_z.py::test_b")
        ),
    )
    assert [block_fault(block, tmp_path) for block in blocks] == [
        "",
        "no test test_c in test_a.py",
        "no file test_z.py",
    ]


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        ("# set up\n./ci.sh demo --yes\n", []),
        ("pip install 'dex-lite==0.5.0' \\\n  rich\nexport A=b && dex-lite dev &\n", []),
        ("dex-agents-demo --yes | tee log\n", ["tee log"]),
        ("pip install x; rm -rf y\n", ["rm -rf y"]),
        ("pip uninstall x\ndex-litex\n", ["pip uninstall x", "dex-litex"]),
        ("export A=$(rm y)\n", ["export A=$(rm y)"]),
    ],
)
def test_shell_blocks_have_our_commands_only(tmp_path: Path, code: str, unknown: list[str]) -> None:
    assert unknown_commands(code) == unknown
    (block,) = _page(tmp_path, f"```bash\n{code}```\n")
    assert bool(block_fault(block, tmp_path)) == bool(unknown)
