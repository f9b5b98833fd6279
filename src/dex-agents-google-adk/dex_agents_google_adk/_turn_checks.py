"""What must hold of an attempt's records, progress and end; else the turn fails visibly."""

from __future__ import annotations

from collections.abc import Sequence

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event

from dex_agents._contract import ToolCallRecord
from dex_agents._errors import AgentTurnError, ModelCallError
from dex_agents_google_adk._adk_compat import CREDENTIAL_CALL, FRAMEWORK_CALLS
from dex_agents_google_adk._attempt import Attempt, ReplayError
from dex_agents_google_adk._events import USER, shown_text
from dex_agents_google_adk._model_errors import classify_answer
from dex_agents_google_adk._run_state import CallKind, PausedEvent
from dex_agents_google_adk._tree import AgentTree


def check_records(paused: Sequence[PausedEvent], records: Sequence[ToolCallRecord]) -> None:
    """The records are those of the calls that the turn waits for.

    Raises:
        AgentTurnError: They are not.
    """
    expected = [call for event in paused for call in event.calls if call.kind is CallKind.STEP]
    if [(call.call_id, call.tool_name) for call in expected] != [
        (record.call_id, record.tool_name) for record in records
    ]:
        raise AgentTurnError(
            f"the turn waits for the results of {[call.tool_name for call in expected]}, but got "
            f"those of "
            f"{[record.tool_name for record in records]}"
        )


def check_waiting_agents(tree: AgentTree, paused: Sequence[PausedEvent]) -> None:
    """The agents whose calls have results now are still there.

    Raises:
        AgentTurnError: One is not, so that no other agent is asked in its place.
    """
    for event in paused:
        if tree.find_llm_agent(event.agent_name, event.node_path) is None:
            called = ", ".join(repr(call.tool_name) for call in event.calls)
            raise AgentTurnError(
                f"the turn waited for {called} of agent {event.agent_name!r}, which is not in the agent "
                f"tree any more: a later release has renamed or removed it. What ran is recorded; "
                f"send a message to go on"
            )


def check_replayed(attempt: Attempt, tree: AgentTree) -> None:
    """Every stored result was taken.

    Raises:
        ReplayError: One was not.
    """
    if not (missing := attempt.unreached()):
        return
    own = sorted(agent.name for agent in tree.own_loop_agents)
    advice = (
        f". An agent with a run loop of its own (here {', '.join(map(repr, own))}) must go on "
        "after a pause with the sub-agent that waits, and with nothing before that"
    )
    raise ReplayError(
        f"ADK went on without the results of {', '.join(map(repr, missing))}; nothing was "
        f"lost, but the turn cannot go on{advice if own else ''}"
    )


def check_progress(attempt: Attempt, events: Sequence[Event], before: int) -> None:
    """A run that goes on has done something.

    Args:
        before: Number of events that the turn had before this attempt.

    Raises:
        ReplayError: It has not.
    """
    if attempt.model_calls or len(events) > before or attempt.paused_responses():
        return
    if not attempt.inputs:
        raise ReplayError(
            "ADK made no progress: it neither asked a model nor ran what the turn waits for"
        )


def check_tasks(attempt: Attempt) -> None:
    """Every task that was handed on is run.

    Raises:
        AgentTurnError: ADK has passed one over.
    """
    if lost := attempt.lost_tasks():
        raise AgentTurnError(
            f"ADK left the agent that called {', '.join(map(repr, lost))} without running it, "
            f"because of another call of the same response; nothing ran instead of it"
        )


def _check_complete(tree: AgentTree, events: Sequence[Event], answered: set[str | None]) -> None:
    """A cancellation that a callback raises looks to ADK like an end."""
    lost = [
        call.name
        for event in events
        for call in event.get_function_calls()
        if call.id not in answered
        # A task may wait for the user's next message, so its call stays open.
        and call.name not in tree.task_names
        and not (tree.parallel_agents and event.branch)
    ]
    if lost:
        raise AgentTurnError(
            f"the run ended without the results of {', '.join(map(str, lost))}; what ran is "
            f"recorded"
        )


def check_end(attempt: Attempt, tree: AgentTree, events: Sequence[Event]) -> None:
    """A run that ended has an answer.

    Raises:
        AgentTurnError: It has none, or lost something.
        ModelCallError: It has none, and asking the model again may give one.
    """
    if attempt.held.rest:
        raise AgentTurnError(
            "the run ended before a later part of the model's answer came in; what ran is recorded"
        )
    answered = {item.id for event in events for item in event.get_function_responses()}
    if paused := [
        call.name
        for event in events
        for call in event.get_function_calls()
        if (event.long_running_tool_ids or call.name in FRAMEWORK_CALLS) and call.id not in answered
    ]:
        if CREDENTIAL_CALL in paused:
            raise AgentTurnError(
                "a toolset of the agent needs a credential before its tools can be listed, "
                "which a session cannot wait for; give it through credential_service"
            )
        raise AgentTurnError(
            f"ADK paused for {', '.join(map(str, paused))}, which a durable session does not "
            f"support yet"
        )
    _check_complete(tree, events, answered)
    last = next((event for event in reversed(events) if event.author != USER), None)
    if last is not None and last.error_code and not _has_answer(last):
        raise classify_answer(last.error_code, last.error_message)
    if attempt.model_calls.has_silent_call:
        raise ModelCallError("the model gave no content")
    if isinstance(tree.root, LlmAgent) and all(e.author == USER for e in events):
        raise ModelCallError("the run ended before the agent said anything")


def _has_answer(event: Event) -> bool:
    return bool(shown_text(event.content).strip() or event.get_function_calls())
