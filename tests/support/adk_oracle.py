"""A differential oracle: the same agent and model answers through plain ADK and through
AdkAgentRunner.

The driver plays the session Flow without an engine: it stores everything as JSON text between two
calls, may throw away attempts as a crash would, and compares every repeated attempt byte by byte.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types

from dex_agents._contract import (
    AgentMessage,
    ContinueTurn,
    DeferredToolExecution,
    Json,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    TokenUsage,
    ToolCallRecord,
    ToolCallsRequested,
    ToolCallStatus,
    TurnCompleted,
)
from dex_agents._effects import ToolEffect
from dex_agents._errors import (
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    ToolExecutionError,
    ToolNotStartedError,
)
from dex_agents._session.records import CallTask
from dex_agents._session.results import ROUND_BYTES, succeeded_record
from dex_agents_google_adk import AdkAgentRunner

USER_ID = "user"
SESSION_ID = "session-1"


def text(value: str) -> types.Part:
    """A text part."""
    return types.Part(text=value)


def thought(value: str) -> types.Part:
    """A thought part."""
    return types.Part(text=value, thought=True)


def call(name: str, call_id: str | None = None, /, **arguments: Any) -> types.Part:
    """A function call part."""
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments, id=call_id))


def answer(*parts: types.Part, partial: bool = False, **fields: Any) -> LlmResponse:
    """A model response with the usage that a scripted answer has."""
    settings: dict[str, Any] = {
        "finish_reason": None if partial else types.FinishReason.STOP,
        "model_version": "scripted-1",
        "usage_metadata": types.GenerateContentResponseUsageMetadata(
            prompt_token_count=10,
            candidates_token_count=2,
            thoughts_token_count=3,
            tool_use_prompt_token_count=4,
        ),
        "partial": partial or None,
    }
    return LlmResponse(content=types.Content(role="model", parts=list(parts)), **settings | fields)


Step = Any
"""A part, parts, responses, an exception to raise, or a function that makes one of a request."""


class World:
    """Everything outside ADK: the scripted model, and what tools and callbacks did."""

    def __init__(self, script: Sequence[Step]) -> None:
        self.script = list(script)
        self.cursor = 0
        self.requests: list[Json] = []
        self.executed: list[tuple[str, Json]] = []
        self.callbacks: list[str] = []

    def snapshot(self) -> tuple[Any, ...]:
        """Where the world stands."""
        return (self.cursor, len(self.requests), len(self.executed), len(self.callbacks))

    def rewind(self, snapshot: tuple[Any, ...]) -> None:
        """Forget what a thrown away attempt did."""
        self.cursor, requests, executed, callbacks = snapshot
        del self.requests[requests:], self.executed[executed:], self.callbacks[callbacks:]

    def log(self, entry: str) -> None:
        """Note a callback."""
        self.callbacks.append(entry)

    def ran(self, name: str, **arguments: Any) -> None:
        """Note an execution of a tool."""
        self.executed.append((name, arguments))

    def ran_in(self, context: ToolContext, name: str, **arguments: Any) -> int:
        """The same; returns how often this call has run, as far as the world can tell calls apart."""
        self.ran(name, **arguments)
        return 1


def request_json(request: LlmRequest) -> Json:
    """What a model sees of a request."""
    config = request.config
    return json.loads(
        json.dumps(
            {
                "model": request.model,
                "contents": [
                    content.model_dump(mode="json", exclude_none=True)
                    for content in request.contents
                ],
                "config": config.model_dump(mode="json", exclude_none=True),
            }
        )
    )


class ScriptedLlm(BaseLlm):
    """Answers from the world's script."""

    model: str = "scripted"
    world: Any = None

    def scripted_step(self, request: LlmRequest, shown: Json) -> Step:
        """The next step of the script."""
        world: World = self.world
        index = world.cursor
        world.cursor += 1
        assert index < len(world.script), f"model call {index} is not scripted"
        return world.script[index]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        shown = request_json(llm_request)
        self.world.requests.append(shown)
        await asyncio.sleep(0)
        step = self.scripted_step(llm_request, shown)
        if callable(step):
            step = step(llm_request)
        if isinstance(step, Exception):
            raise step
        items: list[Any] = list(step) if isinstance(step, list) else [step]
        if not items or isinstance(items[0], types.Part):
            items = [answer(*items)]
        for item in items:
            yield item.model_copy(deep=True)


