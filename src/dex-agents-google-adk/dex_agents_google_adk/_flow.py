"""The session Flow of an ADK agent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.models.base_llm import BaseLlm
from google.adk.workflow import BaseNode

from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents._tool_sources.catalog import DEFAULT_LISTING_TIMEOUT
from dex_agents._tool_sources.contract import ToolSource
from dex_agents_google_adk._credentials import CredentialResolver
from dex_agents_google_adk._runner import AdkAgentRunner

if TYPE_CHECKING:
    from dex_agents import AgentSessionFlow, AgentSessionOptions, CompactionPolicy, MediaStore

_TEN_MIB = 10 * 1024 * 1024


def adk_agent_session_flow(
    agent: BaseNode | App,
    *,
    flow_type: str,
    tool_policies: Mapping[str, ToolPolicy] | None = None,
    default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
    interrupt_deadline: timedelta | None = None,
    event_stream_capacity_bytes: int = _TEN_MIB,
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
    compaction: CompactionPolicy | None = None,
    summary_model: str | BaseLlm | None = None,
    tool_sources: Sequence[ToolSource] | None = None,
    tool_source_listing_timeout: timedelta = DEFAULT_LISTING_TIMEOUT,
    credential_resolver: CredentialResolver | None = None,
    authorization_secret: bytes | None = None,
    options: AgentSessionOptions | None = None,
) -> AgentSessionFlow:
    """The Flow whose executions are durable sessions of ``agent``.

    Build it once per agent, in each process that starts sessions, runs them or asks for their
    state.

    Args:
        agent: Root of an agent tree, a ``Workflow``, or an ``App`` whose root is one.
        flow_type: Flow type of the sessions, unique in the Registry; keep it stable.
        tool_policies: Policies by tool name.
        default_tool_effect: Effect of a tool that has neither a policy nor ADK metadata.
        interrupt_deadline: How long an approval may stay pending; without end by default.
        event_stream_capacity_bytes: Byte budget of the live events of all sessions of the Flow type.
        run_config: ADK's configuration of every run; by default with SSE streaming.
        user_id: ADK user id of every session.
        artifact_service: Where artifacts live.
        memory_service: Where long-term memory lives.
        credential_service: Where credentials live.
        tools_in_threads: See :class:`AdkAgentRunner`.
        loop_bound_tools: See :class:`AdkAgentRunner`.
        tool_threads: See :class:`AdkAgentRunner`.
        dynamic_agents: See :class:`AdkAgentRunner`.
        resumable_agents: See :class:`AdkAgentRunner`.
        media_store: See :class:`AdkAgentRunner`.
        compaction: When older turns are replaced by a summary; never by default.
        summary_model: See :class:`AdkAgentRunner`.
        tool_sources: See :class:`AdkAgentRunner`.
        tool_source_listing_timeout: See :class:`AdkAgentRunner`.
        credential_resolver: See :class:`AdkAgentRunner`.
        authorization_secret: See :class:`AdkAgentRunner`.
        options: Options of the session.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A durable session does not support the agent or the configuration, or a name is
            unknown.
    """
    from dex_agents import AgentSessionFlow

    runner = AdkAgentRunner(
        agent,
        tool_policies=tool_policies,
        default_tool_effect=default_tool_effect,
        run_config=run_config,
        user_id=user_id,
        artifact_service=artifact_service,
        memory_service=memory_service,
        credential_service=credential_service,
        tools_in_threads=tools_in_threads,
        loop_bound_tools=loop_bound_tools,
        tool_threads=tool_threads,
        dynamic_agents=dynamic_agents,
        resumable_agents=resumable_agents,
        media_store=media_store,
        summary_model=summary_model,
        tool_sources=tool_sources,
        tool_source_listing_timeout=tool_source_listing_timeout,
        credential_resolver=credential_resolver,
        authorization_secret=authorization_secret,
    )
    return AgentSessionFlow(
        runner,
        flow_type=flow_type,
        options=options,
        interrupt_deadline=interrupt_deadline,
        event_stream_capacity_bytes=event_stream_capacity_bytes,
        compaction=compaction,
    )
