"""ADK's names of the branches in which agents run side by side."""

from __future__ import annotations

from google.adk.events.event import Event

from dex_agents_google_adk._open_response import AgentKey


def branch_below(parallel: AgentKey, name: str) -> str:
    """The branch of a sub-agent of a ParallelAgent."""
    own, branch = parallel
    return f"{branch}.{own}.{name}" if branch else f"{own}.{name}"


def branch_around(event: Event, parallel: str) -> str | None:
    """The branch in which the ParallelAgent runs of which the event's author is a branch."""
    before, dot, last = f".{event.branch}".rpartition(f".{parallel}.")
    return before[1:] if dot and last == event.author else None


def is_within(inner: str | None, outer: str | None) -> bool:
    """Whether a branch is ``outer`` or lies in it."""
    return not outer or inner == outer or (inner or "").startswith(f"{outer}.")


def are_related(one: str | None, other: str | None) -> bool:
    """Whether one branch lies in the other."""
    return is_within(one, other) or is_within(other, one)
