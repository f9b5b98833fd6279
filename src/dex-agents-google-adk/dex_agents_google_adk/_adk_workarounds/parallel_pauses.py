"""Let the branches of a ParallelAgent go on while a ``single_turn`` agent in one of them waits.

A call that runs such an agent stops the agent that made it with an exception. ADK lets it end the
ParallelAgent, which cancels the branches beside it in the middle of what they do: model calls that are
paid for, and sub-agents that have finished and whose answer nobody has read yet.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Any

from google.adk.agents import parallel_agent
from google.adk.events.event import Event
from google.adk.workflow._errors import NodeInterruptedError

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt

_Run = AsyncGenerator[Event, None]


def _guarded(merge: Any) -> Any:
    async def guarded(
        agent_runs: Sequence[_Run], sub_agent_names: Collection[str] | None = None
    ) -> _Run:
        interrupted: list[NodeInterruptedError] = []
        runs = list(agent_runs)
        if current_attempt() is not None:
            runs = [_to_its_end(run, interrupted) for run in runs]
        async with aclosing(merge(runs, sub_agent_names)) as merged:
            async for event in merged:
                yield event
        if interrupted:
            raise interrupted[0]

    return guarded


async def _to_its_end(run: _Run, interrupted: list[NodeInterruptedError]) -> _Run:
    try:
        async with aclosing(run):
            async for event in run:
                yield event
    except NodeInterruptedError as error:
        interrupted.append(error)


PATCHES = (
    Patch(
        (parallel_agent,),
        "_merge_agent_run",
        ("agent_runs", "sub_agent_names"),
        inspect.isasyncgenfunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's way to run branches side by side has changed; a single_turn agent that waits in a "
        "branch may fail its turn in a durable session",
    )
