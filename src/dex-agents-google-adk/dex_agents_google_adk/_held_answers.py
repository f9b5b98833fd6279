"""Later parts of a model's answer, held back until the calls of an earlier part have their results.

A model may answer with several complete responses. Plain ADK runs the calls of one before it reads
the next. Here the calls wait for their Steps, so what comes behind them is taken out of the run when
ADK hands it over, and comes in again in place of the agent's next model call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse

from dex_agents_google_adk._actions import actions_to_json, apply_actions
from dex_agents_google_adk._adk_compat import invocation_of
from dex_agents_google_adk._events import dump_event, load_event
from dex_agents_google_adk._json import copy_json
from dex_agents_google_adk._run_state import HeldAnswer

AgentKey = tuple[str, str | None]


class HeldAnswers:
    """What an attempt holds back, those of earlier attempts first."""

    def __init__(self, held: Sequence[HeldAnswer]) -> None:
        self._held = list(held)
        self._taken_out: dict[str, Event] = {}
        self._came_in: set[AgentKey] = set()

    def hold(self, event: Event) -> None:
        """Take an answer out of the run; its event is left empty."""
        self._taken_out[event.id] = event.model_copy()
        self._held.append(HeldAnswer(event.author, event.branch, dump_event(event)))
        event.content = None
        event.long_running_tool_ids = None

    async def take(self, key: AgentKey, context: CallbackContext) -> LlmResponse | None:
        """The agent's next held answer, with what callbacks did to the session state for it.

        ADK would end the agent's run behind an answer without calls, so of several only the last
        such one is handed over; those before it are written here.
        """
        mine = [held for held in self._held if (held.agent_name, held.branch) == key]
        while len(mine) > 1 and not _has_calls(mine[0]):
            self._held.remove(mine[0])
            await _write(mine.pop(0), context)
        if not mine:
            return None
        self._held.remove(mine[0])
        self._came_in.add(key)
        event = load_event(copy_json(mine[0].item))
        apply_actions(context, actions_to_json(event.actions))
        fields = {name: getattr(event, name) for name in LlmResponse.model_fields}
        return LlmResponse.model_construct(**fields)

    def to_show(self, event: Event) -> Event | None:
        """What people who watch see of an event: an answer when the model gives it, not later."""
        key = (event.author, event.branch)
        if key in self._came_in:
            self._came_in.remove(key)
            return None
        return self._taken_out.get(event.id, event)

    def give_up(self, is_given_up: Callable[[str | None], bool]) -> None:
        """Forget those of branches that have ended."""
        self._held = [held for held in self._held if not is_given_up(held.branch)]

    @property
    def rest(self) -> tuple[HeldAnswer, ...]:
        """Those that have not come in."""
        return tuple(self._held)


def _has_calls(held: HeldAnswer) -> bool:
    return bool(load_event(copy_json(held.item)).get_function_calls())


async def _write(held: HeldAnswer, context: CallbackContext) -> None:
    """What the runner does with an event."""
    item = {key: value for key, value in held.item.items() if key not in ("id", "timestamp")}
    event = load_event(copy_json(item))
    invocation = invocation_of(context)
    changed = await invocation.plugin_manager.run_on_event_callback(
        invocation_context=invocation, event=event
    )
    await invocation.session_service.append_event(invocation.session, changed or event)
