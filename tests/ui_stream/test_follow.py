"""Streams of real sessions: cut, resumed, across crashes, and what they do not tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import ResumeEntry

from core.conftest import Stage, Stages
from core.scripted_runner import Answer, Call, Tool
from dex_agents import (
    AgentSessionFlow,
    AgentTurnError,
    DeferredToolExecution,
    InvalidInputError,
    RunModelRequest,
    SessionNotFoundError,
)
from dex_agents.testing import WorkerProcess, private_engine, session_client
from dex_agents.ui_stream import (
    AiSdkEncoder,
    Position,
    UiEncoder,
    _awaited,
    answer_approvals,
    open_ui_stream,
)
from dex_agents.ui_stream.ag_ui import AgUiEncoder, answer_resume
from support.ai_sdk import read_streams
from ui_stream.streaming_agent import build_flow

TURN_S = 40.0
SCRIPT: list[Answer] = [[Call("look"), Call("pay", approval=True)], "It is paid."]


async def look(call: DeferredToolExecution) -> Any:
    return {"seen": 1}


async def pay(call: DeferredToolExecution) -> Any:
    return "paid"


TOOLS: dict[str, Tool] = {"look": look, "pay": pay}


async def collect(stream: AsyncIterator[str]) -> list[str]:
    async with asyncio.timeout(TURN_S):
        return [frame async for frame in stream]


def event_ids(frames: list[str]) -> list[str]:
    return [line[4:] for frame in frames for line in frame.splitlines() if line[:4] == "id: "]


def payloads(frames: list[str]) -> list[Any]:
    lines = [line for frame in frames for line in frame.splitlines() if line[:6] == "data: "]
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


async def whole_turn(stage: Stage, session_id: str = "s") -> list[str]:
    """A turn that is approved meanwhile, as one stream."""
    await stage.sessions.start_session(session_id, "pay it")
    await stage.sessions.wait_until_settled(session_id, turns_done=1, timeout_s=TURN_S)
    encoder = AiSdkEncoder(session_id, ends_when_paused=False)
    stream = await open_ui_stream(stage.sessions, session_id, encoder)
    frames = []
    async with asyncio.timeout(TURN_S):
        async for frame in stream:
            frames.append(frame)
            if '"state":"pending"' in frame:
                (asked,) = [p for p in payloads([frame]) if p["type"] == "data-interrupt"]
                await stage.sessions.resolve_interrupt(
                    session_id,
                    asked["data"]["interruptId"],
                    approved=True,
                    arguments_digest=asked["data"]["argumentsDigest"],
                )
    return frames


async def test_a_chat_in_two_responses(stages: Stages) -> None:
    async with stages.play(SCRIPT, TOOLS) as stage:
        await stage.sessions.start_session("s", "pay it")
        first = await collect(await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s")))
        (paused,) = read_streams([(7, ["".join(first)])])
        states = {part["toolName"]: part["state"] for part in paused.parts("dynamic-tool")}
        assert states == {"look": "output-available", "pay": "approval-requested"}
        # What useChat does when somebody approves.
        (call,) = [p for p in paused.parts("dynamic-tool") if p["toolName"] == "pay"]
        call["state"] = "approval-responded"
        call["approval"]["approved"] = True
        for _ in range(2):  # a request may come twice
            answered = await answer_approvals(stage.sessions, "s", [paused.message])
            assert answered == [call["approval"]["id"]]
        stream = await open_ui_stream(
            stage.sessions, "s", AiSdkEncoder("s"), turn_id="t1", after_interrupts=answered
        )
        second = await collect(stream)
        (done,) = read_streams([(7, ["".join(first), "".join(second)])])
        states = {part["toolName"]: part["state"] for part in done.parts("dynamic-tool")}
        assert states == {"look": "output-available", "pay": "output-available"}
        assert [part["text"] for part in done.parts("text")] == ["It is paid."]
        assert done.message["metadata"]["usage"]["inputTokens"] == 6
        # What is told as finished is stored.
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.turns_done, stage.runner.count("pay")) == (1, 1)


async def test_a_run_and_its_resume_in_ag_ui(stages: Stages) -> None:
    async with stages.play(SCRIPT, TOOLS) as stage:
        await stage.sessions.start_session("s", "pay it")
        encoder = AgUiEncoder("s", run_id="r1")
        first = payloads(await collect(await open_ui_stream(stage.sessions, "s", encoder)))
        assert (first[0]["type"], first[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
        (asked,) = first[-1]["outcome"]["interrupts"]
        entry = ResumeEntry(
            interrupt_id=asked["id"],
            status="resolved",
            payload={"approved": False, "message": "too much"},
        )
        answered = await answer_resume(stage.sessions, "s", [entry, entry])
        stream = await open_ui_stream(
            stage.sessions, "s", AgUiEncoder("s", run_id="r2"), after_interrupts=answered
        )
        second = payloads(await collect(stream))
        assert [event["runId"] for event in second if "runId" in event] == ["r2", "r2"]
        assert second[-1]["outcome"] == {"type": "success"}
        (result,) = [event for event in second if event["type"] == "TOOL_CALL_RESULT"]
        assert result["metadata"] == {"status": "rejected"}
        assert stage.runner.records(1)[1].rejection_message == "too much"


async def test_a_stream_goes_on_behind_any_event(stages: Stages) -> None:
    async with stages.play(SCRIPT, TOOLS) as stage:
        frames = await whole_turn(stage)
        assert frames[-1] == "data: [DONE]\n\n"
        ids = event_ids(frames)
        assert len(set(ids)) == len(ids) == len(frames) - 1
        for number, event_id in enumerate(ids[:-1], 1):
            encoder = AiSdkEncoder("s", ends_when_paused=False)
            stream = await open_ui_stream(stage.sessions, "s", encoder, last_event_id=event_id)
            assert await collect(stream) == frames[number:]


async def test_the_id_of_another_turn_only_says_where_to_look(stages: Stages) -> None:
    async with stages.play(["one", "two"]) as stage:
        await stage.sessions.start_session("s", "hello")
        first = await collect(await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s")))
        message_id = await stage.sessions.send_user_message("s", "again")
        stream = await open_ui_stream(
            stage.sessions,
            "s",
            AiSdkEncoder("s"),
            message_id=message_id,
            last_event_id=event_ids(first)[-1],
        )
        second = payloads(await collect(stream))
        assert second[0]["messageId"] == "s:t2"
        assert [part["delta"] for part in second if "delta" in part] == ["two"]
        newest = await collect(await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s")))
        assert payloads(newest) == second


async def test_a_message_that_waits_costs_one_call_of_the_session_a_look(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, waits = 0, asyncio.Semaphore(0)
    is_asked, gate = asyncio.Event(), asyncio.Event()

    async def hold(request: RunModelRequest) -> None:
        is_asked.set()
        await gate.wait()

    monkeypatch.setattr(_awaited, "_LOOK_IN_TURN_S", 0.05)
    async with stages.play(["one", "two"]) as stage:
        invoke_rpc, wait_for = stage.client.invoke_rpc, stage.client.wait_for_attribute_match

        async def invoke(*given: Any, **more: Any) -> Any:
            nonlocal looks
            looks += 1
            return await invoke_rpc(*given, **more)

        async def wait(*given: Any, **more: Any) -> Any:
            waits.release()
            return await wait_for(*given, **more)

        stage.runner.before_answer = hold
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.send_user_message("s", "again", message_id="m")
        async with asyncio.timeout(TURN_S):
            await is_asked.wait()
            monkeypatch.setattr(stage.client, "invoke_rpc", invoke)
            monkeypatch.setattr(stage.client, "wait_for_attribute_match", wait)
            finding = asyncio.create_task(_awaited.message_turn(stage.sessions, "s", "m"))
            for _ in range(4):
                await waits.acquire()
            assert looks == 4
            gate.set()
            assert await finding == "t2"


async def test_silence_is_filled_and_leaving_stops_all_reading(stages: Stages) -> None:
    async with stages.play(SCRIPT, TOOLS) as stage:
        await stage.sessions.start_session("s", "pay it")
        encoder = AiSdkEncoder("s", ends_when_paused=False)
        stream = await open_ui_stream(stage.sessions, "s", encoder, keep_alive_s=0.05)
        async with asyncio.timeout(TURN_S):
            async for frame in stream:
                if frame == ": waiting\n\n":
                    break
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert names.count("ui stream of s") == 2
        await stream.aclose()
        assert "ui stream of s" not in [task.get_name() for task in asyncio.all_tasks()]


async def test_nothing_of_the_worker_is_told(stages: Stages) -> None:
    async def crash(call: DeferredToolExecution) -> Any:
        raise OSError("/srv/app/secret.db is not there")

    script: list[Answer] = [[Call("crash")], AgentTurnError("the model at 10.0.0.7 said no")]
    async with stages.play(script, {"crash": crash}) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        encoders: list[UiEncoder[Any]] = [AiSdkEncoder("s"), AgUiEncoder("s")]
        for encoder in encoders:
            text = "".join(await collect(await open_ui_stream(stage.sessions, "s", encoder)))
            assert "The turn failed." in text
            assert "The tool call failed." in text
            for secret in ("secret", "10.0.0.7", "Traceback", "OSError", "RunModel", "CallTool"):
                assert secret not in text


async def test_a_session_that_is_closed_ends_its_stream(stages: Stages) -> None:
    async with stages.play(SCRIPT, TOOLS) as stage:
        await stage.sessions.start_session("s", "pay it")
        stream = await open_ui_stream(
            stage.sessions, "s", AiSdkEncoder("s", ends_when_paused=False)
        )
        kinds = []
        async with asyncio.timeout(TURN_S):
            async for frame in stream:
                kinds += [part["type"] for part in payloads([frame])]
                if kinds[-1:] == ["data-interrupt"] and kinds.count("data-interrupt") == 1:
                    await stage.sessions.close_session("s")
        assert kinds[-1] == "abort"


async def test_a_turn_that_never_came_ends_with_its_session(stages: Stages) -> None:
    async with stages.play(["one"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        stream = await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s"), turn_id="t2")
        await stage.sessions.close_session("s")
        assert [part["type"] for part in payloads(await collect(stream))][-1] == "abort"


async def test_what_cannot_be_streamed_is_refused_before_anything_is_sent(stages: Stages) -> None:
    async with stages.play(["one"]) as stage:
        with pytest.raises(SessionNotFoundError):
            await open_ui_stream(stage.sessions, "none", AiSdkEncoder("none"))
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        for bad in (
            "7",
            "t1/x/",
            "t1/1",
            "t/1/",
            "t1/-1/",
            "t1/²/",
            "t1/1/a/b",
            "t1/1/a/b/c",
            "x" * 5_000,
        ):
            with pytest.raises(InvalidInputError, match="last event id"):
                await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s"), last_event_id=bad)
        with pytest.raises(InvalidInputError, match="turn_id must be like"):
            await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s"), turn_id="../t1")
        # A token of nobody is found out by the engine, when the stream has begun.
        forged = str(Position("t1", 1, "bogus"))
        stream = await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s"), last_event_id=forged)
        assert [part["type"] for part in payloads(await collect(stream))] == ["error"]


class SmallStreamFlow(AgentSessionFlow):
    """Keeps as few events as may be."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, event_stream_capacity_bytes=131_072, **options)


