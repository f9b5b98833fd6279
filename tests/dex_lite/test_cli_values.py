"""What `dex-lite flow …` shows of stored values, and how it shows text that is not meant for a terminal."""

from __future__ import annotations

import asyncio
import base64
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb

from dex_lite._cli import _payloads
from dex_lite._cli._conditions import each_condition, whole_condition
from support.cli import command, spawn
from support.frame_flow import Frames, frames, refusal, text, write

# A package with a format of its own: a byte, then JSON backwards.
DECODER = """
def decode(data):
    if data[:1] != b"\\x07":
        raise ValueError("not mine")
    import json
    return json.loads(data[:0:-1])

def broken(data):
    raise RuntimeError("a fault")
"""
ENTRY_POINTS = """
[dex_lite.decoders]
broken = backwards_format:broken
gone = backwards_format:no_such_name
backwards = backwards_format:decode
"""
STEERING = "\x1b[2J\x07\u202edne\x9b"


def encoded(payload: bytes, encoding: str = "raw") -> pb.Value:
    return pb.Value(obj_value=pb.EncodedObject(encoding=encoding, payload=payload))


VALUES = {
    "object": encoded(b'{"a": [1, null]}', "json"),
    "raw_json": encoded(b"[1.5, true]"),
    "raw_text": encoded("grüezi\nzäme".encode()),
    "raw_bytes": encoded(b"\x00\xff"),
    "raw_control": encoded(b"\x1b[2J"),
    "damaged_json": encoded(b'{"a"', "json"),
    "own_format": encoded(b"\x07" + b'{"own": 7}'[::-1]),
    "deep": encoded(b"[" * 400 + b"]" * 400),
    "infinite": encoded(b"NaN", "json"),
    "steering": text(STEERING),
    "json_text": text('[{"a": 1}]'),
    "no_json_text": text("[sic]"),
}
DEEP = "[" * 400 + "]" * 400
SHOWN: dict[str, Any] = {
    "object": {"a": [1, None]},
    "raw_json": {"encoding": "raw", "json": [1.5, True]},
    "raw_text": {"encoding": "raw", "text": "grüezi\nzäme"},
    "raw_bytes": {"encoding": "raw", "base64": "AP8="},
    "raw_control": {"encoding": "raw", "base64": "G1sySg=="},
    "damaged_json": {"encoding": "json", "text": '{"a"'},
    "own_format": {"encoding": "raw", "json": {"own": 7}},
    "deep": {"encoding": "raw", "text": DEEP},
    "infinite": {"encoding": "json", "text": "NaN"},
    "steering": STEERING,
    "json_text": '[{"a": 1}]',
    "no_json_text": "[sic]",
}
LINES = {
    "object": '{"a": [1, null]}',
    "raw_json": "[1.5, true]",
    "raw_text": '"grüezi\\nzäme"',
    "raw_bytes": '{"encoding": "raw", "base64": "AP8="}',
    "own_format": '{"own": 7}',
    "json_text": '[{"a": 1}]',
    "no_json_text": '"[sic]"',
    "steering": '"\\u001b[2J\\u0007\\u202edne\\u009b"',
}


