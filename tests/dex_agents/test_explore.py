"""The crash explorer finds nothing in a sound agent and every planted bug."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from dex_agents import OUTCOME_UNKNOWN_TOOL_RESULT, AgentMessage, MessageRole
from dex_agents.testing import CrashReport, PlayedSession, explore_crashes
from dex_agents.testing._compare import Run, compare_runs, read_run

EXPLORED = "support.explored_agents"


def verdicts(report: CrashReport) -> dict[str, str]:
    return {row.place: row.verdict for row in report.rows}


async def check_sound_agent(folder: Path) -> None:
    report = await explore_crashes(
        f"{EXPLORED}:sound", ["order-1"], repeatable=["look"], data_dir=folder
    )
    report.check()
    found = verdicts(report)
    unknown = {row.place.partition("#")[0] for row in report.rows if "unknown" in row.verdict}
    assert unknown == {"tool.before_call", "tool.after_call"}
    assert len(found) == len(report.rows), "a place has two rows"
    calls = [row.place for row in report.rows if row.place.startswith("tool.")]
    assert sorted(calls) == [
        "tool.after_call#1",
        "tool.after_call#2",
        "tool.before_call#1",
        "tool.before_call#2",
    ]
    places = {place.partition("#")[0] for place in found}
    assert places >= {
        "message.before",
        "model.before_call",
        "model.after_call",
        "approval.open",
        "interrupt.answered",
        "tool.before_call",
        "tool.after_call",
        "resume.before",
    }
    assert set(found.values()) == {"same", "unknown outcome"}
    repeated = {row.place: row.repeated for row in report.rows}
    assert repeated["model.after_call#1"] == 1
    assert repeated["model.before_call#1"] == 0
    assert str(report).splitlines()[0].split() == ["place", "verdict", "repeated"]
    assert len(str(report).splitlines()) == len(report.rows) + 1


async def check_payment_that_runs_twice(folder: Path) -> None:
    report = await explore_crashes(
        f"{EXPLORED}:pays_twice",
        ["order-1"],
        repeatable=["look"],
        places=lambda place: place.startswith("tool."),
        data_dir=folder,
    )
    # The calls of a response run side by side: a kill in front of one may meet another behind its effect.
    failed = {row.place.partition("#")[0] for row in report.failures}
    assert "tool.after_call" in failed <= {"tool.before_call", "tool.after_call"}, report
    assert all("ran 2 times, without a kill 1" in row.differences[0] for row in report.failures)
    with pytest.raises(AssertionError, match="kills changed the session\nplace "):
        report.check()


async def check_question_that_depends_on_the_process(folder: Path) -> None:
    report = await explore_crashes(
        f"{EXPLORED}:forgets",
        ["order-1"],
        repeatable=["look"],
        places=lambda place: place == "model.before_call#2",
        data_dir=folder,
    )
    (row,) = report.failures
    assert "the model was asked something else" in row.differences[0]


async def check_killed_engine(folder: Path) -> None:
    report = await explore_crashes(
        f"{EXPLORED}:sound",
        ["order-1"],
        repeatable=["look"],
        kill="engine",
        places=lambda place: place == "model.after_call#1",
        data_dir=folder,
    )
    report.check()
    (row,) = report.rows
    assert (row.place, row.verdict, row.repeated) == ("model.after_call#1", "same", 1)


async def test_finds_nothing_but_what_is_planted(tmp_path: Path) -> None:
    # Side by side: most of the time goes into waiting for retries.
    checks = (
        check_sound_agent,
        check_payment_that_runs_twice,
        check_question_that_depends_on_the_process,
        check_killed_engine,
    )
    await asyncio.gather(*(check(tmp_path / check.__name__) for check in checks))


async def test_what_cannot_be_explored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="top level of a module"):
        await explore_crashes(lambda: None, ["x"], data_dir=tmp_path)
    with pytest.raises(ValueError, match="must look like"):
        await explore_crashes("nothing", ["x"], data_dir=tmp_path)
    with pytest.raises(
        ValueError, match=r"none of the places that the session passes: message\.before#1"
    ):
        await explore_crashes(
            f"{EXPLORED}:pays_twice", ["order-1"], places=lambda _: False, data_dir=tmp_path
        )


async def test_a_repeatable_name_that_no_entry_has_is_refused(tmp_path: Path) -> None:
    for name, rest in (("lok", ""), ("asked", "; 'asked' is always repeatable")):
        with pytest.raises(ValueError, match="repeatable") as refused:
            await explore_crashes(
                f"{EXPLORED}:sound",
                ["order-1"],
                repeatable=["look", name],
                data_dir=tmp_path / name,
            )
        assert str(refused.value) == (
            f"repeatable must hold names of ledger entries that the session makes, got {name!r}; "
            f"it makes: look, pay{rest}"
        )


def run_of(*said: str, asked: tuple[str, ...] = ("q",), error: str = "") -> Run:
    history = [AgentMessage(MessageRole.ASSISTANT, {"t": text}, text) for text in said]
    entries = [{"name": "asked", "text": text} for text in asked]
    return read_run("session-7", PlayedSession(history, [error]), entries, asked="asked", ignore=())


@pytest.mark.parametrize(
    "run,verdict,difference",
    [
        (run_of("a", "b"), "same", ""),
        (run_of("a", "b", asked=("q", "q")), "same", ""),
        (run_of("a", "b", asked=("q", "q", "q")), "DIFFERENT", "asked 3 times"),
        (run_of("a", "b", asked=()), "DIFFERENT", "asked 0 times"),
        (run_of("a", "c"), "DIFFERENT", "message 1 is"),
        (run_of("a"), "DIFFERENT", "1 messages in the history"),
        (run_of("a", "b", error="too bad"), "DIFFERENT", "turn 1 failed: too bad"),
        (run_of("a", OUTCOME_UNKNOWN_TOOL_RESULT, asked=("other",)), "unknown outcome", ""),
        (None, "not reached", ""),
    ],
)
def test_verdicts(run: Run | None, verdict: str, difference: str) -> None:
    row = compare_runs("place", run, run_of("a", "b"), ())
    assert row.verdict == verdict
    assert difference in " ".join(row.differences)
    assert bool(difference) == bool(row.differences)


def test_what_differs_in_every_session_is_left_out() -> None:
    def run(session_id: str, made: str, at: float) -> Run:
        item = {"id": f"adk-{made}", "timestamp": at, "parts": [{"timestamp": at}]}
        entry = {"name": "pay", "key": f"{session_id}/t1/c", "pid": at}
        history = [AgentMessage(MessageRole.TOOL, item, "")]
        played = PlayedSession(history, [""])
        return read_run(session_id, played, [entry], asked="asked", ignore=["pid"])

    first = run("one", "6f1b6c5c-6f0c-5d0e-9a55-0d3f6d6b7a11", 1.0)
    assert first == run("two", "00000000-6f0c-5d0e-9a55-0d3f6d6b7a11", 2.0)
    assert first.executions == Counter([json.dumps({"key": "<session>/t1/c", "name": "pay"})])