async def test_a_turn_whose_first_events_are_gone(stages: Stages) -> None:
    async def talk(request: RunModelRequest) -> None:
        if request.records:
            for number in range(20):
                request.events.emit("text_delta", text=f"<{number}>" + "x" * 10_000)

    async with stages.play(SCRIPT, TOOLS, flow_class=SmallStreamFlow) as stage:
        stage.runner.before_answer = talk
        await stage.sessions.start_session("s", "pay it")
        first = await collect(await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s")))
        (asked,) = [p for p in payloads(first) if p["type"] == "data-interrupt"]
        interrupt_id = asked["data"]["interruptId"]
        await stage.sessions.resolve_interrupt("s", interrupt_id, approved=True)
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        # Who has seen a part of it cannot be told the rest, and hears that.
        for place in (
            {"last_event_id": event_ids(first)[-1]},
            {"after_interrupts": [interrupt_id]},
        ):
            stream = await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s"), **place)
            assert [part["type"] for part in payloads(await collect(stream))] == ["error"]
        # Who comes anew sees what is left, and the end.
        left = await collect(await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s")))
        rest = payloads(left)
        text = "".join(part.get("delta", "") for part in rest)
        assert "<19>" in text and "<0>" not in text
        assert [rest[0]["type"], rest[-1]["type"]] == ["start", "finish"]
        # What it has seen can still be counted, so it may come back.
        again = await open_ui_stream(
            stage.sessions, "s", AiSdkEncoder("s"), last_event_id=event_ids(left)[4]
        )
        assert await collect(again) == left[5:]


async def test_parts_are_counted_from_the_same_event_or_not_at_all(stages: Stages) -> None:
    """As when the events of a summary are gone, and those of the first model call are not."""
    async with stages.play(["one"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        whole = await collect(await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s")))
        seen = Position.parse(event_ids(whole)[1])
        assert seen.first
        places = {
            str(seen): whole[2:],
            str(replace(seen, first="")): whole[2:],  # an older release named none
            str(replace(seen, first="0badf00d")): None,
        }
        for place, expected in places.items():
            stream = await open_ui_stream(
                stage.sessions, "s", AiSdkEncoder("s"), last_event_id=place
            )
            frames = await collect(stream)
            if expected is None:
                assert [part["type"] for part in payloads(frames)] == ["error"]
            else:
                assert payloads(frames) == payloads(expected)


async def test_a_turn_of_which_nothing_is_kept_is_told(stages: Stages) -> None:
    """How it ended is neither in the events nor in a snapshot, so no end is made up."""

    async def talk(request: RunModelRequest) -> None:
        for number in range(20):
            request.events.emit("text_delta", text=f"<{number}>" + "x" * 10_000)

    script: list[Answer] = [AgentTurnError("no"), "two"]
    async with stages.play(script, flow_class=SmallStreamFlow) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        stage.runner.before_answer = talk
        await stage.sessions.send_user_message("s", "again")
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        stream = await open_ui_stream(stage.sessions, "s", AiSdkEncoder("s"), turn_id="t1")
        assert [part["type"] for part in payloads(await collect(stream))] == ["error"]


async def test_a_pause_that_never_was_is_told(stages: Stages) -> None:
    async with stages.play(["one"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        stream = await open_ui_stream(
            stage.sessions, "s", AiSdkEncoder("s"), after_interrupts=["t1.9.0"]
        )
        assert [part["type"] for part in payloads(await collect(stream))] == ["error"]
        for asked, turn_id, why in (
            (["nobody asked"], "", "never asked interrupt 'nobody asked'"),
            (["t2.1.0"], "", "never asked interrupt 't2.1.0'"),
            (["t1.1.0"], "t2", "were asked in turn t1, not in t2"),
        ):
            with pytest.raises(InvalidInputError, match=why):
                await open_ui_stream(
                    stage.sessions,
                    "s",
                    AiSdkEncoder("s"),
                    turn_id=turn_id,
                    after_interrupts=asked,
                )


@pytest.mark.parametrize("engine_dies_too", [False, True])
async def test_a_worker_that_dies_while_it_streams(engine_dies_too: bool, tmp_path: Path) -> None:
    flow = build_flow(tmp_path)
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        session_client(flow, server_address=engine.address) as sessions,
    ):

        async def start_worker() -> WorkerProcess:
            return await WorkerProcess.start(
                "ui_stream.streaming_agent:build_flow",
                server_address=engine.address,
                data_dir=tmp_path,
            )

        worker = await start_worker()
        await sessions.start_session("s", "hello")
        frames = []
        async with asyncio.timeout(60):
            async for frame in await open_ui_stream(sessions, "s", AiSdkEncoder("s")):
                frames.append(frame)
                if "attempt 1." in frame:
                    worker.kill()
                    await worker.wait()
                    if engine_dies_too:
                        # The line breaks too; the stream finds the engine again.
                        await engine.kill()
                        await engine.restart()
                    worker = await start_worker()
        old = await open_ui_stream(sessions, "s", AiSdkEncoder("s", version=5))
        readings = read_streams([(7, ["".join(frames)]), (5, ["".join(await collect(old))])])
        now, before = readings
        assert [part["text"] for part in now.parts("text")] == ["This is attempt 2."]
        if not engine_dies_too:  # an engine may lose the newest events, which are only hints
            assert before.parts("data-replaced")[0]["data"] == {"step": 0}
        assert now.errors == before.errors == []
        assert await worker.stop() == 0
