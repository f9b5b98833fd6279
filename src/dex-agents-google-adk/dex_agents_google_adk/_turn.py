"""One ``RunModel`` attempt: rebuild the session, let ADK run until it pauses, say how the turn goes
on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai import types

from dex_agents._contract import (
    AgentMessage,
    ContinueTurn,
    Json,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    ToolCallsRequested,
    TurnCompleted,
)
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk._adk_workarounds import nested_node_paths, unfinished_nodes
from dex_agents_google_adk._answer import final_text, root_output
from dex_agents_google_adk._artifacts import SessionArtifacts, session_artifacts
from dex_agents_google_adk._attempt import Attempt, ReplayError, enter_attempt
from dex_agents_google_adk._attempt_runner import RESUMABLE, AttemptRunner
from dex_agents_google_adk._begun_nodes import BegunNodes
from dex_agents_google_adk._branches import branch_below
from dex_agents_google_adk._compaction import restore
from dex_agents_google_adk._events import (
    dump_event,
    is_resumption_marker,
    is_users,
    load_event,
    timestamp_of,
    to_message,
)
from dex_agents_google_adk._events_compaction import (
    attempt_config,
    hide_from_compaction,
)
from dex_agents_google_adk._first_plugin import FirstPlugin
from dex_agents_google_adk._history import replay_state
from dex_agents_google_adk._ids import AttemptIds, run_isolated
from dex_agents_google_adk._images import images_of_event, uris_of_item
from dex_agents_google_adk._json import copy_json, to_json
from dex_agents_google_adk._kept_answers import KeptAnswers
from dex_agents_google_adk._known_errors import known_error, may_pass
from dex_agents_google_adk._last_plugin import LastPlugin
from dex_agents_google_adk._live import LiveText
from dex_agents_google_adk._open_response import OpenResponse
from dex_agents_google_adk._paused_events import paused_event
from dex_agents_google_adk._questions import answers_of, call_of
from dex_agents_google_adk._records import ended_at
from dex_agents_google_adk._run_state import (
    PausedEvent,
    RunState,
    StartedAgent,
)
from dex_agents_google_adk._session import AttemptSessionService, make_session
from dex_agents_google_adk._setup import RunnerSetup
from dex_agents_google_adk._telemetry import for_listeners
from dex_agents_google_adk._tool_events import ToolEvents, names_of_calls
from dex_agents_google_adk._tool_step import make_tool_context
from dex_agents_google_adk._turn_checks import (
    check_end,
    check_progress,
    check_records,
    check_replayed,
    check_tasks,
    check_waiting_agents,
)

_TEMP_PREFIX = "temp:"


async def run_model(setup: RunnerSetup, request: RunModelRequest) -> RunModelOutcome:
    """See :meth:`dex_agents.AgentFrameworkRunner.run_model`."""
    ids = AttemptIds(
        f"{request.session_id}/{request.turn_id}/{request.step_execution_id}", _base_time(request)
    )
    return await run_isolated(ids, _TurnAttempt(setup, request, ids).run())


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
        check_records(paused, records)
        check_waiting_agents(self._setup.tree, paused)
        return Attempt(
            paused=paused,
            records=records,
            long_running=state.long_running if state else {},
            called_source_tools=state.source_tools if state else {},
            held=state.held if state else (),
            faults=state.faults if state else (),
            node_retries=state.node_retries if state else {},
            handed_on=state.handed_on if state else {},
            begun=BegunNodes(state.begun, state.begun_agents) if state else None,
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
            number=request.attempt,
            tool_events=ToolEvents([item.get("id", "") for item in self._earlier_items]),
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
        self._attempt.turn_starts_at = len(events)
        items = [message.framework_item for message in request.history]
        temp_state = self._state.temp_state if self._state is not None else {}
        turn = [load_event(copy_json(item)) for item in self._earlier_items]
        self._attempt.misleading_events = nested_node_paths.misleading_events(
            turn, self._setup.tree.agent_names
        )
        self._attempt.claiming_nodes = unfinished_nodes.claiming_nodes(turn)
        for event, item in zip(turn, self._earlier_items, strict=True):
            self._items[event.id] = item
            events.append(event)
        state = copy_json(restored.state)
        state.update(replay_state(items))
        self._attempt.begun.read(state, turn)
        state.update(replay_state(self._earlier_items))
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
        try:
            return await self._run()
        except Exception as error:
            if not self._is_of_another_tree(error):
                raise
            raise AgentTurnError(
                f"the turn could not go on, as the agent tree is another one than when it began: "
                f"{str(error).rstrip('.')}. What ran is recorded; send a message to go on"
            ) from error
        finally:
            self._attempt.release_contexts()

    def _is_of_another_tree(self, error: Exception) -> bool:
        """Whether ADK stumbles because a later release has changed the tree of the open turn."""
        then = self._state.tree_shape if self._state is not None else ""
        if then in ("", self._setup.tree.shape):
            return False
        if isinstance(error, ReplayError):
            return True
        return known_error(self._attempt, error) is None and not may_pass(self._attempt, error)

    async def _run(self) -> RunModelOutcome:
        enter_attempt(self._attempt)
        runner = self._make_runner()
        if not self._is_summed_up:
            await runner.sum_up(self._session)
            if self._attempt.model_calls.summary_permit_asked:
                return self._not_begun()
        self._attempt.offer = await self._setup.sources.offer(self._attempt.called_source_tools)
        try:
            async with aclosing(self._start(runner)) as events:
                async for event in events:
                    if event.id in self._attempt.tool_events:
                        continue  # shown when the tool ran
                    if (shown := self._attempt.held.to_show(event)) is not None:
                        self._live.emit(shown)
        except Exception as error:
            known = known_error(self._attempt, error)
            if known is None or known is error:
                raise
            # A cause that ADK wrapped must not become the cause of itself.
            raise known from (known.__cause__ if _is_in_chain(known, error) else error)
        return self._outcome()

    @property
    def _turn_events(self) -> list[Event]:
        return self._session.events[self._attempt.turn_starts_at :]

    def _not_begun(self) -> ContinueTurn:
        """The summary was this attempt's model call; the turn itself begins in the next one."""
        items = tuple(self._items[event.id] for event in self._turn_events)
        return ContinueTurn(run_state=RunState("", items, is_begun=False).to_json())

    def _make_runner(self) -> AttemptRunner:
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
            resumability_config=RESUMABLE,
        )
        return AttemptRunner(
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

    def _start(self, runner: AttemptRunner) -> AsyncGenerator[Event, None]:
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

    # After the run

    def _outcome(self) -> RunModelOutcome:
        attempt = self._attempt
        check_replayed(attempt, self._setup.tree)
        check_tasks(attempt)
        self._end_branches()
        usage, metadata = attempt.model_calls.usage(), attempt.model_calls.metadata()
        turn = self._turn_events
        pauses = attempt.pauses
        waiting = attempt.open_responses() if pauses else []
        paused = tuple(paused_event(attempt, response, turn) for response in waiting)
        if pauses:
            # A response goes on as a whole, so what ADK has written of it is kept with its calls.
            for response in waiting:
                attempt.synthetic_events.update(response.answers)
        events = [event for event in turn if event.id not in attempt.synthetic_events]
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
            check_progress(attempt, events, len(self._earlier_items))
            return ContinueTurn(
                run_state=run_state.to_json(),
                usage=usage,
                metadata=metadata,
                took_steering=attempt.took_steering,
            )
        events = [event for event in events if not is_resumption_marker(event)]
        check_end(attempt, self._setup.tree, events)
        messages = [self._message(event) for event in events]
        call_names = names_of_calls(events, self._setup.tree.agent_names)
        return TurnCompleted(
            messages=messages,
            final_text=final_text(events, call_names),
            output=root_output(events, call_names, lambda event: self._items[event.id]),
            usage=usage,
            metadata=metadata,
            took_steering=attempt.took_steering,
        )

    def _end_branches(self) -> None:
        """Mark what a ParallelAgent shall not go on with, so that it ends in the next attempt."""
        for parallel, names in self._attempt.ending.items():
            for name in names:
                event = Event(
                    invocation_id=self._attempt.invocation_id,
                    author=name,
                    branch=branch_below(parallel, name),
                    actions=EventActions(end_of_agent=True),
                )
                self._session.events.append(event)
                self._items[event.id] = dump_event(event)

    def _requested(self, response: OpenResponse) -> list[RequestedToolCall]:
        return [
            RequestedToolCall(
                call_id=call_id,
                tool_name=call.tool_name,
                arguments=call.arguments,
                effect=call.effect,
                requires_approval=call.requires_approval,
                agent_name=response.agent_name,
                node_path=self._setup.tree.shown_path(response.agent_name, response.node_path),
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
                StartedAgent(*key, output, self._attempt.began_behind.get(key, ""))
                for key, output in self._attempt.started.items()
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
            node_retries=self._attempt.node_retries,
            handed_on=self._attempt.handed_on,
            begun=self._attempt.begun.paths,
            begun_agents=tuple(self._attempt.begun.agents),
            tree_shape=self._state.tree_shape if self._state else self._setup.tree.shape,
        )

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
        first = next(
            (event for event in self._turn_events if event.actions.compaction is None), None
        )
        return first if first is not None and is_users(first) else None


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
