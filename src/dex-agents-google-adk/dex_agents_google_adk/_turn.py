"""One ``RunModel`` attempt: rebuild the session, let ADK run until it pauses, say how the turn goes
on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext, LlmCallsLimitExceededError
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from dex_agents._contract import (
    AgentMessage,
    ContinueTurn,
    Json,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    ToolCallRecord,
    ToolCallsRequested,
    TurnCompleted,
)
from dex_agents._errors import AgentError, AgentTurnError, ModelCallError
from dex_agents_google_adk._actions import actions_to_json
from dex_agents_google_adk._adk_compat import CREDENTIAL_CALL, FRAMEWORK_CALLS
from dex_agents_google_adk._adk_workarounds import active_agent
from dex_agents_google_adk._adk_workarounds.nested_node_paths import forget_misleading_path
from dex_agents_google_adk._artifacts import SessionArtifacts, session_artifacts
from dex_agents_google_adk._attempt import (
    Attempt,
    AttemptInvocationContext,
    OpenResponse,
    enter_attempt,
)
from dex_agents_google_adk._compaction import restore
from dex_agents_google_adk._events import (
    USER,
    dump_event,
    is_resumption_marker,
    is_users,
    load_event,
    shown_text,
    timestamp_of,
    to_message,
)
from dex_agents_google_adk._events_compaction import (
    attempt_config,
    compacted_view,
    hide_from_compaction,
)
from dex_agents_google_adk._first_plugin import FirstPlugin
from dex_agents_google_adk._history import replay_state
from dex_agents_google_adk._ids import AttemptIds, run_isolated
from dex_agents_google_adk._images import images_of_event, uris_of_item
from dex_agents_google_adk._json import copy_json, to_json
from dex_agents_google_adk._kept_answers import KeptAnswers
from dex_agents_google_adk._last_plugin import LastPlugin
from dex_agents_google_adk._live import LiveText
from dex_agents_google_adk._model_errors import classify, classify_answer
from dex_agents_google_adk._questions import answers_of, call_of
from dex_agents_google_adk._records import ended_at
from dex_agents_google_adk._run_state import (
    CallKind,
    PausedCall,
    PausedEvent,
    RunState,
    StartedAgent,
)
from dex_agents_google_adk._session import AttemptSessionService, make_session
from dex_agents_google_adk._setup import RunnerSetup
from dex_agents_google_adk._telemetry import for_listeners
from dex_agents_google_adk._tool_step import make_tool_context

_TEMP_PREFIX = "temp:"


async def run_model(setup: RunnerSetup, request: RunModelRequest) -> RunModelOutcome:
    """See :meth:`dex_agents.AgentFrameworkRunner.run_model`."""
    ids = AttemptIds(
        f"{request.session_id}/{request.turn_id}/{request.step_execution_id}", _base_time(request)
    )
    return await run_isolated(ids, _TurnAttempt(setup, request, ids).run())


class _AttemptRunner(Runner):
    """ADK's runner for one attempt."""

    def __init__(
        self,
        *,
        attempt: Attempt,
        resumed: str | None,
        application_config: ResumabilityConfig | None,
        **arguments: Any,
    ) -> None:
        self._attempt = attempt
        self._resumed = resumed
        self._application_config = application_config
        super().__init__(**arguments)

    def _find_agent_to_run(self, session: Session, root_agent: BaseAgent) -> BaseAgent:
        if self._resumed is None:
            return self._pick(session, root_agent)
        return active_agent.first_agent(session, root_agent, self._resumed, self._pick)

    def _pick(self, session: Session, root_agent: BaseAgent) -> BaseAgent:
        # A resumable app picks otherwise, but only for us is the application's app one.
        ours, self.resumability_config = self.resumability_config, self._application_config
        try:
            return super()._find_agent_to_run(session, root_agent)
        finally:
            self.resumability_config = ours

    def _create_invocation_context(self, **kwargs: object) -> InvocationContext:
        context = AttemptInvocationContext(**kwargs)  # type: ignore[arg-type]
        context._attempt = self._attempt
        return context

    def _infer_agent_origin(self, agent: BaseAgent) -> tuple[str | None, Path | None]:
        # Only feeds a warning about names, and reads files for it at every construction.
        return None, None

    async def _run_post_invocation_compaction(self, *, session: Session) -> None:
        # ADK would compact after each pause. Behind an answer, a summary that fails or hangs would
        # keep the answer from being stored; the next turn begins with it.
        return

    async def sum_up(self, session: Session) -> None:
        """Let ADK compact what the turns before have left."""
        await super()._run_post_invocation_compaction(session=compacted_view(session))


