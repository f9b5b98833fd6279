"""The demo with and without a person at the terminal, and the invariants it checks."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from dex_agents import AgentEvent, AgentSnapshot, FinishedTurn
from dex_agents.session_graph import history_svg, read_session_history
from dex_agents.testing import private_engine
from dex_agents_google_adk.demo._app import _command
from dex_agents_google_adk.demo._provider import PaymentProvider
from dex_agents_google_adk.demo._report import broken_invariants
from dex_agents_google_adk.demo._screen import ConversationScreen
from support.processes import children_of, is_running
from support.requirements import REPOSITORY
from support.terminal import at_terminal

PICTURE = REPOSITORY / "docs" / "demo-session.svg"
COMMAND = (sys.executable, "-c", "from dex_agents_google_adk.demo import main; main()")


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "GOOGLE_API_KEY"} | {"COLUMNS": "160"}


async def run_demo(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(),
    )
    out, _ = await asyncio.wait_for(process.communicate(), 100)
    return process.returncode, out.decode()


async def test_the_demo_survives_its_own_kill(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    code, text = await run_demo("--yes", "--data", str(folder))
    assert code == 0, text
    assert "a scripted model, no key needed" in text
    assert "died while the refund ran" in text
    assert "Done: order 7 refunded." in text
    assert "attempt 2 of CallTool-2" in text
    assert str(folder) in text
    provider = PaymentProvider(folder / "payments.jsonl")
    assert [entry["event"] for entry in provider.entries()] == [
        "asked",
        "refunded",
        "asked",
        "answered",
    ]
    assert len({entry["key"] for entry in provider.entries()}) == 1
    assert len({entry["pid"] for entry in provider.entries()}) == 2
    # The picture in the README is of such a session.
    async with private_engine(folder / "sessions.db") as engine:
        history = await read_session_history(engine.address, "session-42")
    assert _texts(history_svg(history)) == _texts(PICTURE.read_text())


def _texts(svg: str) -> list[str]:
    """What a picture says, without its times."""
    return [re.sub(r"[\d.]+ m?s\b", "a time", text) for text in re.findall(r">([^<>\n]+)<", svg)]


@pytest.mark.parametrize("demo", ["demo", "demo.web"])
async def test_ctrl_c_while_it_loads_stops_the_demo(demo: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"from dex_agents_google_adk.{demo} import main; main()",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        assert await process.stderr.readline() == "Google ADK loads …\n".encode()
        process.send_signal(signal.SIGINT)
        assert (await process.stderr.read()).decode() == "\nStopped.\n"
        assert await process.wait() == 130


@pytest.mark.parametrize(
    ("yes", "why"),
    [
        (False, "nobody can be asked for the approval, as this is no terminal; --yes gives it"),
        (True, "holds an earlier demo; name another folder with --data"),
    ],
)
def test_what_the_demo_does_not_do(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    yes: bool,
    why: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (tmp_path / "sessions.db").touch()
    with pytest.raises(typer.Exit) as end:
        _command(yes, tmp_path)
    assert end.value.exit_code == 2
    assert why in " ".join(capsys.readouterr().out.split())
    assert [path.name for path in tmp_path.iterdir()] == ["sessions.db"]


async def test_ctrl_c_at_the_question_ends_the_demo_and_its_worker(tmp_path: Path) -> None:
    command = (*COMMAND, "--data", str(tmp_path))
    async with at_terminal(command, environment()) as terminal:
        await terminal.wait_for("[y/n]")
        terminal.type("perhaps\n")
        await terminal.wait_for("Please answer y or n")
        (worker,) = children_of(terminal.process.pid)
        terminal.type("\x03")
        assert await terminal.wait_for_end() == 130
        assert f"Stopped. The data stays in {tmp_path}" in terminal.seen.replace("\r\n", "")
        assert not is_running(worker)
    assert PaymentProvider(tmp_path / "payments.jsonl").entries() == []


def test_why_a_turn_failed_is_shown_at_once() -> None:
    printed = io.StringIO()
    screen = ConversationScreen(Console(file=printed, width=160))
    for kind, why in (("model_call_failed", "no route"), ("turn_failed", "status 400 [bold]")):
        screen.show(AgentEvent(kind, "t1", "RunModel-1", 1, 1, {"error": why}))
    assert "a model call failed: no route" in printed.getvalue()
    assert "the turn failed: status 400 [bold]" in printed.getvalue()


def _snapshot(status: str = "idle", error: str = "") -> AgentSnapshot:
    turn = FinishedTurn("t1", "Done.", error)
    return AgentSnapshot("s", status, "", 1, 2, last_turn=turn)  # type: ignore[arg-type]


def test_a_broken_invariant_is_found(tmp_path: Path) -> None:
    provider = PaymentProvider(tmp_path / "payments.jsonl")
    assert provider.request_refund("7", "k1") == provider.request_refund("7", "k1")
    assert broken_invariants(_snapshot(), provider) == []
    provider.request_refund("7", "k2")
    assert broken_invariants(_snapshot(), provider) == ["order 7 was refunded 2 times"]
    assert "not idle" in broken_invariants(_snapshot("running"), provider)[1]
    assert broken_invariants(_snapshot(error="down"), provider)[1:] == [
        "the last turn failed: down"
    ]
