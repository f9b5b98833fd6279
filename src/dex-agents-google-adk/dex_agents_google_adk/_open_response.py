"""A model's response whose calls have no results yet."""

from __future__ import annotations

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
    node_path: str = ""
    contexts: dict[str, ToolContext] = field(default_factory=dict)
    deferred: dict[str, DeferredCall] = field(default_factory=dict)
    actions: dict[str, dict[str, Json]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether ADK has written every result that it writes before it asks the model again.

        A response that only hands on tasks is ADK's own business: it comes back to it by itself.
        """
        if self.tasks and not self.deferred and not self.replayed:
            return True
        return all(call_id in self.answered | self.tasks for call_id, _ in self.calls)

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
