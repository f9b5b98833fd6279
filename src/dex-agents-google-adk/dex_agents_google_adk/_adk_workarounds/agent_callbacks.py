"""Run the callbacks around an agent once per turn.

ADK runs ``before_agent_callback`` whenever it starts an agent, so also when it goes on with one
after a pause, and ``after_agent_callback`` of every agent around one that pauses. The two methods
that run them get a guard; it asks the attempt of the invocation, and lets every other use of ADK
in the process pass through.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event

from dex_agents_google_adk._adk_workarounds import agent_states
from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._adk_workarounds.escalation import repeated_escalation
from dex_agents_google_adk._adk_workarounds.single_turn_input import put_back_input
from dex_agents_google_adk._attempt import AttemptInvocationContext

_Handler = Callable[[BaseAgent, InvocationContext], Awaitable[Event | None]]


def _guarded_before(handler: _Handler) -> _Handler:
    async def guarded(self: BaseAgent, ctx: InvocationContext) -> Event | None:
        if not isinstance(ctx, AttemptInvocationContext):
            return await handler(self, ctx)
        put_back_input(self, ctx)
        if not ctx.attempt.agent_starts((self.name, ctx.branch)):
            return repeated_escalation(self, ctx)
        agent_states.begin(self, ctx)
        return await handler(self, ctx)

    return guarded


def _guarded_after(handler: _Handler) -> _Handler:
    async def guarded(self: BaseAgent, ctx: InvocationContext) -> Event | None:
        if not isinstance(ctx, AttemptInvocationContext):
            return await handler(self, ctx)
        key = (self.name, ctx.branch)
        if ctx.attempt.is_paused_within(key):
            return None
        event = await handler(self, ctx)
        ctx.attempt.agent_ends(key)
        return event

    return guarded


PATCHES = (
    Patch(
        (BaseAgent,),
        "_handle_before_agent_callback",
        ("self", "ctx"),
        inspect.iscoroutinefunction,
        _guarded_before,
    ),
    Patch(
        (BaseAgent,),
        "_handle_after_agent_callback",
        ("self", "invocation_context"),
        inspect.iscoroutinefunction,
        _guarded_after,
    ),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    return install(
        PATCHES,
        "ADK's handling of agent callbacks has changed; callbacks around an agent run again "
        "whenever a durable session goes on after a pause",
    )
