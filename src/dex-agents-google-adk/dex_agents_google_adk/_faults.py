"""Answers of a model that are of no use: asked for again, with what was wrong, a bounded number of times.

Plain ADK takes a malformed call or an empty answer for the agent's end and goes on without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents._errors import AgentTurnError
from dex_agents_google_adk._events import USER, shown_text
from dex_agents_google_adk._model_errors import PASSING_CODES
from dex_agents_google_adk._run_state import Fault

MAX_ANSWERS = 3
"""Answers in a row that may be of no use."""
NO_CONTENT = "the model gave no content"


def fault_of(response: LlmResponse, *, has_answered: bool) -> str:
    """What is wrong with a complete response, or empty.

    Args:
        has_answered: Whether the same model call has given something else before.
    """
    content = response.content
    parts = (content.parts if content else None) or []
    if response.error_code is not None:
        code = str(getattr(response.error_code, "value", response.error_code))
        is_answer = bool(shown_text(content).strip()) or any(part.function_call for part in parts)
        if is_answer or code not in PASSING_CODES:
            return ""
        return f"{code}: {response.error_message}" if response.error_message else code
    is_end = response.finish_reason is not None and not parts
    return NO_CONTENT if is_end and not has_answered else ""


class Faults:
    """The newest useless answers of each agent."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = {(fault.agent_name, fault.branch): fault for fault in faults}

    def note(self, key: tuple[str, str | None], text: str) -> None:
        """Another useless answer.

        Raises:
            AgentTurnError: There were too many in a row.
        """
        before = self._faults.get(key)
        count = (before.count if before else 0) + 1
        if count >= MAX_ANSWERS:
            raise AgentTurnError(
                f"the model of agent {key[0]!r} gave no usable answer {count} times in a row, at "
                f"last: {text}"
            )
        self._faults[key] = Fault(*key, count, text)

    def give_up(self, is_given_up: Callable[[str | None], bool]) -> None:
        """Forget those of branches that have ended."""
        self._faults = {k: v for k, v in self._faults.items() if not is_given_up(k[1])}

    def forget(self, key: tuple[str, str | None]) -> None:
        """The agent's model has given a usable answer."""
        self._faults.pop(key, None)

    def feedback(self, key: tuple[str, str | None]) -> types.Content | None:
        """What the model is told when it is asked again; not part of the history."""
        fault = self._faults.get(key)
        if fault is None:
            return None
        text = (
            f"Your last answer could not be used ({fault.text}). Answer again: call one of the "
            "tools that you have with arguments that fit its parameters, or write a text."
        )
        return types.Content(role=USER, parts=[types.Part(text=text)])

    @property
    def rest(self) -> tuple[Fault, ...]:
        """Those whose agent has not answered yet."""
        return tuple(self._faults.values())
