"""The model that ADK calls for an agent.

ADK asks the agent for its model right before each call, which is the one moment at which everything
in front of the call has run. An answer that an attempt before this one got takes its place there.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import AttemptInvocationContext


def _guarded(find: Any) -> Any:
    async def guarded(self: BaseLlmFlow, invocation_context: InvocationContext) -> Any:
        model = await find(self, invocation_context)
        if not isinstance(invocation_context, AttemptInvocationContext):
            return model
        agent = invocation_context.agent
        return invocation_context.attempt.answers.model_for(
            agent.name if agent else "", invocation_context.branch, model
        )

    return guarded


PATCHES = (
    Patch(
        (BaseLlmFlow,),
        "_get_llm",
        ("self", "invocation_context"),
        inspect.iscoroutinefunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the lookup; true if it stands."""
    return install(
        PATCHES,
        "ADK's lookup of an agent's model has changed; after a crash, models of parallel branches "
        "are asked again although they had answered",
    )
