"""Agents with run loops of their own, written as ADK lets an application write them.

Those with sub-agents go on where they stopped: they load their state, and mark each place they come
to. Without resumability, as in a plain ``Runner``, they mark nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from google.adk.agents.base_agent import BaseAgent, BaseAgentState
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from dex_agents._contract import Json

Events = AsyncGenerator[Event, None]


class Place(BaseAgentState):
    """Where an agent with sub-agents is.

    Attributes:
        index: Which sub-agent it runs.
        round: How often it has begun again.
        chosen: The name of the sub-agent that it chose.
    """

    index: int = 0
    round: int = 0
    chosen: str = ""


@dataclass
class Pause:
    """Whether a sub-agent waits, so that the agent around it stops as well."""

    is_asked: bool = False


class OwnLoop(BaseAgent):
    """What the run loops below have in common."""

    def own(
        self,
        ctx: InvocationContext,
        text: str = "",
        *,
        escalate: bool = False,
        state: Mapping[str, Json] | None = None,
    ) -> Event:
        """An event of the agent itself."""
        content = types.Content(role="model", parts=[types.Part(text=text)]) if text else None
        return Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            branch=ctx.branch,
            content=content,
            actions=EventActions(state_delta=dict(state or {}), escalate=escalate or None),
        )

    async def mark(self, ctx: InvocationContext, place: Place | None) -> Events:
        """Note where the agent is; ``None`` is its end."""
        if ctx.is_resumable:
            ctx.set_agent_state(self.name, agent_state=place, end_of_agent=place is None)
            yield self._create_agent_state_event(ctx)

    async def in_order(
        self, ctx: InvocationContext, place: Place, pause: Pause, *, is_resumed: bool
    ) -> Events:
        """Run the sub-agents from a place on, until one of them waits."""
        for index in range(place.index, len(self.sub_agents)):
            if not is_resumed:
                async for event in self.mark(ctx, Place(index=index, round=place.round)):
                    yield event
            is_resumed = False
            async with aclosing(self.sub_agents[index].run_async(ctx)) as events:
                async for event in events:
                    yield event
                    pause.is_asked = pause.is_asked or ctx.should_pause_invocation(event)
            if pause.is_asked:
                return


class Stamp(OwnLoop):
    """Says how often it has run, and counts it in the state."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        count = ctx.session.state.get(f"{self.name}_runs", 0) + 1
        yield self.own(ctx, f"stamp {count}", state={f"{self.name}_runs": count})


class Judge(OwnLoop):
    """Escalates when a key of the state has a value."""

    key: str
    value: str

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        yield self.own(ctx, escalate=ctx.session.state.get(self.key) == self.value)


class InOrder(OwnLoop):
    """Runs its sub-agents one after the other, with a word of its own before and behind them."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        place = self._load_agent_state(ctx, Place)
        if place is None:
            yield self.own(ctx, f"{self.name} begins", state={f"{self.name}_begun": True})
        pause, is_resumed = Pause(), place is not None
        running = self.in_order(ctx, place or Place(), pause, is_resumed=is_resumed)
        async with aclosing(running) as events:
            async for event in events:
                yield event
        if pause.is_asked:
            return
        yield self.own(ctx, f"{self.name} ends")
        async for event in self.mark(ctx, None):
            yield event


class Router(OwnLoop):
    """Runs its second sub-agent if the state has a key when it begins, else its first."""

    key: str

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        place = self._load_agent_state(ctx, Place)
        if place is None:
            place = Place(chosen=self.sub_agents[self.key in ctx.session.state].name)
            async for event in self.mark(ctx, place):
                yield event
        (agent,) = (agent for agent in self.sub_agents if agent.name == place.chosen)
        paused = False
        async with aclosing(agent.run_async(ctx)) as events:
            async for event in events:
                yield event
                paused = paused or ctx.should_pause_invocation(event)
        if not paused:
            async for event in self.mark(ctx, None):
                yield event


class Rounds(OwnLoop):
    """Runs its sub-agents until a key of the state has a value.

    Attributes:
        resets: Whether it tells ADK when they shall begin anew, as ``LoopAgent`` does.
    """

    key: str
    value: str
    resets: bool = True

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        place = self._load_agent_state(ctx, Place)
        is_resumed = place is not None
        place = place or Place()
        while is_resumed or ctx.session.state.get(self.key) != self.value:
            pause = Pause()
            running = self.in_order(ctx, place, pause, is_resumed=is_resumed)
            async with aclosing(running) as events:
                async for event in events:
                    yield event
            if pause.is_asked:
                return
            is_resumed = False
            place = Place(round=place.round + 1)
            if self.resets:
                ctx.reset_sub_agent_states(self.name)
            yield self.own(ctx, f"round {place.round} done")
        async for event in self.mark(ctx, None):
            yield event


class Wrapper(OwnLoop):
    """Runs one sub-agent, signs its events, and says its last words in capitals."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        if self._load_agent_state(ctx, Place) is None:
            async for event in self.mark(ctx, Place()):
                yield event
        paused = False
        async with aclosing(self.sub_agents[0].run_async(ctx)) as events:
            async for event in events:
                yield self._wrapped(event)
                paused = paused or ctx.should_pause_invocation(event)
        if not paused:
            async for event in self.mark(ctx, None):
                yield event

    def _wrapped(self, event: Event) -> Event:
        if event.content is None or event.partial:
            return event
        signed = event.model_copy(deep=True)
        signed.custom_metadata = {**(event.custom_metadata or {}), "signed by": self.name}
        if event.is_final_response() and signed.content:
            for part in signed.content.parts or []:
                part.text = part.text and part.text.upper()
        return signed


class Countdown(OwnLoop):
    """Has no sub-agents and still goes on where it stopped: each number is said once in a turn."""

    numbers: int = 3

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        place = self._load_agent_state(ctx, Place) or Place()
        for index in range(place.index, self.numbers):
            yield self.own(ctx, f"{self.numbers - index}", state={f"{self.name}_at": index})
            async for event in self.mark(ctx, Place(index=index + 1)):
                yield event
        async for event in self.mark(ctx, None):
            yield event


def described(kind: type[BaseAgent], name: str, *agents: BaseAgent, **fields: Any) -> Any:
    """An agent of that class that others may hand over to."""
    return kind(name=name, description=name, sub_agents=list(agents), **fields)


class Careless(OwnLoop):
    """Loads its state, but goes on to the next sub-agent while one waits."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        place = self._load_agent_state(ctx, Place) or Place()
        for index in range(place.index, len(self.sub_agents)):
            async for event in self.mark(ctx, Place(index=index)):
                yield event
            async for event in self.sub_agents[index].run_async(ctx):
                yield event
        async for event in self.mark(ctx, None):
            yield event


class Hiding(OwnLoop):
    """Runs an agent that is none of its sub-agents."""

    hidden: BaseAgent

    async def _run_async_impl(self, ctx: InvocationContext) -> Events:
        yield self.own(ctx, f"{self.name} begins")
        async for event in self.hidden.run_async(ctx):
            yield event
        yield self.own(ctx, f"{self.name} ends")
