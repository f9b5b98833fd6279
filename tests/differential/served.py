"""The Flow whose sessions are the agents of the differential suite, one agent a session id."""

from __future__ import annotations

from pathlib import Path

from google.adk.agents.llm_agent import LlmAgent
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService

from dex_agents import (
    AgentMessage,
    AgentSessionFlow,
    DeferredToolExecution,
    RunModelOutcome,
    RunModelRequest,
    ToolEffect,
    ToolExecutionResult,
)
from dex_agents_google_adk import AdkAgentRunner
from differential.plans import plan_of
from differential.worlds import SessionWorld


def world_file(data_dir: Path, session_id: str) -> Path:
    """What is seen of a session from outside."""
    return data_dir / f"{session_id}.jsonl"


class ManyAgentsRunner:
    """Runs for each session the agent that its id stands for."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._made: dict[str, tuple[AdkAgentRunner, SessionWorld]] = {}
        self._any = AdkAgentRunner(LlmAgent(name="any", model="none"))

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        """See ``AgentFrameworkRunner``."""
        runner, world = self._of(request.session_id)
        world.attempt_begins(request.step_execution_id)
        return await runner.run_model(request)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """See ``AgentFrameworkRunner``."""
        runner, _ = self._of(call.session_id)
        return await runner.execute_deferred_tool_call(call)

    def build_user_message(self, text: str) -> AgentMessage:
        """See ``AgentFrameworkRunner``."""
        return self._any.build_user_message(text)

    def _of(self, session_id: str) -> tuple[AdkAgentRunner, SessionWorld]:
        if session_id not in self._made:
            plan = plan_of(session_id)
            path = world_file(self._data_dir, session_id)
            world = SessionWorld(plan.scripts, path, has_ids=plan.has_ids)
            root = plan.build(world)
            runner = AdkAgentRunner(
                root,
                tool_policies=plan.policies,
                default_tool_effect=ToolEffect.READ,
                run_config=plan.run_config,
                dynamic_agents=plan.dynamic,
                resumable_agents=plan.resumable,
                artifact_service=InMemoryArtifactService(),
            )
            self._made[session_id] = (runner, world)
        return self._made[session_id]


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The Flow of all agents."""
    return AgentSessionFlow(ManyAgentsRunner(data_dir), flow_type="Differential")
