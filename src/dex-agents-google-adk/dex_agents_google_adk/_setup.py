"""What a runner is made of; immutable, shared by all attempts of a process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from google.adk.agents.run_config import RunConfig, ToolThreadPoolConfig
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.memory.base_memory_service import BaseMemoryService

from dex_agents_google_adk._credentials import CredentialBroker
from dex_agents_google_adk._effects import PolicyResolver
from dex_agents_google_adk._history import HistoryCache
from dex_agents_google_adk._images import ImageLoader
from dex_agents_google_adk._source_tools import SourceTools
from dex_agents_google_adk._tree import AgentTree


@dataclass(frozen=True)
class RunnerSetup:
    """The agent, its services and settings.

    Attributes:
        app: The application's App, without our plugins.
        tree: Its root and everything below.
        run_config: Configuration of every run.
        resolver: Effects of tools.
        user_id: ADK user id of every session.
        tools_in_threads: Whether blocking functions of tools run in threads.
        loop_bound_tools: Names of tools whose functions stay on the event loop.
        tool_threads: Size of ADK's thread pool, see :class:`AdkAgentRunner`.
        images: The session's images.
        sources: Tools that come from outside the agent.
        credentials: What tools ask credentials of.
    """

    app: App
    tree: AgentTree
    run_config: RunConfig
    resolver: PolicyResolver
    user_id: str
    artifact_service: BaseArtifactService | None
    memory_service: BaseMemoryService | None
    credential_service: BaseCredentialService | None
    tools_in_threads: bool
    loop_bound_tools: Collection[str]
    tool_threads: int
    images: ImageLoader
    sources: SourceTools
    credentials: CredentialBroker = field(default_factory=CredentialBroker)
    history: HistoryCache = field(default_factory=HistoryCache)

    def runs_in_thread(self, tool_name: str) -> bool:
        """Whether the tool's blocking functions leave the event loop free."""
        return self.tools_in_threads and tool_name not in self.loop_bound_tools

    def step_run_config(self, tool_name: str) -> RunConfig:
        """The configuration for one tool's Step."""
        threads: ToolThreadPoolConfig | None = None
        if self.runs_in_thread(tool_name):
            threads = self.run_config.tool_thread_pool_config or ToolThreadPoolConfig(
                max_workers=self.tool_threads
            )
        return self.run_config.model_copy(update={"tool_thread_pool_config": threads})
