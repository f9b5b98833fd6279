"""The runner of the adapter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.models.base_llm import BaseLlm
from google.adk.sessions.state import State
from google.adk.workflow import BaseNode

from dex_agents._arguments import check_instance, check_name, check_texts, shown
from dex_agents._contract import (
    AgentMessage,
    CompactionRequest,
    DeferredToolExecution,
    HistorySummary,
    Json,
    RunModelOutcome,
    RunModelRequest,
    ToolExecutionResult,
)
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents._media.reference import ImageReference, MediaStore
from dex_agents._tool_sources.catalog import DEFAULT_LISTING_TIMEOUT, ToolSourceCatalog
from dex_agents._tool_sources.contract import ToolSource
from dex_agents_google_adk import _tool_step, _turn, _validation
from dex_agents_google_adk._adk_version import warn_if_untested
from dex_agents_google_adk._adk_workarounds import (
    agent_callbacks,
    begun_nodes,
    call_ids_of_session,
    contents_in_one_pass,
    contents_on_replay,
    deferred_questions,
    entry_agent_replay,
    finished_chat_nodes,
    leaked_branches,
    mcp_sessions,
    model_lookup,
    nested_node_paths,
    nested_pauses,
    node_retries,
    parallel_pauses,
    plain_history,
    remote_a2a_import,
    replayed_calls,
    replayed_nodes,
    task_delegations,
    unfinished_nodes,
    unheard_telemetry,
    waiting_lanes,
)
from dex_agents_google_adk._artifacts import note_removed
from dex_agents_google_adk._compaction import HistoryWriter
from dex_agents_google_adk._credentials import (
    CredentialBroker,
    CredentialResolver,
    checked_authorization_secret,
    checked_resolver,
)
from dex_agents_google_adk._effects import PolicyResolver
from dex_agents_google_adk._events import USER, dump_event, text_content, to_message, user_event
from dex_agents_google_adk._exit_guard import guard_tool
from dex_agents_google_adk._images import ImageLoader, placeholder
from dex_agents_google_adk._json import copy_json
from dex_agents_google_adk._known_errors import silence_reported_errors
from dex_agents_google_adk._setup import RunnerSetup
from dex_agents_google_adk._source_tools import SourceTools
from dex_agents_google_adk._tree_checks import (
    check_artifact_tools,
    check_tool_nodes,
    make_resumable,
    taken_tool_names,
)


class AdkAgentRunner:
    """Runs one ADK agent tree or Workflow for any number of sessions.

    It keeps nothing of a session between two calls. The agent, its plugins, toolsets and services
    belong to the application, which also closes them.

    Args:
        agent: Root of an agent tree, a ``Workflow``, or an ``App`` whose root is one.
        tool_policies: Policies by tool name.
        default_tool_effect: Effect of a tool that has neither a policy nor ADK metadata.
        run_config: ADK's configuration of every run; by default with SSE streaming.
        user_id: ADK user id of every session.
        artifact_service: Where artifacts live.
        memory_service: Where long-term memory lives.
        credential_service: Where credentials live.
        tools_in_threads: Whether blocking functions of tools run in threads, so that the event loop
            and its heartbeats go on. A thread cannot be stopped: a cancelled call's function runs
            to its end.
        loop_bound_tools: Names of tools whose blocking functions stay on the event loop all the
            same, for example because what they use belongs to one thread.
        tool_threads: Size of ADK's thread pool, where they run should ADK no longer let each have a
            thread of its own.
        dynamic_agents: Agents that nodes run by ``ctx.run_node`` and that stand nowhere in the tree.
        resumable_agents: Names of ``BaseAgent`` subclasses of your own that go on where they
            stopped when ADK starts them again.
        media_store: Where images live; without one, messages take none and images of tools are
            left out.
        summary_model: Model of the calls that sum up older turns; by default that of the tree's
            first agent.
        tool_sources: Tools from outside the agent, listed before every model call. The runner adds
            one toolset to each agent of the tree, which is empty outside its own runs.
        tool_source_listing_timeout: Longest time a source may take to list; whole seconds. One that
            fails or is slower offers nothing in that model call.
        credential_resolver: Gives a tool the credential that it asked for, by the reference that
            a person has answered with; see ``CredentialResolver``. Without one, such a tool fails.
        authorization_secret: At least 32 random bytes, the same in every Worker, from which the
            verifiers of authorizations with PKCE are derived, so that none is stored.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A durable session does not support the agent or the configuration, or a name is
            unknown.
    """

    def __init__(
        self,
        agent: BaseNode | App,
        *,
        tool_policies: Mapping[str, ToolPolicy] | None = None,
        default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
        run_config: RunConfig | None = None,
        user_id: str = "user",
        artifact_service: BaseArtifactService | None = None,
        memory_service: BaseMemoryService | None = None,
        credential_service: BaseCredentialService | None = None,
        tools_in_threads: bool = True,
        loop_bound_tools: Collection[str] = (),
        tool_threads: int = 64,
        dynamic_agents: Collection[BaseAgent] = (),
        resumable_agents: Collection[str] = (),
        media_store: MediaStore | None = None,
        summary_model: str | BaseLlm | None = None,
        tool_sources: Sequence[ToolSource] | None = None,
        tool_source_listing_timeout: timedelta = DEFAULT_LISTING_TIMEOUT,
        credential_resolver: CredentialResolver | None = None,
        authorization_secret: bytes | None = None,
    ) -> None:
        if tool_sources is not None:
            check_instance("tool_sources", tool_sources, Sequence, "list what is a ToolSource")
        app, tree = _validation.checked_app(agent, dynamic_agents, resumable_agents)
        tree.freeze()
        catalog = ToolSourceCatalog(
            tuple(tool_sources or ()), tool_source_listing_timeout, taken_tool_names(tree)
        )
        policies = _validation.checked_policies(tree, tool_policies, catalog.declared_names)
        effect = _validation.checked_effect(default_tool_effect)
        check_name("user_id", user_id)
        if not isinstance(tools_in_threads, bool):
            raise TypeError(
                f"tools_in_threads must be True or False, got {shown(tools_in_threads)}"
            )
        check_texts("loop_bound_tools", loop_bound_tools)
        if isinstance(tool_threads, bool) or not isinstance(tool_threads, int) or tool_threads < 1:
            raise ValueError(f"tool_threads must be a positive integer, got {shown(tool_threads)}")
        _validation.check_names(tree, loop_bound_tools, "loop_bound_tools", catalog.declared_names)
        check_tool_nodes(tree, policies)
        if artifact_service is None:
            check_artifact_tools(tree)
        make_resumable(tree)
        warn_if_untested()
        remote_a2a_import.apply()
        begun_nodes.apply()
        call_ids_of_session.apply()
        unfinished_nodes.apply()
        contents_on_replay.apply()
        contents_in_one_pass.apply()
        deferred_questions.apply()
        entry_agent_replay.apply()
        finished_chat_nodes.apply()
        plain_history.apply()
        agent_callbacks.apply()
        task_delegations.apply()
        leaked_branches.apply()
        mcp_sessions.apply()
        nested_node_paths.apply()
        nested_pauses.apply()
        node_retries.apply()
        parallel_pauses.apply()
        replayed_calls.apply()
        replayed_nodes.apply()
        model_lookup.apply()
        unheard_telemetry.apply()
        waiting_lanes.apply()
        silence_reported_errors()
        self._setup = RunnerSetup(
            app=app,
            tree=tree,
            run_config=_validation.checked_run_config(run_config),
            resolver=PolicyResolver(policies, effect),
            user_id=user_id,
            artifact_service=_validation.checked_service(
                artifact_service, BaseArtifactService, "artifact_service"
            ),
            memory_service=_validation.checked_service(
                memory_service, BaseMemoryService, "memory_service"
            ),
            credential_service=_validation.checked_credential_service(credential_service),
            tools_in_threads=tools_in_threads,
            loop_bound_tools=frozenset(loop_bound_tools),
            tool_threads=tool_threads,
            sources=SourceTools(catalog, policies),
            images=ImageLoader(_validation.checked_service(media_store, MediaStore, "media_store")),
            credentials=CredentialBroker(
                checked_resolver(credential_resolver),
                checked_authorization_secret(authorization_secret),
                user_id,
            ),
        )
        if summary_model is not None and not isinstance(summary_model, (str, BaseLlm)):
            raise TypeError(
                f"summary_model must be a model name or a BaseLlm, got {shown(summary_model)}"
            )
        if isinstance(summary_model, str):
            check_name("summary_model", summary_model)
        self._writer = HistoryWriter(tree, summary_model)
        self._setup.sources.add_to(tree)  # nothing is refused from here on
        if media_store is not None:
            # Its absence is what tells a client that messages take no images.
            self.build_user_message_with_images = _build_user_message_with_images

    @property
    def user_id(self) -> str:
        """ADK user id of every session."""
        return self._setup.user_id

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        """Make one model call and say how the turn goes on; see ``AgentFrameworkRunner``."""
        return await _turn.run_model(self._setup, request)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Run one tool once; see ``AgentFrameworkRunner``."""
        return await guard_tool(_tool_step.execute(self._setup, call))

    @property
    def refuses_compaction(self) -> str:
        """Why no policy may cut the history of its sessions, or empty."""
        app = self._setup.app
        if app.events_compaction_config is None:
            return ""
        return (
            f"App {app.name!r} has an events_compaction_config, and compaction names a policy as "
            f"well; both would cut the same history. Use one of the two"
        )

    def estimated_overhead_tokens(self) -> int:
        """See ``HistoryCompactor``."""
        return self._writer.overhead_tokens

    def blocks_compaction(self, messages: Sequence[AgentMessage]) -> bool:
        """See ``HistoryCompactor``."""
        return self._writer.is_blocked(messages)

    async def summarize(self, request: CompactionRequest) -> HistorySummary:
        """Sum up older turns; see ``HistoryCompactor``."""
        return await self._writer.write(request)

    def build_state_message(self, state: Mapping[str, Json]) -> AgentMessage:
        """An event that sets the state; see ``StateMessageBuilder``."""
        for key in state:
            if key.startswith(State.TEMP_PREFIX):
                raise ValueError(
                    f"{key!r} is of one invocation only and would be gone at once; leave it out, or "
                    f"take the key {key.removeprefix(State.TEMP_PREFIX)!r}"
                )
        event = Event(author=USER, actions=EventActions(state_delta=copy_json(dict(state))))
        return to_message(event, dump_event(event))

    def note_removed(self, note: Json, messages: Sequence[AgentMessage]) -> Json:
        """Artifacts of removed turns; see ``TurnRemover``."""
        return note_removed(note, messages)

    def build_user_message(self, text: str) -> AgentMessage:
        """A user event of ADK with ``text``."""
        event = user_event(text_content(text))
        return to_message(event, dump_event(event))


def _build_user_message_with_images(text: str, images: Sequence[ImageReference]) -> AgentMessage:
    content = text_content(text)
    content.parts = [*(content.parts or []), *map(placeholder, images)]
    event = user_event(content)
    return to_message(event, dump_event(event), images)