class _TurnAttempt:
    def __init__(self, setup: RunnerSetup, request: RunModelRequest, ids: AttemptIds) -> None:
        self._setup = setup
        self._request = request
        state = RunState.from_json(request.run_state) if request.run_state else None
        self._is_summed_up = state is not None
        is_begun = state is not None and state.is_begun
        self._state = state if is_begun else None
        self._earlier_items = state.events if state is not None else ()
        self._attempt = self._make_attempt()
        self._items: dict[str, Json] = {}
        self._session = self._make_session()
        self._ids = ids
        self._live = LiveText(request.events)

    # Before the run

    def _make_attempt(self) -> Attempt:
        request, state = self._request, self._state
        paused = state.paused if state else ()
        questions = len(state.inputs) if state else 0
        steps = len(request.records) - questions
        records = tuple(request.records[:steps])
        self._answers = tuple(request.records[steps:])
        _check_records(paused, records)
        return Attempt(
            paused=paused,
            records=records,
            long_running=state.long_running if state else {},
            called_source_tools=state.source_tools if state else {},
            held=state.held if state else (),
            faults=state.faults if state else (),
            started=state.started if state else (),
            node_inputs=state.node_inputs if state else {},
            descendants=self._setup.tree.descendants,
            is_resumed=state is not None,
            image_uris=self._image_uris(),
            steering=[
                content
                for item in request.steering
                if (content := load_event(copy_json(item)).content) is not None
            ],
            model_calls_so_far=request.model_calls_so_far,
            maximum_model_calls=self._setup.run_config.max_llm_calls,
            answers=KeptAnswers(request.checkpoint),
        )

    def _image_uris(self) -> set[str]:
        if self._setup.images.store is None:
            return set()
        request, state = self._request, self._state
        found = {image.uri for message in request.history for image in message.images}
        found |= {image.uri for record in request.records for image in record.images}
        found.update(uris_of_item(request.user_message))
        return found | set(state.image_uris if state else ())

    def _make_session(self) -> Session:
        request = self._request
        restored = restore(request.summary)
        self._artifacts = session_artifacts(
            self._setup.artifact_service, request, restored.artifacts, self._state
        )
        events = [
            *restored.events,
            *self._setup.history.load(request.session_id, request.history),
        ]
        self._turn_starts_at = len(events)
        items = [message.framework_item for message in request.history]
        items += self._earlier_items
        temp_state = self._state.temp_state if self._state is not None else {}
        for item in self._earlier_items:
            event = load_event(copy_json(item))
            self._items[event.id] = item
            forget_misleading_path(event, self._setup.tree.agent_names)
            events.append(event)
        state = copy_json(restored.state)
        state.update(replay_state(items))
        state.update(copy_json(temp_state))
        return make_session(
            session_id=request.session_id,
            app_name=self._setup.app.name,
            user_id=self._setup.user_id,
            state=state,
            events=events,
        )

    # The run

    async def run(self) -> RunModelOutcome:
        enter_attempt(self._attempt)
        runner = self._make_runner()
        if not self._is_summed_up:
            await runner.sum_up(self._session)
            if self._attempt.summary_permit_asked:
                return self._not_begun()
        self._attempt.offer = await self._setup.sources.offer(self._attempt.called_source_tools)
        try:
            async with aclosing(self._start(runner)) as events:
                async for event in events:
                    if (shown := self._attempt.held.to_show(event)) is not None:
                        self._live.emit(shown)
        except Exception as error:
            known = self._known_error(error)
            if known is None or known is error:
                raise
            # A cause that ADK wrapped must not become the cause of itself.
            raise known from (known.__cause__ if _is_in_chain(known, error) else error)
        return self._outcome()

    def _not_begun(self) -> ContinueTurn:
        """The summary was this attempt's model call; the turn itself begins in the next one."""
        items = tuple(self._items[e.id] for e in self._session.events[self._turn_starts_at :])
        return ContinueTurn(run_state=RunState("", items, is_begun=False).to_json())

    def _make_runner(self) -> _AttemptRunner:
        setup, request, attempt = self._setup, self._request, self._attempt
        app = App.model_construct(
            name=setup.app.name,
            root_agent=setup.tree.root,
            plugins=[
                FirstPlugin(attempt, request.events, setup.tree),
                *setup.app.plugins,
                LastPlugin(attempt, setup.resolver, setup.images, setup.sources),
            ],
            context_cache_config=setup.app.context_cache_config,
            events_compaction_config=attempt_config(setup.app, setup.tree, attempt, self._session),
            resumability_config=_RESUMABLE,
        )
        return _AttemptRunner(
            attempt=attempt,
            resumed=self._state.invocation_id if self._state else None,
            application_config=setup.app.resumability_config,
            app=app,
            session_service=AttemptSessionService(
                self._session, self._appended, setup.tree.workflow_names
            ),
            artifact_service=self._artifacts,
            memory_service=setup.memory_service,
            credential_service=setup.credential_service,
        )

    def _start(self, runner: _AttemptRunner) -> AsyncGenerator[Event, None]:
        start: dict[str, Any] = {"new_message": self._user_content()}
        if self._state is not None:
            start = {"invocation_id": self._state.invocation_id}
            if self._state.inputs:
                start["new_message"] = answers_of(self._state.inputs, self._answers)
        return runner.run_async(
            user_id=self._setup.user_id,
            session_id=self._request.session_id,
            run_config=for_listeners(self._setup.run_config),
            **start,
        )

    def _appended(self, event: Event) -> None:
        self._ids.event_appended()
        if self._setup.app.events_compaction_config is not None:
            hide_from_compaction(event)
        if event.id not in self._attempt.synthetic_events:
            self._items[event.id] = dump_event(event)

    def _user_content(self) -> types.Content:
        content = load_event(copy_json(self._request.user_message)).content
        if content is None:
            raise AgentTurnError("the user message of the turn has no content")
        return content

    def _known_error(self, error: BaseException) -> BaseException | None:
        # ADK wraps what a plugin raises, so the error may be a cause.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, AgentError) or _holds(self._attempt.callback_errors, cause):
                return cause
            if isinstance(cause, LlmCallsLimitExceededError):
                return AgentTurnError(f"the turn made too many model calls: {cause}")
            if _holds(self._attempt.model_errors, cause):
                return classify(cause)
            cause = cause.__cause__
        return None

    # After the run

    def _outcome(self) -> RunModelOutcome:
        attempt = self._attempt
        if missing := attempt.unreached():
            raise AgentTurnError(
                f"ADK went on without the results of {', '.join(map(repr, missing))}; nothing was "
                f"lost, but "
                "the turn cannot go on"
            )
        usage, metadata = attempt.usage(), attempt.metadata()
        pauses = attempt.pauses
        waiting = attempt.open_responses() if pauses else []
        paused = tuple(self._paused(response) for response in waiting)
        if pauses:
            # A response goes on as a whole, so what ADK has written of it is kept with its calls.
            for response in waiting:
                attempt.synthetic_events.update(response.answers)
        events = [
            event
            for event in self._session.events[self._turn_starts_at :]
            if event.id not in attempt.synthetic_events
        ]
        if pauses:
            run_state = self._run_state(events, paused)
            calls = [call for response in waiting for call in self._requested(response)]
            calls += map(call_of, attempt.inputs)
            if calls:
                context = make_tool_context(
                    attempt.invocation_id,
                    self._session.state,
                    users_event.content if (users_event := self._users_event()) else None,
                )
                if isinstance(self._artifacts, SessionArtifacts):
                    context["artifacts"] = self._artifacts.to_json()
                return ToolCallsRequested(
                    calls=calls,
                    run_state=run_state.to_json(),
                    tool_context=context,
                    usage=usage,
                    metadata=metadata,
                    took_steering=attempt.took_steering,
                )
            self._check_progress(events)
            return ContinueTurn(
                run_state=run_state.to_json(),
                usage=usage,
                metadata=metadata,
                took_steering=attempt.took_steering,
            )
        events = [event for event in events if not is_resumption_marker(event)]
        self._check_end(events)
        messages = [self._message(event) for event in events]
        return TurnCompleted(
            messages=messages,
            final_text=_final_text(events),
            usage=usage,
            metadata=metadata,
            took_steering=attempt.took_steering,
        )

    def _requested(self, response: OpenResponse) -> list[RequestedToolCall]:
        return [
            RequestedToolCall(
                call_id=call_id,
                tool_name=call.tool_name,
                arguments=call.arguments,
                effect=call.effect,
                requires_approval=call.requires_approval,
                agent_name=response.agent_name,
                node_path=response.node_path,
                interrupt=call.interrupt,
                framework_data={
                    "branch": response.branch,
                    "path": response.node_path,
                    "approved": call.requires_approval,
                    **call.framework_data,
                },
                **call.step_fields,
            )
            for call_id, _ in response.calls
            if (call := response.deferred.get(call_id)) is not None and not call.native
        ]

    def _run_state(self, events: list[Event], paused: tuple[PausedEvent, ...]) -> RunState:
        state = self._session.state
        return RunState(
            invocation_id=self._attempt.invocation_id,
            events=tuple(self._items[event.id] for event in events),
            paused=paused,
            started=tuple(
                StartedAgent(name, branch, output)
                for (name, branch), output in self._attempt.started.items()
            ),
            temp_state={
                key: to_json(value) for key, value in state.items() if key.startswith(_TEMP_PREFIX)
            },
            node_inputs=self._attempt.node_inputs,
            image_uris=tuple(sorted(self._attempt.image_uris)),
            inputs=tuple(self._attempt.inputs),
            long_running=self._attempt.long_running,
            source_tools=self._attempt.called_source_tools,
            held=self._attempt.held.rest,
            faults=self._attempt.faults.rest,
        )

    def _paused(self, response: OpenResponse) -> PausedEvent:
        calls = [self._paused_call(response, *call) for call in response.calls]
        return PausedEvent(
            response.event_id,
            response.agent_name,
            response.branch,
            tuple(calls),
            tuple(sorted(response.tasks)),
            response.node_path,
        )

    def _paused_call(self, response: OpenResponse, call_id: str, tool_name: str) -> PausedCall:
        replay = self._attempt.replay_of(response, call_id) if response.replayed else None
        if call_id in response.answered:
            context = response.contexts.get(call_id)
            return PausedCall(
                call_id=call_id,
                kind=CallKind.SETTLED,
                tool_name=tool_name,
                actions=actions_to_json(context.actions) if context is not None else {},
                response=self._settled_response(response, call_id),
            )
        if replay is not None:
            kept = replace(replay.call, begun=call_id in response.begun)
            if replay.record is None:
                return kept
            return replace(kept, kind=CallKind.RECORDED, record=replay.record)
        actions = response.actions.get(call_id) or {}
        if (deferred := response.deferred.get(call_id)) is not None:
            return PausedCall(
                call_id=call_id,
                kind=CallKind.NATIVE if deferred.native else CallKind.STEP,
                tool_name=tool_name,
                arguments=deferred.arguments if deferred.arguments_changed else None,
                actions=actions,
            )
        if call_id in response.begun or call_id in response.tasks or not response.deferred:
            return PausedCall(
                call_id=call_id,
                kind=CallKind.NATIVE,
                tool_name=tool_name,
                begun=call_id in response.begun,
            )
        return PausedCall(
            call_id=call_id,
            kind=CallKind.SETTLED,
            tool_name=tool_name,
            actions=actions,
            response=self._settled_response(response, call_id),
        )

    def _settled_response(self, response: OpenResponse, call_id: str) -> Json:
        for event in reversed(self._session.events[self._turn_starts_at :]):
            if event.id == response.event_id:
                break  # a model may have used the id before, for a call that has another result
            if event.branch != response.branch:
                continue
            for item in event.get_function_responses():
                if item.id == call_id and event.author == response.agent_name:
                    return item.model_dump(mode="json", exclude_none=True, fallback=to_json)
        raise AgentTurnError(f"ADK wrote no response for the answered call {call_id!r}")

    def _check_progress(self, events: list[Event]) -> None:
        attempt = self._attempt
        before = len(self._earlier_items)
        if attempt.model_calls or len(events) > before or attempt.paused_responses():
            return
        if not attempt.inputs:
            raise AgentTurnError(
                "ADK made no progress: it neither asked a model nor ran what the turn waits for"
            )

    def _check_complete(self, events: list[Event], answered: set[str | None]) -> None:
        """A cancellation that a callback raises looks to ADK like an end."""
        tree = self._setup.tree
        lost = [
            call.name
            for event in events
            for call in event.get_function_calls()
            if call.id not in answered
            # A task may wait for the user's next message, so its call stays open.
            and call.name not in tree.task_names
            and not (tree.has_parallel_agent and event.branch)
        ]
        if lost:
            raise AgentTurnError(
                f"the run ended without the results of {', '.join(map(str, lost))}; what ran is "
                f"recorded"
            )

    def _check_end(self, events: list[Event]) -> None:
        attempt = self._attempt
        if attempt.held.rest:
            raise AgentTurnError(
                "the run ended before a later part of the model's answer came in; what ran is "
                "recorded"
            )
        answered = {item.id for event in events for item in event.get_function_responses()}
        if paused := [
            call.name
            for event in events
            for call in event.get_function_calls()
            if (event.long_running_tool_ids or call.name in FRAMEWORK_CALLS)
            and call.id not in answered
        ]:
            if CREDENTIAL_CALL in paused:
                raise AgentTurnError(
                    "a toolset of the agent needs a credential before its tools can be listed, "
                    "which a session cannot wait for; give it through credential_service"
                )
            raise AgentTurnError(
                f"ADK paused for {', '.join(map(str, paused))}, which a durable session does not "
                f"support yet"
            )
        self._check_complete(events, answered)
        last = next((event for event in reversed(events) if event.author != USER), None)
        if last is not None and last.error_code and not _has_answer(last):
            code: Any = last.error_code
            raise classify_answer(str(getattr(code, "value", code)), last.error_message)
        if attempt.has_silent_model_call:
            raise ModelCallError("the model gave no content")
        if isinstance(self._setup.tree.root, LlmAgent) and all(e.author == USER for e in events):
            raise ModelCallError("the run ended before the agent said anything")

    def _message(self, event: Event) -> AgentMessage:
        if event is self._users_event():
            # A plugin may have rewritten the message for this turn; the session keeps the original.
            original = self._user_content()
            if event.content != original:
                item = {**self._items[event.id], "content": self._request.user_message["content"]}
                event = event.model_copy(update={"content": original})
                return to_message(event, item, images_of_event(event, self._attempt.image_uris))
        images = images_of_event(event, self._attempt.image_uris)
        item = self._items[event.id]
        if marked := self._attempt.long_running.get(event.id):
            item = {**item, "long_running_tool_ids": marked}
        return to_message(event, item, images)

    def _users_event(self) -> Event | None:
        """The turn's message, behind a summary that the turn may have begun with."""
        turn = self._session.events[self._turn_starts_at :]
        first = next((event for event in turn if event.actions.compaction is None), None)
        return first if first is not None and is_users(first) else None


