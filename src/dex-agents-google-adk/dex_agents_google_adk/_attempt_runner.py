"""ADK's runner for one attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import ResumabilityConfig
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from dex_agents_google_adk._adk_workarounds import active_agent
from dex_agents_google_adk._attempt import Attempt, AttemptInvocationContext
from dex_agents_google_adk._events_compaction import compacted_view

# Constructed without the validation whose only effect is a warning that the feature is
# experimental.
RESUMABLE = ResumabilityConfig.model_construct(is_resumable=True)


class AttemptRunner(Runner):
    """Plain ADK but for the first agent, the turn's message, the attempt in each context, and
    compaction.
    """

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

    def _find_user_message_for_invocation(
        self, events: list[Event], invocation_id: str
    ) -> types.Content | None:
        # A message to a task that waits for the user joins the invocation of an earlier turn.
        start = self._attempt.turn_starts_at if self._resumed is not None else 0
        return super()._find_user_message_for_invocation(events[start:], invocation_id)

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
        if self.app is None or self.app.events_compaction_config is None:
            return
        await super()._run_post_invocation_compaction(session=compacted_view(session))
