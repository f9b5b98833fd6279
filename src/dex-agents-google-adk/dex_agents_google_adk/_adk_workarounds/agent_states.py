"""Where each composite agent of an open invocation stands.

ADK restores that only for composite roots, and there under the wrong name: it keys the states by
node path, which it stamps on the events of all nested agents alike. So a SequentialAgent below a
node starts over, and a ParallelAgent runs finished branches again. A LoopAgent moreover resets its
sub-agents between two rounds in memory only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from google.adk.agents.invocation_context import InvocationContext

from dex_agents_google_adk._events import USER


def restore(context: InvocationContext, descendants: Mapping[str, Collection[str]]) -> None:
    """Set the states of all agents from the events of the invocation, by author."""
    states, ended = context.agent_states, context.end_of_agents
    states.clear()
    ended.clear()
    rounds: dict[str, int] = {}
    is_node_run = context._event_queue is not None
    for event in context._get_events(current_invocation=True):
        name = event.author
        if name == USER:
            continue
        state = event.actions.agent_state
        if event.actions.end_of_agent:
            ended[name] = True
            states.pop(name, None)
        elif state is not None:
            states[name] = state
            ended[name] = False
            if (number := state.get("times_looped")) is not None:
                if number > rounds.get(name, 0):
                    for inner in descendants.get(name, ()):
                        states.pop(inner, None)
                        ended.pop(inner, None)
                        rounds.pop(inner, None)
                rounds[name] = number
        elif (
            event.content
            and not states.get(name)
            and not (is_node_run and event.node_info.name == name)
        ):
            states[name] = {}
            ended[name] = False