# Constructed without the validation whose only effect is a warning that the feature is
# experimental.
_RESUMABLE = ResumabilityConfig.model_construct(is_resumable=True)


def _holds(errors: list[BaseException], wanted: BaseException) -> bool:
    return any(error is wanted for error in errors)


def _is_in_chain(wanted: BaseException, error: BaseException | None) -> bool:
    while error is not None:
        if error is wanted:
            return True
        error = error.__cause__
    return False


def _base_time(request: RunModelRequest) -> float:
    times = [timestamp_of(request.user_message)]
    if request.history:
        times.append(timestamp_of(request.history[-1].framework_item))
    if request.run_state:
        times += [timestamp_of(item) for item in request.run_state.get("events") or ()]
    times += [ended_at(record) for record in request.records]
    return max(times)


def _check_records(paused: tuple[PausedEvent, ...], records: Any) -> None:
    expected = [call for event in paused for call in event.calls if call.kind is CallKind.STEP]
    found: list[ToolCallRecord] = list(records)
    if [(call.call_id, call.tool_name) for call in expected] != [
        (record.call_id, record.tool_name) for record in found
    ]:
        raise AgentTurnError(
            f"the turn waits for the results of {[call.tool_name for call in expected]}, but got "
            f"those of "
            f"{[record.tool_name for record in found]}"
        )


def _has_answer(event: Event) -> bool:
    return bool(shown_text(event.content).strip() or event.get_function_calls())


def _final_text(events: list[Event]) -> str:
    for event in reversed(events):
        if event.author == USER or not event.is_final_response():
            continue
        if text := shown_text(event.content):
            return text
    return ""
