"""The model that ADK calls for an agent.

ADK asks the agent for its model right before each call, which is the one moment at which everything
in front of the call has run. An answer that an attempt before this one got takes its place there.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow

from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning
from dex_agents_google_adk._attempt import AttemptInvocationContext

_NAME = "_get_llm"
_PARAMETERS = ["self", "invocation_context"]
_MARK = "_dex_agents_lookup"


def apply() -> bool:
    """Install the lookup once per process; true if it stands."""
    find: Any = getattr(BaseLlmFlow, _NAME, None)
    if getattr(find, _MARK, False):
        return True
    if find is None or list(inspect.signature(find).parameters) != _PARAMETERS:
        warnings.warn(
            "ADK's lookup of an agent's model has changed; after a crash, models of parallel "
            "branches are asked again although they had answered",
            AdkWorkaroundWarning,
            stacklevel=2,
        )
        return False

    async def look_up(self: BaseLlmFlow, invocation_context: InvocationContext) -> Any:
        model = await find(self, invocation_context)
        if not isinstance(invocation_context, AttemptInvocationContext):
            return model
        agent = invocation_context.agent
        return invocation_context.attempt.answers.model_for(
            agent.name if agent else "", invocation_context.branch, model
        )

    setattr(look_up, _MARK, True)
    setattr(BaseLlmFlow, _NAME, look_up)
    return True