@dataclass
class LiveEvents:
    """Collects live events."""

    events: list[dict[str, Json]] = field(default_factory=list)

    def emit(self, event_type: str, **fields: Json) -> None:
        """Keep one event; it must be JSON."""
        json.dumps(fields, allow_nan=False)
        self.events.append({"type": event_type, **fields})

    def of(self, event_type: str) -> list[dict[str, Json]]:
        """Events of one type."""
        return [event for event in self.events if event["type"] == event_type]


def stored(value: Any) -> Any:
    """What comes back from storage."""
    return json.loads(json.dumps(value, allow_nan=False))


Build = Callable[[Any], BaseNode | App]
Decide = Callable[[RequestedToolCall], str | None]
"""The rejection message of a call, or None to approve."""


@dataclass
class Driver:
    """Plays the Flow for one session.

    Attributes:
        repeats: How often each RunModel runs; all but the last attempt are thrown away.
        execute: Replaces the tool Step; a record, or None for the ordinary execution.
        calls_per_step: Most model calls of a RunModel and the tools whose results it got.
    """

    runner: AdkAgentRunner
    world: World
    session_id: str = SESSION_ID
    decide: Decide = lambda _: None
    execute: Callable[[RequestedToolCall], ToolCallRecord | None] = lambda _: None
    repeats: int = 1
    history: list[AgentMessage] = field(default_factory=list)
    live: LiveEvents = field(default_factory=LiveEvents)
    usage: TokenUsage = field(default_factory=TokenUsage)
    outcomes: list[RunModelOutcome] = field(default_factory=list)
    requested: list[RequestedToolCall] = field(default_factory=list)
    turns: int = 0
    steps: int = 0
    build_message: Callable[[str], AgentMessage] | None = None
    calls_per_step: int = 1
    limit: int = 40

    async def turn(self, message: str) -> TurnCompleted:
        """One turn from user message to answer."""
        self.turns += 1
        build = self.build_message or self.runner.build_user_message
        user_message = stored(build(message).framework_item)
        run_state: Json = None
        records: list[ToolCallRecord] = []
        model_calls = 0
        for _ in range(self.limit):
            self.steps += 1
            outcome = await self._run_model(user_message, run_state, records, model_calls)
            self.outcomes.append(outcome)
            self.usage += outcome.usage
            model_calls += outcome.usage.model_calls
            assert outcome.usage.model_calls <= self.calls_per_step
            if isinstance(outcome, TurnCompleted):
                self._store(outcome)
                return outcome
            run_state = stored(outcome.run_state)
            records = []
            if isinstance(outcome, ToolCallsRequested):
                assert outcome.calls
                self.requested += outcome.calls
                context = stored(outcome.tool_context)
                records = list(
                    await asyncio.gather(*(self._record(item, context) for item in outcome.calls))
                )
            else:
                assert isinstance(outcome, ContinueTurn)
        raise AssertionError("the turn does not end")

    async def _run_model(
        self, user_message: Json, run_state: Json, records: list[ToolCallRecord], model_calls: int
    ) -> RunModelOutcome:
        outcomes: list[RunModelOutcome] = []
        start = self.world.snapshot()
        for attempt in range(1, self.repeats + 1):
            self.world.rewind(start)
            request = RunModelRequest(
                session_id=self.session_id,
                turn_id=f"t{self.turns}",
                step_execution_id=f"RunModel-{self.steps}",
                attempt=attempt,
                history=copy.deepcopy(self.history),
                user_message=copy.deepcopy(user_message),
                run_state=copy.deepcopy(run_state),
                records=copy.deepcopy(records),
                model_calls_so_far=model_calls,
                events=self.live if attempt == self.repeats else LiveEvents(),
            )
            unchanged = copy.deepcopy(
                (request.history, request.user_message, request.run_state, request.records)
            )
            outcomes.append(await self.runner.run_model(request))
            assert unchanged == (
                request.history,
                request.user_message,
                request.run_state,
                request.records,
            ), "run_model changed its request"
        texts = {repr(outcome) for outcome in outcomes}
        assert len(texts) == 1, "a repeated attempt differs"
        return outcomes[-1]

    async def _record(self, item: RequestedToolCall, context: Json) -> ToolCallRecord:
        replaced = self.execute(item)
        if replaced is not None:
            return replaced
        if item.requires_approval and (message := self.decide(item)) is not None:
            return ToolCallRecord(
                item.call_id, item.tool_name, ToolCallStatus.REJECTED, rejection_message=message
            )
        execution = DeferredToolExecution(
            session_id=self.session_id,
            turn_id=f"t{self.turns}",
            call_id=item.call_id,
            tool_name=item.tool_name,
            arguments=stored(item.arguments),
            effect=item.effect,
            agent_name=item.agent_name,
            step_execution_id=f"CallTool-{item.call_id}",
            attempt=1,
            idempotency_key=f"{self.session_id}/t{self.turns}/{item.call_id}",
            tool_context=copy.deepcopy(context),
            framework_data=stored(item.framework_data),
            events=self.live,
        )
        try:
            result = await self.runner.execute_deferred_tool_call(execution)
        except ToolExecutionError as error:
            return failed(item, str(error))
        except ToolNotStartedError as error:
            return failed(item, f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: {error}", not_run=True)
        except Exception as error:
            if item.effect is ToolEffect.READ:
                return failed(item, str(error))
            return unknown(item)
        result = replace(
            result, output=stored(result.output), framework_data=stored(result.framework_data)
        )
        task = CallTask(execution.turn_id, "batch", 0, item, execution.idempotency_key)
        return succeeded_record(task, result, 1, ROUND_BYTES)

    def _store(self, outcome: TurnCompleted) -> None:
        for message in outcome.messages:
            item = stored(message.framework_item)
            assert item == message.framework_item
            self.history.append(
                AgentMessage(
                    role=message.role,
                    framework_item=item,
                    text=message.text,
                    tool_name=message.tool_name,
                    tool_call_id=message.tool_call_id,
                    turn_id=f"t{self.turns}",
                    sequence=len(self.history),
                    images=message.images,
                )
            )

    @property
    def state(self) -> dict[str, Json]:
        """Session state as the stored events make it."""
        return state_of(message.framework_item for message in self.history)


def state_of(items: Iterable[Json]) -> dict[str, Json]:
    """Session state as stored events make it."""
    state: dict[str, Json] = {}
    for item in items:
        state.update(item["actions"]["state_delta"])
    return state


def failed(item: RequestedToolCall, error: str, *, not_run: bool = False) -> ToolCallRecord:
    """A failed record."""
    return ToolCallRecord(
        item.call_id, item.tool_name, ToolCallStatus.FAILED, error=error, not_run=not_run
    )


def unknown(item: RequestedToolCall) -> ToolCallRecord:
    """A record without an outcome."""
    return ToolCallRecord(item.call_id, item.tool_name, ToolCallStatus.OUTCOME_UNKNOWN)


@dataclass
class PlainResult:
    """What plain ADK did."""

    world: World
    events: list[Json]
    state: dict[str, Json]


async def run_plain(
    build: Build,
    script: Sequence[Step] | World,
    messages: Sequence[str],
    *,
    run_config: RunConfig | None = None,
    artifact_service: Any = None,
    memory_service: Any = None,
    state: dict[str, Any] | None = None,
) -> PlainResult:
    """Run the agent as any ADK application does."""
    world = script if isinstance(script, World) else World(script)
    sessions = InMemorySessionService()
    agent = build(world)
    app = agent if isinstance(agent, App) else App(name=agent.name, root_agent=agent)
    await sessions.create_session(
        app_name=app.name, user_id=USER_ID, session_id=SESSION_ID, state=state
    )
    runner = Runner(
        app=app,
        session_service=sessions,
        artifact_service=artifact_service or InMemoryArtifactService(),
        memory_service=memory_service,
    )
    for message in messages:
        content = types.Content(role="user", parts=[types.Part(text=message)])
        async for _ in runner.run_async(
            user_id=USER_ID,
            session_id=SESSION_ID,
            new_message=content,
            run_config=run_config or RunConfig(streaming_mode=StreamingMode.SSE),
        ):
            pass
    session = await sessions.get_session(app_name=app.name, user_id=USER_ID, session_id=SESSION_ID)
    assert session is not None
    events = [stored(event.model_dump(mode="json", exclude_none=True)) for event in session.events]
    return PlainResult(world, events, stored(dict(session.state)))


_CALL_ID = re.compile(r"adk-[0-9a-f]{8}-[0-9a-f-]{27}")


class _Names:
    """Numbers ids by first appearance, so that equal structures compare equal."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, kind: str, value: str) -> str:
        return self._names.setdefault(f"{kind}:{value}", f"<{kind} {len(self._names)}>")

    def in_places(self, event: Json) -> None:
        """The ids of calls in an event's branch and node paths."""
        for name in ("branch", "node_info"):
            if name not in event:
                continue
            text = json.dumps(event[name])
            event[name] = json.loads(_CALL_ID.sub(lambda found: self.of("call", found[0]), text))


def normalised(events: Sequence[Json]) -> list[Json]:
    """Stored history without what only ids and clocks decide."""
    names = _Names()
    result: list[Json] = []
    for event in events:
        item = copy.deepcopy(event)
        item.pop("timestamp", None)
        item.pop("id", None)
        if compaction := item.get("actions", {}).get("compaction"):
            for bound in ("start_timestamp", "end_timestamp"):
                assert isinstance(compaction.pop(bound), float)
        item["invocation_id"] = names.of("invocation", item.get("invocation_id", ""))
        for part in (item.get("content") or {}).get("parts") or []:
            for kind in ("function_call", "function_response"):
                if part.get(kind, {}).get("id"):
                    value = part[kind]["id"]
                    part[kind]["id"] = names.of("call", value) if _CALL_ID.match(value) else value
        names.in_places(item)
        result.append(item)
    return result


async def compare(
    build: Build,
    script: Sequence[Step],
    messages: Sequence[str] = ("go",),
    *,
    plain_build: Build | None = None,
    run_config: RunConfig | None = None,
    decide: Decide = lambda _: None,
    execute: Callable[[RequestedToolCall], ToolCallRecord | None] = lambda _: None,
    repeats: int = 2,
    calls_per_step: int = 1,
    compare_executions: bool = True,
    compare_callbacks: bool = True,
    artifact_services: tuple[Any, Any] = (None, None),
    **runner_arguments: Any,
) -> Driver:
    """Run both and assert that they agree; returns the driver for further checks."""
    plain = await run_plain(
        plain_build or build,
        script,
        messages,
        run_config=run_config,
        artifact_service=artifact_services[0],
        memory_service=runner_arguments.get("memory_service"),
    )
    world = World(script)
    runner = AdkAgentRunner(
        build(world),
        run_config=run_config,
        artifact_service=artifact_services[1] or InMemoryArtifactService(),
        **runner_arguments,
    )
    driver = Driver(runner, world, decide=decide, execute=execute, repeats=repeats)
    driver.calls_per_step = calls_per_step
    for message in messages:
        await driver.turn(message)
    assert world.requests == plain.world.requests
    assert normalised([m.framework_item for m in driver.history]) == normalised(plain.events)
    assert driver.state == plain.state
    if compare_executions:
        assert sorted(map(repr, world.executed)) == sorted(map(repr, plain.world.executed))
    if compare_callbacks:
        assert world.callbacks == plain.world.callbacks
    return driver
