"""Events that a Workflow writes for a resumption and that nothing reads.

They are written also while an invocation goes on, behind the event that waits for its results, and
ADK then takes that event for answered.
"""

from __future__ import annotations

from collections.abc import Collection

from google.adk.events.event import Event


def is_workflow_marker(event: Event, workflow_names: Collection[str]) -> bool:
    """Whether ``event`` is a checkpoint, an end mark, or a repeated output."""
    if event.content or event.actions.state_delta:
        return False
    state = event.actions.agent_state
    if state is not None and "nodes" in state:
        return True
    if event.actions.end_of_agent and event.author in workflow_names:
        return True
    return event.output is not None and not event.node_info.output_for