@pytest.fixture
def own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with decoders, one that works and two with faults."""
    site = tmp_path / "site"
    (site / "backwards_format-1.dist-info").mkdir(parents=True)
    (site / "backwards_format.py").write_text(DECODER)
    (site / "backwards_format-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(site)
    _payloads._decoders.cache_clear()
    yield site
    _payloads._decoders.cache_clear()


async def started(engine: Frames) -> None:
    options = pb.FlowStartOptions(attributes=[write(name, value) for name, value in VALUES.items()])
    await engine.start(step_input=VALUES["own_format"], flow_start_options=options)


async def test_every_value_that_can_be_read_is_shown(
    tmp_path: Path, own_format: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with frames(tmp_path) as engine:
        await started(engine)
        state = (await command("flow", "state", "f", "--json", address=engine.address)).json
        assert state["attributes"] == SHOWN
        assert "the decoder gone of backwards_format:no_such_name cannot be loaded" in caplog.text
        lines = (await command("flow", "state", "f", address=engine.address)).out.splitlines()
        rows = dict(line.split(maxsplit=1) for line in lines if " " in line)
        assert {name: rows[name] for name in LINES} == LINES

        history = (await command("flow", "history", "f", "--json", address=engine.address)).json
        start = history[0]["event"]["initial_start"]
        payload = base64.b64encode(VALUES["own_format"].obj_value.payload).decode()
        assert start["step_input"]["obj_value"] == {
            "encoding": "raw",
            "payload": payload,
            "json": {"own": 7},
        }
        assert history[0]["details"].endswith('with {"own": 7}')


async def test_a_flow_that_is_larger_than_the_sdk_receives_is_shown(tmp_path: Path) -> None:
    large = [write(name, text(name * 3_000_000)) for name in "ab"]
    async with frames(tmp_path) as engine:
        await engine.start(flow_start_options=pb.FlowStartOptions(attributes=large))
        call = engine.stub.GetFlowState(pb.GetFlowStateRequest(flow_id="f"))
        assert "larger than a client can receive" in (await refusal(call)).text
        state = (await command("flow", "state", "f", "--json", address=engine.address)).json
        assert [len(value) for value in state["attributes"].values()] == [3_000_000] * 2
        history = (await command("flow", "history", "f", "--json", address=engine.address)).json
        assert (history[0]["event_id"], len(history)) == (1, 1)
        assert (await command("flow", "show", "f", address=engine.address)).code == 0


async def test_lines_into_a_pipe_have_no_blanks_at_their_end(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        await started(engine)
        await engine.start(flow_id="g")
        for arguments in (["history", "f"], ["state", "f"], ["list"], ["show", "f"]):
            process = await spawn("flow", *arguments, address=engine.address)
            out, errors = await process.communicate()
            assert (process.returncode, errors) == (0, b"")
            lines = out.decode().splitlines()
            assert len(lines) > 1
            assert [line for line in lines if line != line.rstrip()] == []


async def test_nothing_that_is_stored_steers_a_terminal(tmp_path: Path) -> None:
    shown = r"\x1b[2J\x07\u202edne\x9b"
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        policy = pb.RetryPolicy(maximum_attempts=1)
        options = pb.StepOptions(skip_wait_for=True, execute_retry_policy=policy)
        await engine.start(options=options)
        await (await worker.task()).error(f"a [bold]fault[/bold] :smile: {STEERING}")
        await engine.result()
        for arguments in (["history", "f"], ["show", "f"], ["watch", "f"]):
            done = await command("flow", *arguments, address=engine.address)
            assert f"a [bold]fault[/bold] :smile: {shown}" in done.out.replace("\n", "")
        line = ("flow", "show", "f", "--address", engine.address)
        on_terminal = await asyncio.to_thread(_on_terminal, *line)
    assert "\x1b[2J" not in on_terminal and "\x07" not in on_terminal
    assert shown in on_terminal


def _on_terminal(*arguments: str) -> str:
    """What a command writes to a terminal of its own, wide enough not to break lines."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        done = subprocess.Popen(
            [sys.executable, "-m", "dex_lite", *arguments],
            stdout=theirs,
            env={**os.environ, "COLUMNS": "300", "TERM": "xterm"},
        )
        os.close(theirs)
        written = b""
        while True:
            try:
                part = terminal.read(4_096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            written += part
        assert done.wait(60) == 0
    return written.decode()


def test_a_wait_says_which_conditions_have_to_come() -> None:
    condition = pb.WaitingCondition(
        waiting_condition_type="WAITING_CONDITION_TYPE_ALL_COMPLETED",
        timer_conditions=[pb.TimerCondition(duration_seconds=90, condition_id="late")],
        channel_conditions=[
            pb.ChannelCondition(channel_name="a", condition_id="a", at_least=2, at_most=3),
            pb.ChannelCondition(channel_name="b", condition_id="b"),
        ],
        sub_flow_conditions=[pb.SubFlowCondition(sub_flow_type="Child")],
        condition_combinations=[
            pb.ConditionCombination(condition_ids=["late", "a"]),
            pb.ConditionCombination(condition_ids=["b"]),
        ],
    )
    each = ["timer late (1 min 30 s)", "channel a (2 to 3)", "channel b (1)", "subflow 0 (Child)"]
    assert each_condition(condition) == each
    assert whole_condition(condition) == " and ".join(each)
    condition.waiting_condition_type = pb.WAITING_CONDITION_TYPE_ANY_COMPLETED
    assert whole_condition(condition) == " or ".join(each)
    condition.waiting_condition_type = pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED
    assert whole_condition(condition) == (
        "timer late (1 min 30 s) and channel a (2 to 3), or channel b (1)"
    )
