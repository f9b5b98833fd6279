"""Where each composite agent of an open invocation stands.

ADK restores that only for composite roots, and there under the wrong name: it keys the states by
node path, which it stamps on the events of all nested agents alike. So a SequentialAgent below a
node starts over, and a ParallelAgent runs finished branches again. And what an agent that begins
another time forgets of its earlier run, as in the second round of a loop, ADK has in memory only.
"""

from __future__ import annotations

from collections.abc import Collection

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event

from dex_agents_google_adk._attempt import Attempt, AttemptInvocationContext
from dex_agents_google_adk._events import USER


def begin(agent: BaseAgent, context: AttemptInvocationContext) -> None:
    """An agent begins anew: where it and all below it stood in an earlier run is over."""
    if isinstance(agent, LlmAgent) or not agent.sub_agents:
        return
    attempt = context.attempt
    _forget(context, {agent.name, *attempt.descendants.get(agent.name, ())})
    # Calls and answers of a response that waits may not be stored as they are.
    kept = (e for e in reversed(context.session.events) if not _has_calls(e))
    if (last := next(kept, None)) is not None:
        attempt.began_behind[agent.name, context.branch] = last.id


def restore(context: InvocationContext, attempt: Attempt) -> None:
    """Set the states of all agents from the events of the invocation, by author."""
    context.agent_states.clear()
    context.end_of_agents.clear()
    rounds: dict[str, int] = {}
    is_node_run = context._event_queue is not None
    for event in context._get_events(current_invocation=True):
        if event.author != USER:
            _restore_from(event, context, attempt, rounds, is_node_run)
        for key in attempt.started:
            if attempt.began_behind.get(key) == event.id:
                name, _ = key
                _forget(context, {name, *attempt.descendants.get(name, ())})


def _restore_from(
    event: Event,
    context: InvocationContext,
    attempt: Attempt,
    rounds: dict[str, int],
    is_node_run: bool,
) -> None:
    states, ended = context.agent_states, context.end_of_agents
    name, state = event.author, event.actions.agent_state
    if event.actions.end_of_agent:
        ended[name] = True
        states.pop(name, None)
    elif state is not None:
        states[name] = state
        ended[name] = False
        # A run state of an older release does not say where the agents below began.
        if (number := state.get("times_looped")) is not None:
            if number > rounds.get(name, 0):
                below = attempt.descendants.get(name, ())
                _forget(context, below)
                for inner in below:
                    rounds.pop(inner, None)
            rounds[name] = number
    elif (
        event.content
        and not states.get(name)
        and not (is_node_run and event.node_info.name == name)
    ):
        states[name] = {}
        ended[name] = False


def _forget(context: InvocationContext, names: Collection[str]) -> None:
    for name in names:
        context.agent_states.pop(name, None)
        context.end_of_agents.pop(name, None)


def _has_calls(event: Event) -> bool:
    return bool(event.get_function_calls() or event.get_function_responses())
