"""Do not build a request that ADK throws away.

When an invocation goes on after its tool calls, ADK's first step replays the calls. It runs every
request processor before it finds that out, and the largest one, which turns the whole history into
contents, runs again for the model call right after. For a long session that is most of the cost of
going on.

The contents processor is one object that all flows share. Its ``run_async`` gets a guard that
returns at once while the attempt still has results to replay for the agent; every other use of ADK
in the process passes through.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.flows.llm_flows.context import _contents
from google.adk.models.llm_request import LlmRequest

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import AttemptInvocationContext

_RunAsync = Callable[[InvocationContext, LlmRequest], AsyncGenerator[Event, None]]


def _guarded(run_async: _RunAsync) -> _RunAsync:
    async def guarded(
        invocation_context: InvocationContext, llm_request: LlmRequest
    ) -> AsyncGenerator[Event, None]:
        if _replays(invocation_context):
            return
        async for event in run_async(invocation_context, llm_request):
            yield event

    return guarded


def _replays(context: InvocationContext) -> bool:
    if not isinstance(context, AttemptInvocationContext) or context.agent is None:
        return False
    return context.attempt.awaits_replay((context.agent.name, context.branch))


PATCHES = (
    Patch(
        (getattr(_contents, "request_processor", None),),
        "run_async",
        ("invocation_context", "llm_request"),
        inspect.isasyncgenfunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's contents processor has changed; durable sessions build each request twice after "
        "tool calls",
    )
