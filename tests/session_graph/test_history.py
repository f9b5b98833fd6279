"""What a real session did, as Mermaid and SVG."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import grpc.aio
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from core.conftest import TURN_S, Stages
from core.scripted_runner import Answer, Call, ScriptedRunner, Tool
from core.test_waiting_calls import WaitingRunner
from dex_agents import (
    AgentSessionFlow,
    AgentTurnError,
    DeferredToolExecution,
    InterruptKind,
    InterruptRequest,
    ModelCallError,
    ToolEffect,
    ToolExecutionResult,
)
from dex_agents._history_events import read_history_events
from dex_agents.session_graph import (
    SessionHistory,
    history_mermaid,
    history_svg,
    read_session_history,
)
from dex_agents.session_graph._cli import main
from dex_agents.session_graph._flow_graph import FAILURES, TRANSITIONS
from dex_agents.session_graph._history import build_history
from dex_agents.testing import (
    WorkerProcess,
    private_engine,
    read_step_history,
    session_client,
)
from support.explored_agents import pays_twice

HOSTILE = '</text><script>alert("1")</script>&\x07\u202e'
SVG = "{http://www.w3.org/2000/svg}"


async def look(call: DeferredToolExecution) -> Any:
    return "seen"


async def break_down(call: DeferredToolExecution) -> Any:
    raise OSError("disk <full>")


TOOLS: dict[str, Tool] = {"look": look, "break": break_down, HOSTILE: look}
SCRIPT: list[Answer] = [
    [
        Call("look"),
        Call(HOSTILE, approval=True),
        Call("break", ToolEffect.NON_IDEMPOTENT_WRITE),
        Call("look", approval=True),
    ],
    ModelCallError("once"),
    [Call("look") for _ in range(8)],
    "done",
    AgentTurnError("no more"),
    [Call("look", approval=True)],
]


def facts(history: SessionHistory) -> list[tuple[str, list[list[tuple[str, str]]]]]:
    return [
        (turn.outcome, [[(box.title, box.state) for box in row] for row in turn.rows])
        for turn in history.turns
    ]


async def test_a_session_with_everything(stages: Stages, tmp_path: Path) -> None:
    async with stages.play(SCRIPT, TOOLS) as stage:
        sessions, address = stage.sessions, stage.engine.address
        await sessions.start_session("s", "hello")
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        yes, no = snapshot.pending_interrupts
        await sessions.resolve_interrupt("s", yes.interrupt_id, approved=True)
        await sessions.resolve_interrupt("s", no.interrupt_id, approved=False, message="not now")
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await sessions.send_user_message("s", "more")
        await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        await sessions.send_user_message("s", "more")
        await sessions.wait_until_settled("s", turns_done=3, timeout_s=TURN_S)

        model = [("model call", "succeeded")]
        turns = [
            (
                "answered",
                [
                    model,
                    [
                        ("look", "succeeded"),
                        (HOSTILE, "succeeded"),
                        ("break", "unknown"),
                        ("look", "failed"),
                    ],
                    model,
                    [("look", "succeeded")] * 8,
                    model,
                ],
            ),
            ("failed", [model]),
        ]
        history = await read_session_history(address, "s")
        assert facts(history)[:2] == turns
        assert facts(history)[2] == ("open", [model, [("look", "waiting")]])
        rows = history.turns[0].rows
        assert rows[1][0].facts[0] == "succeeded"
        assert re.fullmatch(r"ran \d+ ms", rows[1][0].facts[1])
        assert re.fullmatch(r"waited [\d.]+ m?s for approval", rows[1][1].facts[1])
        assert rows[1][2].facts[-1] == "OSError: disk <full>"
        assert rows[1][3].facts[-1] == "not now"
        assert re.search(r", 2 attempts within [\d.]+ m?s$", rows[2][0].facts[0])

        await sessions.cancel_turn("s")
        await sessions.close_session("s")
        history = await read_session_history(address, "s")
        assert history.status == "completed"
        cancelled = history.turns[2]
        assert (cancelled.outcome, cancelled.rows[-1][0].title) == ("cancelled", "turn cancelled")
        unanswered = cancelled.rows[1][0]
        assert (unanswered.state, unanswered.facts[0]) == ("failed", "ended with the turn")

        # Whatever led to what is in the graph of the Flow.
        step_types = {
            row.step_execution_id: row.step_type for row in await read_step_history(address, "s")
        }
        for row in await read_step_history(address, "s"):
            source = step_types.get(row.from_step_execution_id)
            if source is not None:
                assert row.step_type in (*TRANSITIONS[source], FAILURES.get(source))

        # The command draws the same.
        target = tmp_path / "history.svg"
        line = ["history", "s", "--address", address, "--out", str(target)]
        assert await asyncio.to_thread(main, line) == 0
        assert target.read_text() == history_svg(history)
        check_svg(history)
        check_mermaid(history)
        target = tmp_path / "flow.json"
        line = ["flow", history.flow_type, "--address", address, "--out", str(target)]
        assert await asyncio.to_thread(main, line) == 0
        assert history.flow_type in target.read_text()


async def test_what_counts_no_more_or_was_never_ended_shows(stages: Stages) -> None:
    started = asyncio.Event()

    async def slow(call: DeferredToolExecution) -> Any:
        started.set()
        await asyncio.Event().wait()

    script: list[Answer] = ["one", "two", "three", [Call("slow"), Call("look", approval=True)]]
    async with stages.play(script, {"look": look, "slow": slow}) as stage:
        sessions, address = stage.sessions, stage.engine.address
        await sessions.start_session("s", "hello")
        for number in (1, 2):
            await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            await sessions.send_user_message("s", "more")
        await sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        await sessions.rewind("s", "t2")
        await sessions.send_user_message("s", "again")
        await asyncio.wait_for(started.wait(), TURN_S)
        await sessions.wait_until_settled("s", turns_done=4, timeout_s=TURN_S)
        history = await read_session_history(address, "s")
        assert [turn.is_removed for turn in history.turns] == [False, True, True, False]
        assert history.turns[3].outcome == "open"
        assert history_mermaid(history).count("answered, removed by a rewind, ") == 2
        assert history_svg(history).count("answered · removed by a rewind · ") == 2
        await sessions.close_session("s")
        history = await read_session_history(address, "s")
    assert (history.status, history.turns[3].outcome) == ("completed", "closed")
    _, (running, waiting) = history.turns[3].rows
    # One may have run, the other has only waited for a person.
    for box, state in ((running, "unknown"), (waiting, "failed")):
        assert (box.state, box.facts[0]) == (state, "ended with the session")


async def test_a_session_without_turns_says_why(stages: Stages) -> None:
    async with stages.play(["one"], {}) as stage:
        sessions, address = stage.sessions, stage.engine.address
        await sessions.start_session("s", "hello")
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert (await read_session_history(address, "s")).facts == []
        await sessions.fork_session("s", "f")
        forked = await read_session_history(address, "f")
        assert (forked.turns, forked.facts) == ([], ["forked from s at t1", "waits for a message"])
        assert "forked from s at t1" in history_mermaid(forked)
        assert "forked from s at t1" in history_svg(forked)
        await sessions.close_session("f")
        closed = await read_session_history(address, "f")
        assert closed.facts[1:] == ["completed without a turn of its own"]
        # Nobody serves this Flow type.
        flow = AgentSessionFlow(ScriptedRunner([]), flow_type="Alone<")
        async with session_client(flow, server_address=address) as others:
            await others.start_session("alone", "hello")
            alone = await read_session_history(address, "alone")
    assert (alone.turns, alone.facts) == ([], ["waits for a Worker of Alone<"])
    assert history_mermaid(alone) == (
        'flowchart TD\n  session["alone<br/>waits for a Worker of Alone#60;"]\n'
    )
    texts = [text.text for text in ElementTree.fromstring(history_svg(alone)).iter(SVG + "text")]
    assert texts == ["alone: Alone<, running", *alone.facts]


async def test_every_kind_of_wait_has_its_name(stages: Stages) -> None:
    def waiting_for(kind: InterruptKind) -> Tool:
        async def tool(call: DeferredToolExecution) -> Any:
            asked = InterruptRequest(kind, payload={"auth_scheme": {"type": "apiKey"}})
            return "done" if call.answer else ToolExecutionResult(interrupt=asked)

        return tool

    tools = {
        "leave": waiting_for(InterruptKind.APPROVAL),
        "render": waiting_for(InterruptKind.LONG_RUNNING),
        "balance": waiting_for(InterruptKind.CREDENTIAL),
    }
    names = ["ask", *tools]
    script: list[Answer] = [[Call(name) for name in names], "done"]
    async with stages.play(script, tools, runner_class=WaitingRunner) as stage:
        sessions, address = stage.sessions, stage.engine.address
        await sessions.start_session("s", "hello")
        while True:
            snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
            asked = {item.tool_name: item.interrupt_id for item in snapshot.pending_interrupts}
            if len(asked) == len(names):
                break
        row = (await read_session_history(address, "s")).turns[0].rows[1]
        assert [(box.title, box.state, box.facts[0]) for box in row] == [
            ("ask", "waiting", "waits for an answer"),
            ("leave", "waiting", "waits for approval"),
            ("render", "waiting", "waits for a result"),
            ("balance", "waiting", "waits for a credential"),
        ]
        await sessions.answer_question("s", asked["ask"], "blue")
        await sessions.resolve_interrupt("s", asked["leave"], approved=True)
        await sessions.answer_question("s", asked["render"], {"url": "done"})
        await sessions.provide_credential("s", asked["balance"], "my-key")
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        row = (await read_session_history(address, "s")).turns[0].rows[1]
    for box, what, runs in zip(
        row, ("an answer", "approval", "a result", "a credential"), (0, 2, 1, 2), strict=True
    ):
        assert box.state == "succeeded"
        assert [fact for fact in box.facts if re.fullmatch(rf"waited [\d.]+ m?s for {what}", fact)]
        assert sum(fact.startswith("ran ") for fact in box.facts) == runs


def check_svg(history: SessionHistory) -> None:
    root = ElementTree.fromstring(history_svg(history))
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "style", "rect", "text", "g", "path", "circle")
    }
    texts = [element.text or "" for element in root.iter(SVG + "text")]
    shown = HOSTILE.replace("\x07", "·").replace("\u202e", "·")
    assert texts.count(shown) == 1
    assert sum(text.startswith("t") and "·" in text and "s" in text for text in texts) >= 3
    # Nothing lies outside of the picture, and no two boxes share a place.
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in root.iter(SVG + "rect")
        if box.attrib.get("class") == "box"
    ]
    assert len(boxes) == sum(len(row) for turn in history.turns for row in turn.rows)
    for number, (x, y, wide, high) in enumerate(boxes):
        assert x >= 0 and x + wide <= width and y >= 0 and y + high <= height
        for other_x, other_y, other_wide, other_high in boxes[number + 1 :]:
            assert (
                x + wide <= other_x
                or other_x + other_wide <= x
                or y + high <= other_y
                or other_y + other_high <= y
            )


def check_mermaid(history: SessionHistory) -> None:
    text = history_mermaid(history)
    labels = re.findall(r'^ +n\d+\["([^"]*)"\]:::[a-z]+$', text, re.M)
    assert len(labels) == sum(len(row) for turn in history.turns for row in turn.rows)
    assert "script#62;" in text
    assert not any(set(label.replace("<br/>", "")) & set('<>"`[]') for label in labels)


async def test_the_time_without_a_worker_is_shown(tmp_path: Path) -> None:
    place = "support.explored_agents:pays_twice"
    async with private_engine(tmp_path / "engine.db") as engine:
        start: Any = {"server_address": engine.address, "data_dir": tmp_path}
        worker = await WorkerProcess.start(place, failpoints=["model.before_call"], **start)
        flow = pays_twice(tmp_path)
        async with session_client(flow, server_address=engine.address) as sessions:
            await sessions.start_session("s", "order-1")
            await worker.wait()
            worker = await WorkerProcess.start(place, **start)
            await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await worker.stop()
        events = [event async for event in read_history_events(engine.address, "s")]

    def model_calls() -> tuple[str, str]:
        (turn,) = build_history("s", events).turns
        (first,), _, (last,) = turn.rows
        return first.facts[0], last.facts[0]

    killed, again = model_calls()
    assert re.fullmatch(r"[\d.]+ m?s, 2 attempts within [\d.]+ m?s", killed)
    assert "began" not in again
    # Had the second call found no Worker for a minute:
    (late,) = [
        event.step_execute_completed.context
        for event in events
        if event.step_execute_completed.context.step_execution_id == "RunModel-2"
    ]
    late.started_time.seconds += 60
    assert re.search(r", began after 1 min \d s$", model_calls()[1])


async def test_what_cannot_be_read_is_said(
    stages: Stages, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = stages.engine.address

    async def refusal(*line: str) -> str:
        assert await asyncio.to_thread(main, line) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        return printed.err.removeprefix("dex-agents-session-graph: ")

    told = await refusal("history", "none", "--address", address)
    assert told.endswith("; is --address the engine of that session?\n")
    monkeypatch.setenv("DEX_SERVER_ADDRESS", address)
    assert told == await refusal("history", "none")

    request = pb.StartFlowRequest(
        flow_id="o-1", request_id="r", flow_type="Order", start_step_type="Pack"
    )
    request.step_input.string_value = "tent"
    async with grpc.aio.insecure_channel(address) as channel:
        await dex_pb2_grpc.FlowServiceStub(channel).StartFlow(request)
    told = await refusal("flow", "It's", "--address", address)
    assert told.startswith(f'the engine at {address} has no session of Flow type "It\'s"; ')
    assert "'Order'" in told
    no_session = "Flow 'o-1' is no agent session, its Flow type is 'Order'; "
    for line in (["flow", "Order", "--address", address], ["history", "o-1"]):
        assert (await refusal(*line)).startswith(no_session)
