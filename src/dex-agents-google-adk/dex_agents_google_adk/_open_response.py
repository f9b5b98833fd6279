"""A model's response whose calls have no results yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from google.adk.tools.tool_context import ToolContext

from dex_agents._contract import InterruptRequest, Json
from dex_agents._effects import ToolEffect
from dex_agents_google_adk._actions import actions_to_json

AgentKey = tuple[str, str | None]
"""An agent and the branch it runs in."""


@dataclass
class DeferredCall:
    """A call that the attempt put off.

    Attributes:
        step_fields: More fields of the requested call, as its tool source has decided.
        framework_data: More data for its Step.
    """

    tool_name: str
    native: bool
    arguments: dict[str, Json] = field(default_factory=dict)
    arguments_changed: bool = False
    effect: ToolEffect = ToolEffect.UNCLASSIFIED
    requires_approval: bool = False
    interrupt: InterruptRequest | None = None
    skip_summarization: bool | None = None
    step_fields: dict[str, Any] = field(default_factory=dict)
    framework_data: dict[str, Json] = field(default_factory=dict)


@dataclass
class OpenResponse:
    """The model response whose calls an agent handles now.

    Attributes:
        mixed: Whether control tools stand beside calls that get a Step.
        replayed: Whether the calls come from the run state instead of a new response.
        tasks: Ids of calls that hand a task to a sub-agent.
        tasks_first: Whether ADK runs those tasks before it looks at the other calls.
        inline: Ids of calls that run a sub-agent and have not ended in this attempt.
        actions: What callbacks did to each call's context before the pause.
        begun: Ids of calls that run a sub-agent and whose callbacks have had their say.
        answered: Ids of calls whose results ADK has written.
        answers: Ids of the events that hold them.
    """

    event_id: str
    agent_name: str
    branch: str | None
    calls: list[tuple[str, str]]
    mixed: bool = False
    replayed: bool = False
    begun: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    answers: list[str] = field(default_factory=list)
    tasks: frozenset[str] = frozenset()
    tasks_first: bool = False
    inline: set[str] = field(default_factory=set)
    node_path: str = ""
    contexts: dict[str, ToolContext] = field(default_factory=dict)
    deferred: dict[str, DeferredCall] = field(default_factory=dict)
    inline_ended: asyncio.Event = field(default_factory=asyncio.Event)
    actions: dict[str, dict[str, Json]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether ADK has written every result that it writes before it hands on tasks or asks the
        model again.
        """
        return self._hands_on_now or self._is_answered

    @property
    def is_left_for_later(self) -> bool:
        """Whether ADK runs the tasks now, and the other calls when they are done."""
        return self._hands_on_now and not self._is_answered

    @property
    def _hands_on_now(self) -> bool:
        return self.tasks_first and not self.deferred

    @property
    def _is_answered(self) -> bool:
        return all(call_id in self.answered | self.tasks for call_id, _ in self.calls)

    def inline_ends(self, call_id: str) -> None:
        """A call that runs a sub-agent has ended, whatever its result."""
        self.inline.discard(call_id)
        if not self.inline:
            self.inline_ended.set()

    async def wait_for_inline(self) -> None:
        """Wait for all calls that run a sub-agent; if one of them pauses, ADK cancels this."""
        if self.inline:
            await self.inline_ended.wait()

    def keep_actions(self) -> None:
        """Keep what callbacks did, before appending the placeholder event trims ``temp:`` keys
        away.
        """
        for call_id, context in self.contexts.items():
            kept = actions_to_json(context.actions)
            if (call := self.deferred.get(call_id)) is not None:
                kept.pop("skip_summarization", None)
                if call.skip_summarization is not None:
                    kept["skip_summarization"] = call.skip_summarization
            self.actions[call_id] = kept
