"""Spans: one trace for a turn, in whatever processes it ran; no content unless asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from core.conftest import TURN_S, Stages
from core.scripted_runner import Call
from core.test_fork import Summing, summed_up
from dex_agents import (
    AgentSessionOptions,
    CompactionRequest,
    DeferredToolExecution,
    HistorySummary,
    ModelCallError,
    ToolEffect,
    ToolExecutionError,
    TracingOptions,
)
from dex_agents._session import steps_turn
from dex_agents.testing import WorkerProcess, private_engine, session_client
from support.explored_agents import SPANS_FILE, traced

SECRET = "a secret of the user"


class Spans:
    """An exporter that keeps what it gets."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def options(self, *, record_content: bool = False) -> AgentSessionOptions:
        tracing = TracingOptions(self.provider, record_content, "test.provider")
        return AgentSessionOptions(tracing=tracing)

    @property
    def all(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    def named(self, start: str) -> list[Any]:
        return [span for span in self.all if span.name.startswith(start)]


async def lookup(call: DeferredToolExecution) -> str:
    return f"found {SECRET}"


async def test_one_turn_is_one_trace(stages: Stages) -> None:
    spans = Spans()

    async def lookup(call: DeferredToolExecution) -> str:
        assert get_current_span().get_span_context().is_valid
        return f"found {SECRET}"

    script: list[Any] = [[Call("lookup", arguments={"q": SECRET})], "the answer", "second answer"]
    async with stages.play(script, {"lookup": lookup}, options=spans.options()) as stage:
        await stage.sessions.start_session("s", SECRET)
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        first = spans.all
        await stage.sessions.send_user_message("s", "more")
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
    assert sorted(span.name for span in first) == [
        "chat",
        "chat",
        "execute_tool lookup",
        f"invoke_agent {stage.flow.get_flow_type()}",
    ]
    (turn,) = [span for span in first if span.name.startswith("invoke_agent")]
    assert {span.context.trace_id for span in first} == {turn.context.trace_id}
    for span in first:
        if span is not turn:
            assert span.parent is not None
            assert span.parent.span_id == turn.context.span_id
            assert turn.start_time <= span.start_time <= span.end_time <= turn.end_time + 10**7
    assert turn.parent is None
    assert len({span.context.trace_id for span in spans.all}) == 2
    assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert turn.attributes["gen_ai.usage.input_tokens"] == 6
    (tool,) = spans.named("execute_tool")
    assert tool.attributes["gen_ai.tool.name"] == "lookup"
    assert tool.attributes["gen_ai.conversation.id"] == "s"
    assert tool.attributes["dex.attempt"] == 1
    assert SECRET not in json.dumps([span.to_json() for span in spans.all])


async def test_a_turn_of_several_processes_and_a_crash_is_one_trace(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        session_client(traced(tmp_path), server_address=engine.address) as sessions,
    ):

        async def start(*failpoints: str) -> WorkerProcess:
            return await WorkerProcess.start(
                "support.explored_agents:traced",
                server_address=engine.address,
                data_dir=tmp_path,
                failpoints=list(failpoints),
            )

        await sessions.start_session("s", SECRET)
        killed = await start("model.after_call")
        await killed.wait()
        second = await start()
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        await second.stop()
        third = await start()
        (asked,) = snapshot.pending_interrupts
        await sessions.resolve_interrupt("s", asked.interrupt_id, approved=True)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await third.stop()
    spans = [json.loads(line) for line in (tmp_path / SPANS_FILE).read_text().splitlines()]
    assert sorted((span["name"], span["attributes"].get("dex.attempt")) for span in spans) == [
        ("chat", 1),  # it died with its process, behind the model's answer
        ("chat", 1),
        ("chat", 2),
        ("execute_tool look", 1),
        ("execute_tool pay", 1),
        ("invoke_agent Explored", None),
    ]
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    assert len({span["context"]["span_id"] for span in spans}) == len(spans)
    (turn,) = [span for span in spans if span["name"].startswith("invoke_agent")]
    parents = {span["parent_id"] for span in spans if span is not turn}
    assert (turn["parent_id"], parents) == (None, {turn["context"]["span_id"]})
    assert SECRET not in json.dumps(spans)


async def test_a_turn_ends_behind_its_start_whatever_the_clock_does(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_turn, "now_ms", lambda: (time.time_ns() // 10**6) + 3_600_000)
    spans = Spans()
    async with stages.play(["the answer"], options=spans.options()) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    (turn,) = spans.named("invoke_agent")
    assert turn.start_time <= turn.end_time
    assert turn.end_time - turn.start_time < TURN_S * 10**9


class Faulty(SpanProcessor, SpanExporter, Sampler):
    """Raises an error in one of its methods."""

    def __init__(self, method: str) -> None:
        self.failed = 0
        setattr(self, method, self._fail)

    def _fail(self, *_: Any, **__: Any) -> Any:
        self.failed += 1
        raise RuntimeError("out of order")

    def should_sample(self, *arguments: Any, **fields: Any) -> SamplingResult:
        return ALWAYS_ON.should_sample(*arguments, **fields)

    def get_description(self) -> str:
        return "faulty"


@pytest.mark.parametrize("method", ["on_start", "on_end", "export", "should_sample"])
async def test_tracing_that_fails_changes_no_turn(stages: Stages, method: str) -> None:
    faulty = Faulty(method)
    provider = TracerProvider(sampler=faulty)
    provider.add_span_processor(faulty)
    provider.add_span_processor(SimpleSpanProcessor(faulty))
    options = AgentSessionOptions(tracing=TracingOptions(provider))
    script: list[Any] = [[Call("lookup")], "the answer"]
    async with stages.play(script, {"lookup": lookup}, options=options) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert (await stage.shape("s")).count("RunModel") == len(stage.runner.requests) == 2
        assert stage.runner.count("lookup") == 1
    assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "the answer"
    assert faulty.failed >= 4


async def test_content_only_when_asked(stages: Stages) -> None:
    spans = Spans()
    options = spans.options(record_content=True)
    script: list[Any] = [[Call("lookup", arguments={"q": SECRET})], "the answer"]
    async with stages.play(script, {"lookup": lookup}, options=options) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    (tool,) = spans.named("execute_tool")
    assert SECRET in str(tool.attributes["gen_ai.tool.call.arguments"])
    assert SECRET in str(tool.attributes["gen_ai.tool.call.result"])
    (turn,) = spans.named("invoke_agent")
    assert json.loads(turn.attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hello"}]}
    ]
    assert json.loads(turn.attributes["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "the answer"}],
            "finish_reason": "stop",
        }
    ]


async def test_a_tool_span_shows_the_arguments_that_it_ran_with(stages: Stages) -> None:
    spans = Spans()
    odd = "a lone \ud800 surrogate"

    async def pay(call: DeferredToolExecution) -> Any:
        return {"paid": call.arguments["amount"], "note": odd}

    script: list[Any] = [[Call("pay", approval=True, arguments={"amount": 100})], "done"]
    options = spans.options(record_content=True)
    async with stages.play(script, {"pay": pay}, options=options) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        (asked,) = snapshot.pending_interrupts
        await stage.sessions.resolve_interrupt(
            "s", asked.interrupt_id, approved=True, arguments={"amount": 5}
        )
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    (tool,) = spans.named("execute_tool pay")
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"amount": 5}
    result = tool.attributes["gen_ai.tool.call.result"]
    assert result.encode("utf-8")  # as an exporter does
    assert json.loads(result) == {"paid": 5, "note": odd}


async def test_a_model_call_without_an_answer_says_so(stages: Stages) -> None:
    spans = Spans()
    script: list[Any] = [ConnectionError("gone"), "done"]
    async with stages.play(script, options=spans.options()) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    reasons = [
        span.attributes.get("gen_ai.response.finish_reasons") for span in spans.named("chat")
    ]
    assert reasons == [("error",), None]  # the scripted model gives no reason


async def test_model_calls_that_read_a_summary_say_so(tmp_path: Path) -> None:
    spans = Spans()
    async with summed_up(tmp_path, 5, spans.options()):
        pass
    steps: dict[str, list[Any]] = {"RunModel": [], "CompactHistory": []}
    for span in spans.named("chat"):
        steps[span.attributes["dex.step_execution.id"].rpartition("-")[0]].append(span)
    for found in steps.values():
        # Nothing else than true is said, and once it is true it stays so.
        summarized = [span.attributes.get("gen_ai.conversation.compacted") for span in found]
        assert summarized[0] is None and summarized[-1] is True
        assert summarized == sorted(summarized, key=bool)
    # A summary call is a model call of the turn that it was made for.
    turns = {span.context.span_id: span for span in spans.named("invoke_agent")}
    for span in steps["CompactHistory"]:
        turn = turns[span.parent.span_id]
        assert turn.attributes["dex.turn.id"] == span.attributes["dex.turn.id"] != "t1"
        assert (span.name, span.kind) == ("chat summary-model", SpanKind.CLIENT)
        assert span.attributes["gen_ai.request.model"] == "summary-model"
        assert span.attributes["gen_ai.usage.input_tokens"] == 9
        assert span.attributes["gen_ai.provider.name"] == "test.provider"
        assert turn.attributes["gen_ai.provider.name"] == "test.provider"


async def test_a_summary_that_fails_is_a_failed_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any, request: CompactionRequest) -> HistorySummary:
        raise ModelCallError(SECRET)

    monkeypatch.setattr(Summing, "summarize", fail)
    spans = Spans()
    async with summed_up(tmp_path, 3, spans.options()):
        pass
    failed = [span for span in spans.named("chat") if span.attributes.get("error.type")]
    assert [span.attributes["dex.attempt"] for span in failed][:2] == [1, 2]
    for span in failed:
        assert span.attributes["dex.step_execution.id"].startswith("CompactHistory-")
        assert span.attributes["error.type"] == "ModelCallError"
        assert span.status.description == "ModelCallError"


async def test_failures_and_attempts_show(stages: Stages) -> None:
    spans = Spans()
    failures = [ConnectionError("gone")]

    async def flaky(call: DeferredToolExecution) -> str:
        if failures:
            raise failures.pop()
        return "ok"

    async def refuses(call: DeferredToolExecution) -> str:
        raise ToolExecutionError("no such order")

    script: list[Any] = [[Call("flaky"), Call("refuses", ToolEffect.READ, call_id="c2")], "done"]
    tools: dict[str, Any] = {"flaky": flaky, "refuses": refuses}
    async with stages.play(script, tools, options=spans.options()) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    attempts = sorted(spans.named("execute_tool flaky"), key=lambda s: s.attributes["dex.attempt"])
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.UNSET]
    assert [span.attributes.get("error.type") for span in attempts] == ["ConnectionError", None]
    assert len({span.context.span_id for span in attempts}) == 2
    (refused,) = spans.named("execute_tool refuses")
    assert refused.attributes["error.type"] == "ToolExecutionError"
    assert refused.status.description == "ToolExecutionError"


async def test_a_sampler_decides_for_the_whole_turn(stages: Stages) -> None:
    spans = Spans(sampler=ALWAYS_OFF)
    script: list[Any] = [[Call("lookup")], "the answer"]

    async def quiet(call: DeferredToolExecution) -> str:
        return "ok"

    async with stages.play(script, {"lookup": quiet}, options=spans.options()) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert spans.all == []


def test_wrong_options_are_refused() -> None:
    with pytest.raises(TypeError, match="must be a TracerProvider"):
        TracingOptions("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be True or False"):
        TracingOptions(record_content=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="provider_name must be a str, got None"):
        TracingOptions(provider_name=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be TracingOptions or None"):
        AgentSessionOptions(tracing=True)  # type: ignore[arg-type]
