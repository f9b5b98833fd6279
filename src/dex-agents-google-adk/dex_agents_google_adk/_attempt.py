"""What one ``RunModel`` attempt knows while ADK runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import PrivateAttr

from dex_agents._contract import Json, ToolCallRecord
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk._begun_nodes import BegunNodes
from dex_agents_google_adk._branches import branch_below, is_within
from dex_agents_google_adk._faults import Faults
from dex_agents_google_adk._held_answers import HeldAnswers
from dex_agents_google_adk._kept_answers import KeptAnswers
from dex_agents_google_adk._model_calls import ModelCalls
from dex_agents_google_adk._open_response import AgentKey, OpenResponse
from dex_agents_google_adk._run_state import (
    CallKind,
    Fault,
    HeldAnswer,
    NodeRetry,
    PausedCall,
    PausedEvent,
    PausedInput,
    StartedAgent,
)
from dex_agents_google_adk._tool_events import ToolEvents


class ReplayError(AgentTurnError):
    """ADK does not go on with a paused turn where it paused."""


@dataclass
class _Replay:
    call: PausedCall
    record: ToolCallRecord | None
    taken: bool = False


class Attempt:
    """Mutable record of one attempt; the plugins write it, the outcome is read from it.

    Args:
        paused: Responses that wait for their results.
        records: Records of the calls with a Step, in the order of ``paused``.
        started: Agents that have already started in this turn.
        node_inputs: Inputs of ``single_turn`` nodes by node path.
        descendants: Names of the nodes below each node.
        is_resumed: Whether an invocation goes on.
        image_uris: URIs of the session's images.
        steering: What the user has sent into the open turn.
        long_running: Ids of long-running calls by event, which stored events do not name while the
            turn is open.
        called_source_tools: Tools of sources that the turn has called, by name.
        held: Later parts of model answers whose first calls waited.
        faults: Useless answers that are asked for again.
        node_retries: Nodes that are being tried again, by path.
        handed_on: What finished nodes that claimed the output of a child handed on, by path.
        begun: Nodes that paused in the middle of their run.
        model_calls_so_far: Model calls of the turn before this attempt.
        maximum_model_calls: ``RunConfig.max_llm_calls``; 0 or less means no limit.
        answers: What models have answered, here and in attempts that died.
        tool_events: Events that tools' Steps have left.
        number: From 1; one more each time that the Step is tried again.
    """

    def __init__(
        self,
        *,
        paused: tuple[PausedEvent, ...] = (),
        records: tuple[ToolCallRecord, ...] = (),
        started: tuple[StartedAgent, ...] = (),
        node_inputs: Mapping[str, Json] | None = None,
        descendants: Mapping[str, Collection[str]] | None = None,
        is_resumed: bool = False,
        image_uris: Collection[str] = (),
        steering: Sequence[types.Content] = (),
        long_running: Mapping[str, list[str]] | None = None,
        called_source_tools: Mapping[str, Json] | None = None,
        held: Sequence[HeldAnswer] = (),
        faults: Sequence[Fault] = (),
        node_retries: Mapping[str, NodeRetry] | None = None,
        handed_on: Mapping[str, Json] | None = None,
        begun: BegunNodes | None = None,
        model_calls_so_far: int = 0,
        maximum_model_calls: int = 0,
        answers: KeptAnswers | None = None,
        tool_events: ToolEvents | None = None,
        number: int = 1,
    ) -> None:
        self.number = number
        self.answers = answers or KeptAnswers(None)
        self.invocation_id = ""
        self.turn_starts_at = 0  # index of the turn's first event in the session
        self.is_resumed = is_resumed
        self.image_uris = set(image_uris)
        self.steering = list(steering)
        self.took_steering = False
        self.long_running: dict[str, list[str]] = dict(long_running or {})
        self.offer: Any = None  # what tool sources list in this attempt
        self.called_source_tools: dict[str, Json] = dict(called_source_tools or {})
        self.held = HeldAnswers(held)
        self.faults = Faults(faults)
        self.node_retries = dict(node_retries or {})
        self.handed_on = dict(handed_on or {})
        self.begun = begun or BegunNodes()
        self.claiming_nodes: Collection[str] = ()  # of the turn before this attempt, by path
        self.model_calls = ModelCalls(so_far=model_calls_so_far, maximum=maximum_model_calls)
        self.tool_events = tool_events or ToolEvents()
        self.inputs: list[PausedInput] = []
        self.node_inputs: dict[str, Json] = dict(node_inputs or {})
        self.descendants: Mapping[str, Collection[str]] = descendants or {}
        self.synthetic_events: set[str] = set()
        self.misleading_events: set[str] = set()  # of the turn before this attempt
        self.started: dict[AgentKey, str] = {
            (agent.name, agent.branch): agent.output for agent in started
        }
        self.began_behind: dict[AgentKey, str] = {
            (agent.name, agent.branch): agent.began_behind for agent in started
        }
        self._handed_on: set[str] = set()
        self._earlier_output = dict(self.started)
        self._ran: set[AgentKey] = set(self.started)
        self._paused_agents: set[AgentKey] = set()
        self._yielding: set[AgentKey] = set()
        self._ending: dict[AgentKey, Sequence[str]] = {}
        self.responses: list[OpenResponse] = []
        self.model_errors: list[BaseException] = []
        self.callback_errors: list[BaseException] = []
        self.traced_errors: list[BaseException] = []  # which ADK has logged
        self._open: dict[AgentKey, OpenResponse] = {}
        self._replays: dict[tuple[str, str | None, str], _Replay] = {}
        self._settled_contexts: dict[int, ToolContext] = {}
        remaining = list(records)
        for event in paused:
            response = OpenResponse(
                event_id=event.event_id,
                agent_name=event.agent_name,
                branch=event.branch,
                calls=[(call.call_id, call.tool_name) for call in event.calls],
                mixed=event.mixed,
                replayed=not event.tasks_first,
                begun={call.call_id for call in event.calls if call.begun},
                tasks=frozenset(event.tasks),
                tasks_first=event.tasks_first,
                inline=set(event.inline),
                node_path=event.node_path,
            )
            self._open[event.agent_name, event.branch] = response
            self.responses.append(response)
            if event.tasks_first:
                continue
            for call in event.calls:
                record = remaining.pop(0) if call.kind is CallKind.STEP else call.record
                key = (event.agent_name, event.branch, call.call_id)
                self._replays[key] = _Replay(call, record)

    # Agents

    def agent_starts(self, key: AgentKey) -> bool:
        """An agent starts; false if it only goes on."""
        if key in self._earlier_output and key in self.started:
            return False
        self._earlier_output.pop(key, None)
        self._ran.add(key)
        self.started[key] = ""
        return True

    def is_in_its_run(self, name: str) -> bool:
        """Whether an agent of this name has started and not ended, in any branch."""
        return any(started == name for started, _ in self.started)

    def agent_ends(self, key: AgentKey) -> None:
        """An agent has ended; it starts anew if it comes again."""
        self.started.pop(key, None)
        self._earlier_output.pop(key, None)

    def run_fails(self, name: str, branch: str | None) -> None:
        """The run of a node has failed: if it is tried again, its agents start anew."""
        inside = {name, *self.descendants.get(name, ())}
        for key in [k for k in self.started if k[0] in inside and is_within(k[1], branch)]:
            self.agent_ends(key)

    def branch_of(self, event: Event) -> str | None:
        """The branch that the event's agent runs in.

        Below a node, ADK stamps events of agents behind a ParallelAgent with a branch of it.
        """
        if (event.author, event.branch) in self._ran:
            return event.branch
        known = [branch for name, branch in self._ran if name == event.author]
        is_leak = len(known) == 1 and is_within(event.branch, known[0])
        return known[0] if is_leak else event.branch

    def agent_pauses(self, key: AgentKey) -> None:
        """An agent stops here and goes on in a later attempt."""
        self._paused_agents.add(key)

    def agent_yields(self, key: AgentKey) -> None:
        """An agent stops in front of a model call, which the next attempt makes."""
        self._yielding.add(key)
        self.agent_pauses(key)

    def is_paused_within(self, key: AgentKey) -> bool:
        """Whether an agent, or one that runs inside it, has stopped in this attempt."""
        name, branch = key
        below = self.descendants.get(name, ())
        return any(
            (paused == name and at == branch) or (paused in below and is_within(at, branch))
            for paused, at in (*self._paused_agents, *self._ending)
        )

    def branches_end(self, key: AgentKey, names: Sequence[str]) -> None:
        """A ParallelAgent was asked to end: what waits in its branches is given up.

        Args:
            names: Its sub-agents.
        """
        self._ending[key] = names
        lanes = {branch_below(key, name) for name in names}
        inside = set(names).union(*(self.descendants.get(n, ()) for n in names))

        def is_given_up(branch: str | None) -> bool:
            return any(is_within(branch, lane) for lane in lanes)

        given_up = [r for r in self.responses if is_given_up(r.branch) and not r.is_complete]
        self.responses = [r for r in self.responses if r not in given_up]
        self._open = {k: r for k, r in self._open.items() if r not in given_up}
        self.inputs = [item for item in self.inputs if item.author not in inside]
        for keys in (self._paused_agents, self._yielding):
            keys -= {k for k in keys if is_given_up(k[1])}
        for started in [k for k in self.started if is_given_up(k[1])]:
            self.agent_ends(started)
        self.model_calls.give_up(is_given_up)
        for (_, branch, _), replay in self._replays.items():
            replay.taken |= is_given_up(branch)
        self.held.give_up(is_given_up)
        self.faults.give_up(is_given_up)

    def branches_ended(self, key: AgentKey) -> None:
        """The ParallelAgent has ended."""
        self._ending.pop(key, None)

    @property
    def ending(self) -> Mapping[AgentKey, Sequence[str]]:
        """ParallelAgents that were asked to end and could not yet, with their sub-agents.

        ADK lets one whose branch has paused before end only when it goes on.
        """
        return self._ending

    def whole_output(self, key: AgentKey, output: str) -> str:
        """What an agent has said in its whole run, given what it has said in this attempt."""
        whole = self._earlier_output.get(key, "") + output
        if key in self.started:
            self.started[key] = whole
        return whole

    @property
    def pauses(self) -> bool:
        """Whether the run stopped for something that comes in a later attempt."""
        return bool(self.paused_responses() or self.inputs or self._yielding or self._ending)

    def model_call_starts(self, key: AgentKey) -> None:
        """Count a request that really goes out.

        Raises:
            ReplayError: Results that belong into the request are missing from it.
            LlmCallsLimitExceededError: The turn has used up ``RunConfig.max_llm_calls``.
        """
        if self.awaits_replay(key):
            # Without its results the model would be asked the wrong question, and paid for it.
            raise ReplayError(
                f"ADK wants to call the model of agent {key[0]!r} before it has replayed the "
                f"results of "
                f"{', '.join(map(repr, self.unreached()))}"
            )
        self.model_calls.start(key)

    # Tool calls

    def response_opened(
        self,
        event: Event,
        deferrable: set[str],
        control: set[str],
        tasks: set[str],
        inline: set[str],
        *,
        tasks_first: bool,
    ) -> None:
        """An agent's response asks for calls, which ADK handles next.

        Args:
            deferrable: Names of tools that get a Step.
            control: Names of tools that steer ADK itself.
            tasks: Those of them that hand a task to a sub-agent.
            inline: Those of them that run a sub-agent.
            tasks_first: Whether ADK runs the tasks before the other calls.
        """
        calls = [(call.id or "", call.name or "") for call in event.get_function_calls()]
        names = {name for _, name in calls}
        response = OpenResponse(
            event_id=event.id,
            agent_name=event.author,
            branch=event.branch,
            calls=calls,
            mixed=bool(names & deferrable) and bool(names & control),
            tasks=frozenset(call_id for call_id, name in calls if name in tasks),
            tasks_first=tasks_first,
            inline={call_id for call_id, name in calls if name in inline},
            node_path=event.node_info.path,
        )
        self._open[event.author, event.branch] = response
        self.responses.append(response)

    def asks_input(self, event: Event) -> None:
        """An agent or node waits for an answer of the user."""
        for call in event.get_function_calls():
            arguments = dict(call.args or {})
            path = event.node_info.path
            self.inputs.append(PausedInput(call.id or "", event.author, arguments, path))
        self.agent_pauses((event.author, event.branch))

    def open_response(self, key: AgentKey) -> OpenResponse | None:
        """The response that the agent handles now."""
        return self._open.get(key)

    def response_answered(self, event: Event) -> None:
        """ADK has written results of an agent's calls."""
        response = self._open.get((event.author, event.branch))
        if response is not None:
            response.answered |= {item.id or "" for item in event.get_function_responses()}
            response.answers.append(event.id)

    def take_replay(self, key: AgentKey, call_id: str) -> _Replay | None:
        """The stored result of a call; each can be taken once."""
        replay = self._replays.get((*key, call_id))
        if replay is None or replay.taken:
            return None
        replay.taken = True
        return replay

    def is_putting_off(self, key: AgentKey) -> bool:
        """Whether calls of the answer that the agent reads now wait for a later attempt."""
        response = self._open.get(key)
        return response is not None and not response.replayed and bool(response.deferred)

    def replay_of(self, response: OpenResponse, call_id: str) -> _Replay | None:
        """What was stored for a call of a replayed response, taken or not."""
        return self._replays.get((response.agent_name, response.branch, call_id))

    def awaits_replay(self, key: AgentKey) -> bool:
        """Whether stored results of the agent's calls have not been replayed yet."""
        return any(
            name == key[0] and branch == key[1] and not replay.taken
            for (name, branch, _), replay in self._replays.items()
        )

    def awaits_replay_of(self, agent_name: str) -> bool:
        """The same for an agent in any branch."""
        return any(
            name == agent_name and not replay.taken
            for (name, _, _), replay in self._replays.items()
        )

    def unreached(self) -> list[str]:
        """Names of tools whose stored result no call has taken."""
        return [replay.call.tool_name for replay in self._replays.values() if not replay.taken]

    def open_responses(self) -> list[OpenResponse]:
        """Responses whose results ADK has not all written, in the order in which they came."""
        return [r for r in self.responses if not r.is_complete or r.is_left_for_later]

    def is_replayed(self, event: Event) -> bool:
        """Whether the event is a stored response whose calls ADK runs again in this attempt."""
        return any(r.event_id == event.id and r.replayed for r in self.responses)

    def hands_on(self, call_id: str) -> None:
        """ADK runs the task of a call."""
        self._handed_on.add(call_id)

    def lost_tasks(self) -> list[str]:
        """Names of task agents whose calls ADK has passed over."""
        return [
            name
            for response in self.responses
            if response.is_complete
            and not response.tasks & self._handed_on
            and (response.agent_name, response.branch) not in self._yielding
            for call_id, name in response.calls
            if call_id in response.tasks
        ]

    def is_early(self, agent_name: str, call_id: str) -> bool:
        """Whether a call hands on a task beside calls of its response that have no result yet."""
        return any(
            response.agent_name == agent_name
            and call_id in response.tasks
            and not response.is_complete
            for response in self.responses
        )

    def call_settled(self, context: ToolContext) -> None:
        """The answer of this call has been through its ``after_tool_callback`` chain before the
        pause.
        """
        self._settled_contexts[id(context)] = context

    def is_settled(self, context: ToolContext) -> bool:
        """Whether the ``after_tool_callback`` chain must not run again."""
        return id(context) in self._settled_contexts

    def release_contexts(self) -> None:
        """Forget ADK's contexts at the end, and what it has logged. They know this record: while
        it knows them too, the session, with a copy of every event, stays until Python's collector
        of cycles comes.
        """
        self.responses.clear()
        self._open.clear()
        self._settled_contexts.clear()
        self.traced_errors.clear()

    def paused_responses(self) -> list[OpenResponse]:
        """Responses that now wait, in the order in which they came."""
        return [response for response in self.responses if response.deferred]


_current: ContextVar[Attempt | None] = ContextVar("dex_agents_attempt", default=None)


def current_attempt() -> Attempt | None:
    """The attempt whose ADK run the caller is part of."""
    return _current.get()


def enter_attempt(attempt: Attempt) -> None:
    """Make the attempt the current one of this task, which is the attempt's own."""
    _current.set(attempt)


class AttemptInvocationContext(InvocationContext):
    """ADK's invocation context, with the hook that tells when a request really goes out."""

    _attempt: Any = PrivateAttr(default=None)

    @property
    def attempt(self) -> Attempt:
        """The attempt that this invocation is part of."""
        attempt: Attempt = self._attempt
        return attempt

    def increment_llm_call_count(self) -> None:
        """Called by ADK right before each model call."""
        self.attempt.model_call_starts((self.agent.name if self.agent else "", self.branch))
