"""What tools and runners do wrong is recorded, runs no more often, and the session goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Any

import pytest
from dex import Context, RPCResult, retry_after, rpc

from core.conftest import TURN_S, Stage, Stages
from core.open_flow import OF_A_TURN
from core.scripted_runner import Answer, Call
from dex_agents import (
    AgentMessage,
    AgentSessionFlow,
    AgentSessionOptions,
    ContinueTurn,
    DeferredToolExecution,
    MessageRole,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    TokenUsage,
    ToolCallRecord,
    ToolCallsRequested,
    ToolCallStatus,
    ToolEffect,
    ToolNotStartedError,
    TurnCompleted,
)
from dex_agents._session import notes, outcomes, resources
from dex_agents._session.encoding import decode, encode
from dex_agents.testing import PrivateEngine
from dex_lite import EngineOptions, Limits, open_engine

QUICK = AgentSessionOptions(model_attempts=2)
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
PUT = ToolEffect.IDEMPOTENT_WRITE


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def one_turn(stage: Stage) -> ToolCallRecord:
    await stage.sessions.start_session("s", "hello")
    await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    (record,) = stage.runner.records(1)
    return record


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RuntimeError("file \udcff"), "RuntimeError: file \\udcff"),
        (lambda: retry_after(0.5, RuntimeError("busy")), "RuntimeError: busy"),  # type: ignore[arg-type]
        (Unprintable, "Unprintable: (its text cannot be shown)"),
        (lambda: TypeError("x" * 5_000), "TypeError: xxx"),
        (lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ValueError: a"),
        (lambda: SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError, ""),
    ],
)
async def test_a_failed_write_runs_once_whatever_it_raises(
    stages: Stages, make: Callable[[], BaseException], text: str
) -> None:
    async def write(call: DeferredToolExecution) -> Any:
        raise make()

    async with stages.play([[Call("write", WRITE)], "done"], {"write": write}) as stage:
        record = await one_turn(stage)
        assert record.status is ToolCallStatus.OUTCOME_UNKNOWN
        assert text in record.error
        assert len(record.error.encode()) <= 1_000
        assert stage.runner.count("write") == 1


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (float("nan"), {"unencodable": True, "preview": "nan"}),
        (b"raw", {"unencodable": True, "preview": "b'raw'"}),
        ("lone \udcff", "lone \udcff"),
        ({"b": 1, "a": None}, {"b": 1, "a": None}),
    ],
)
async def test_a_result_that_is_no_json_still_succeeded(
    stages: Stages, result: Any, expected: Any
) -> None:
    async def write(call: DeferredToolExecution) -> Any:
        return result

    async with stages.play([[Call("write", WRITE)], "done"], {"write": write}) as stage:
        record = await one_turn(stage)
        assert record.status is ToolCallStatus.SUCCEEDED
        assert record.output == expected
        assert stage.runner.count("write") == 1


async def test_many_large_results_are_cut_and_fit_one_model_call(stages: Stages) -> None:
    async def read(call: DeferredToolExecution) -> Any:
        return os.urandom(400_000).hex()

    script: list[Answer] = [[Call("read")] * 12, "done"]
    async with stages.play(script, {"read": read}) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.error == ""
        for record in stage.runner.records(1):
            assert record.status is ToolCallStatus.SUCCEEDED
            assert record.output["truncated"] is True
            assert record.output["original_bytes"] == 800_000
            assert len(record.output["preview"]) > 10_000
        assert stage.runner.count("read") == 12


async def test_a_history_larger_than_one_message_goes_on(stages: Stages) -> None:
    script: list[Answer] = [*(os.urandom(700_000).hex() for _ in range(4)), "done"]
    async with stages.play(script) as stage:
        await stage.sessions.start_session("s", "m1")
        for turn in range(2, 6):
            await stage.sessions.wait_for_turn("s", turn - 1, timeout_s=TURN_S)
            await stage.sessions.send_user_message("s", f"m{turn}")
        snapshot = await stage.sessions.wait_for_turn("s", 5, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.error == ""
        said = [message.text for message in stage.runner.requests[-1].history]
        assert [text for text in said if len(text) > 1_000_000] == script[:4]


async def test_a_history_that_fits_no_task_fails_turns_and_names_the_limit(tmp_path: Path) -> None:
    script: list[Answer] = [os.urandom(700_000).hex() for _ in range(3)]
    no_blobs = EngineOptions(limits=Limits(task_blobs=1))
    async with (
        open_engine(tmp_path / "engine.db", options=no_blobs) as engine,
        Stages(PrivateEngine(engine.address, None, None), tmp_path).play(script) as stage,
    ):
        await stage.sessions.start_session("s", "m1")
        for turn in range(2, 6):
            await stage.sessions.wait_for_turn("s", turn - 1, timeout_s=TURN_S)
            await stage.sessions.send_user_message("s", f"m{turn}")
        snapshot = await stage.sessions.wait_for_turn("s", 5, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert "history no longer fits" in snapshot.last_turn.error
        assert "compact" in snapshot.last_turn.error
        assert snapshot.status == "idle"
        assert len(stage.runner.requests) == 3
        # Its pages no longer fit one task together, and can be read all the same.
        texts: list[str] = []
        before: int | None = None
        while not texts or before is not None:
            page = await stage.sessions.list_messages("s", before_turn=before)
            texts = [m.text for m in page.messages if m.role == MessageRole.USER] + texts
            before = page.next_before_turn
        assert [text for text in texts if text.startswith("m")] == ["m1", "m2", "m3", "m4", "m5"]


_NO_TEXT: Any = 7


def _message(item: Any) -> AgentMessage:
    return AgentMessage(MessageRole.ASSISTANT, item, "x")


def _call(**changes: Any) -> RequestedToolCall:
    given = {
        "call_id": "c",
        "tool_name": "t",
        "arguments": {},
        "effect": ToolEffect.READ,
        "requires_approval": False,
    }
    return RequestedToolCall(**{**given, **changes})


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (lambda: TurnCompleted([_message(float("nan"))]), "cannot be stored"),
        (lambda: TurnCompleted([_message("a")], _NO_TEXT), "final_text must be a str, got int"),
        (lambda: TurnCompleted([]), "has no messages"),
        (lambda: TurnCompleted([_NO_TEXT]), "messages must hold AgentMessage objects, got int"),
        (lambda: TurnCompleted([_message(os.urandom(3_000_000).hex())]), "at most 3500000"),
        (lambda: ToolCallsRequested([], None), "0 tool calls were requested"),
        (lambda: ToolCallsRequested([_call(timeout_s=0)], None), "timeout_s of a call of t is 0"),
        (lambda: _call(effect="read"), "RequestedToolCall.effect must be a ToolEffect, got str"),
        (lambda: ToolCallsRequested([_call(arguments={"x": _call})], None), "call of t cannot be"),
        (lambda: ToolCallsRequested([_call()], {1, 2}), "run_state cannot be stored"),
        (lambda: ToolCallsRequested([_call()], 1, b""), "tool_context cannot be stored"),
        (lambda: ContinueTurn(object()), "run_state cannot be stored"),
        (lambda: "text", "it is no outcome but str"),
    ],
)
async def test_an_invalid_outcome_fails_the_turn_at_once(
    stages: Stages, outcome: Callable[[], Any], reason: str
) -> None:
    async with stages.play(["unused", "fine"]) as stage:
        run_model = stage.runner.run_model

        async def first_invalid(request: RunModelRequest) -> RunModelOutcome:
            answer = await run_model(request)
            result: RunModelOutcome = outcome() if len(stage.runner.requests) == 1 else answer
            return result

        stage.runner.run_model = first_invalid  # type: ignore[method-assign]
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert reason in snapshot.last_turn.error
        await stage.sessions.send_user_message("s", "again")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "fine"
        assert len(stage.runner.requests) == 2


@pytest.mark.parametrize("error", [RuntimeError("bad \udcff"), Unprintable(), SystemExit(1)])
async def test_a_model_failure_of_any_kind_ends_only_its_turn(
    stages: Stages, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with stages.play([error, error, "fine"], options=QUICK) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.error.startswith(type(error).__name__)
        assert f"turn t1 of session s failed: {snapshot.last_turn.error}" in caplog.messages
        await stage.sessions.send_user_message("s", "again")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "fine"


@pytest.mark.parametrize("place", ["tool", "model"])
async def test_a_long_call_gives_signs_of_life_by_itself(stages: Stages, place: str) -> None:
    async def rest(call: object) -> Any:
        # The point is that time passes: three times the limit for silence.
        await asyncio.sleep(9)

    options = AgentSessionOptions(heartbeat_timeout=timedelta(seconds=3))
    script: list[Answer] = [[Call("rest", WRITE)], "done"] if place == "tool" else ["done"]
    async with stages.play(script, {"rest": rest}, options=options) as stage:
        if place == "model":
            stage.runner.before_answer = rest
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "done"
        assert {request.attempt for request in stage.runner.requests} == {1}
        if place == "tool":
            assert stage.runner.records(1)[0].status is ToolCallStatus.SUCCEEDED


async def test_a_tool_that_takes_too_long_is_stopped_and_unknown(stages: Stages) -> None:
    stopped = asyncio.Event()

    async def hang(call: DeferredToolExecution) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    options = AgentSessionOptions(tool_call_timeout=timedelta(seconds=1))
    script: list[Answer] = [[Call("hang", WRITE)], "done"]
    async with stages.play(script, {"hang": hang}, options=options) as stage:
        record = await one_turn(stage)
        assert record.status is ToolCallStatus.OUTCOME_UNKNOWN
        assert stage.runner.count("hang") == 1
        async with asyncio.timeout(TURN_S):
            await stopped.wait()


_MAPS = (*OF_A_TURN, resources.messages, resources.last_turn, resources.outcomes)


class InspectedFlow(AgentSessionFlow):
    """Tells what is stored."""

    @rpc(name="inspect", load_attribute_maps=_MAPS)
    def inspect(self, context: Context) -> RPCResult[bytes]:
        """Keys of every map, and the size of the header."""
        keys = {m.name: sorted(m.get_all_instance_keys(context)) for m in _MAPS}
        return RPCResult(encode({**keys, "header": len(resources.header.get(context))}))


async def test_finished_turns_leave_nothing_but_their_pages(
    stages: Stages,
) -> None:
    async def look(call: DeferredToolExecution) -> Any:
        return 1

    calls = [Call("look"), Call("look", approval=True)]
    script: list[Answer] = [calls, "long " * 500, [Call("look")], RuntimeError("no"), "again"]
    options = AgentSessionOptions(model_attempts=1)
    play = stages.play(script, {"look": look}, options=options, flow_class=InspectedFlow)
    async with play as stage:
        assert isinstance(stage.flow, InspectedFlow)
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        (pending,) = snapshot.pending_interrupts
        await stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        for turn in (1, 2):
            await stage.sessions.wait_for_turn("s", turn, timeout_s=TURN_S)
            await stage.sessions.send_user_message("s", "more " * 500)
        snapshot = await stage.sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        # A turn that failed in its last model call still counts what the calls before it took.
        assert snapshot.usage == TokenUsage(12, 8, 4)
        stored = decode(await stage.client.invoke_rpc(stage.flow.inspect, "s"))
        assert stored.pop("header") < 500
        assert {name: keys for name, keys in stored.items() if keys} == {
            "messages": ["00000001", "00000002", "00000003"],
            "last_turn": ["newest"],
            "outcomes": ["00000001", "00000002", "00000003"],
        }


@pytest.mark.parametrize(
    ("effect", "status"),
    [(ToolEffect.READ, ToolCallStatus.FAILED), (PUT, ToolCallStatus.OUTCOME_UNKNOWN)],
)
async def test_a_call_that_may_have_run_is_not_called_unrun_by_a_later_attempt(
    stages: Stages, effect: ToolEffect, status: ToolCallStatus
) -> None:
    async def put(call: DeferredToolExecution) -> Any:
        if call.attempt == 1:
            raise RuntimeError("the answer got lost")
        raise ToolNotStartedError("the server is away")

    async with stages.play([[Call("put", effect)], "done"], {"put": put}) as stage:
        record = await one_turn(stage)
    assert (record.status, record.not_run) == (status, False)
    assert record.error == "ToolNotStartedError: the server is away"
    assert stage.runner.count("put") == 3


async def test_what_could_not_start_at_first_may_do_so_when_repeated(stages: Stages) -> None:
    async def put(call: DeferredToolExecution) -> Any:
        if call.attempt == 1:
            raise RuntimeError("the answer got lost")
        if call.attempt == 2:
            raise ToolNotStartedError("the server is away")
        return "put"

    async with stages.play([[Call("put", PUT)], "done"], {"put": put}) as stage:
        record = await one_turn(stage)
    assert (record.status, record.output) == (ToolCallStatus.SUCCEEDED, "put")


async def test_a_turn_of_too_many_calls_fails_and_the_session_goes_on(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(1)

    async def look(call: DeferredToolExecution) -> str:
        return "".join(random.choices(ascii_letters, k=300))  # nothing to compress

    async def write(call: DeferredToolExecution) -> Any:
        raise OSError("cut off")

    monkeypatch.setattr(outcomes, "MAX_COMMIT_BYTES", 40_000)
    monkeypatch.setattr(notes, "_ALL_CALLS_BYTES", 8_000)
    script: list[Answer] = [
        [Call("write", WRITE), *[Call("look")] * 39],
        *[[Call("look")] * 40] * 9,
    ]
    async with stages.play([*script, "never"], {"look": look, "write": write}) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert "bytes, one commit carries at most 40000" in snapshot.last_turn.error
        asked = len(stage.runner.requests)
        assert 2 < asked < len(script)
        note = (await stage.sessions.list_messages("s")).messages[-1].text
        assert "write (c0-0): outcome_unknown" in note
        called = 40 * (asked - 1)
        named = note.count("- look (c")
        assert 0 < named < called
        assert f"{called - 1 - named} of them are too many to be named: look: " in note
        stage.runner.script[asked] = "on"
        await stage.sessions.send_user_message("s", "again")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "on"
