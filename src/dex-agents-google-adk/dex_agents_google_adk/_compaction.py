"""The older turns of a session as a summary, without losing what their events have set.

The summary's last line carries the session state and the agent that replied last. Both are restored
when the ADK session is rebuilt, and the model never reads the line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.models.registry import LLMRegistry
from google.adk.runners import _find_active_task_scope
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from dex_agents._contract import (
    AgentMessage,
    CompactionRequest,
    HistorySummary,
    Json,
    ModelCallMetadata,
    TokenUsage,
)
from dex_agents._errors import ModelCallError
from dex_agents_google_adk._artifacts import Place, current_after
from dex_agents_google_adk._events import USER, load_event, shown_text, text_content, user_event
from dex_agents_google_adk._history import replay_state
from dex_agents_google_adk._json import copy_json
from dex_agents_google_adk._model_calls import finish_reason_of, usage_of
from dex_agents_google_adk._model_errors import classify, classify_answer
from dex_agents_google_adk._tree import AgentTree
from dex_agents_google_adk._tree_checks import static_tools

_STATE_LINE = "[Dex] ADK session state: "
_BYTES_PER_TOKEN = 3
_INSTRUCTION = (
    "You write the memory of an assistant. Sum up the conversation below so that the assistant can "
    "go on without it: who the user is and what they want, what was found out, decided and "
    "promised, which tools ran with which effects and ids, and what is still open. Keep names, "
    "numbers and identifiers exactly. Write plain text, no greeting and no comment."
)
_WHOLE = (None, types.FinishReason.STOP, types.FinishReason.FINISH_REASON_UNSPECIFIED)
_HEADING = "Summary of the conversation so far:"


@dataclass(frozen=True)
class RestoredSummary:
    """What a session begins with in place of the turns that a summary stands for."""

    events: Sequence[Event]
    state: dict[str, Json] = field(default_factory=dict)
    artifacts: dict[str, Place] = field(default_factory=dict)


def restore(summary: HistorySummary | None) -> RestoredSummary:
    """The events and the state to begin a rebuilt session with."""
    if summary is None:
        return RestoredSummary(())
    text, data = _split(summary.text)
    events = [user_event(text_content(f"{_HEADING}\n{text}"))] if text.strip() else []
    if agent := data.get("agent"):
        # ADK picks the next agent by the author of the newest event.
        events.append(Event(author=str(agent)))
    artifacts = {name: (place[0], place[1]) for name, place in _artifacts(data).items()}
    return RestoredSummary(events, data.get("state") or {}, artifacts)


def _artifacts(data: dict[str, Any]) -> dict[str, Any]:
    return dict(data.get("artifacts") or {})


def _split(text: str) -> tuple[str, dict[str, Any]]:
    body, found, line = text.rpartition(f"\n{_STATE_LINE}")
    try:
        data = json.loads(line)
    except ValueError:
        return text, {}
    return (body, data) if found and isinstance(data, dict) else (text, {})


class HistoryWriter:
    """Summarizes turns with a model call of its own.

    Args:
        tree: The agents.
        model: The model of the call; by default that of the tree's first agent.
    """

    def __init__(self, tree: AgentTree, model: str | BaseLlm | None) -> None:
        self._tree = tree
        self._model = model

    @cached_property
    def overhead_tokens(self) -> int:
        """Estimated tokens of the largest agent's instruction and tools."""
        return (
            max((_overhead_bytes(a) for a in self._tree.llm_agents()), default=0)
            // _BYTES_PER_TOKEN
        )

    def is_blocked(self, messages: Sequence[AgentMessage]) -> bool:
        """Whether a task agent waits for the user, whom ADK finds by its events."""
        session = Session(id="compaction", app_name="compaction", user_id="compaction")
        session.events = [load_event(copy_json(message.framework_item)) for message in messages]
        return _find_active_task_scope(session) is not None

    async def write(self, request: CompactionRequest) -> HistorySummary:
        """See :meth:`dex_agents.HistoryCompactor.summarize`.

        Raises:
            AgentTurnError, ModelCallError: The model gave no whole text that could stand for the
                turns.
        """
        before, data = _split(request.summary.text) if request.summary else ("", {})
        lines = [f"Summary of what came before:\n{before}"] if before else []
        lines += [line for message in request.messages if (line := _line(message))]
        text, usage, metadata = await self._ask("\n".join(lines))
        kept = {
            "state": {
                **(data.get("state") or {}),
                **replay_state([message.framework_item for message in request.messages]),
            },
            "agent": _last_agent(request.messages) or data.get("agent"),
            "artifacts": {
                **_artifacts(data),
                **current_after(request.messages, request.session_id),
            },
        }
        line = json.dumps(kept, ensure_ascii=False, allow_nan=False)
        said = text.strip()
        return HistorySummary(
            f"{said}\n{_STATE_LINE}{line}",
            usage,
            metadata,
            read_bytes=len(said.encode("utf-8", "backslashreplace")),
        )

    async def _ask(self, conversation: str) -> tuple[str, TokenUsage, ModelCallMetadata]:
        model = self._llm()
        request = LlmRequest(
            model=model.model,
            contents=[text_content(conversation)],
            config=types.GenerateContentConfig(system_instruction=_INSTRUCTION),
        )
        text, usage = "", TokenUsage(model_calls=1)
        metadata = ModelCallMetadata(request_model=model.model)
        failure: Exception | None = None
        try:
            async for response in model.generate_content_async(request, stream=False):
                if response.partial:
                    continue
                text += shown_text(response.content)
                failure = failure or _failure(response)
                if response.usage_metadata is not None:
                    usage = usage_of(response.usage_metadata)
                if response.model_version:
                    metadata = replace(metadata, response_model=response.model_version)
                if reason := finish_reason_of(response):
                    metadata = replace(metadata, finish_reasons=(reason,))
        except Exception as error:
            raise classify(error) or error from error
        if failure is None and not text.strip():
            # The state line behind it would make it look like a summary.
            failure = ModelCallError("the model was asked for a summary and gave no text")
        if failure is not None:
            raise failure
        return text, usage, metadata

    def _llm(self) -> BaseLlm:
        if isinstance(self._model, BaseLlm):
            return self._model
        if self._model is not None:
            return LLMRegistry.new_llm(self._model)
        return next(iter(self._tree.llm_agents())).canonical_model


def _failure(response: LlmResponse) -> Exception | None:
    """Why an answer is no summary, or not the whole of it; what is cut off would be lost."""
    if response.error_code:
        return classify_answer(response.error_code, response.error_message)
    if (reason := response.finish_reason) in _WHOLE:
        return None
    return ModelCallError(f"the model did not end its summary ({getattr(reason, 'value', reason)})")


def _overhead_bytes(agent: LlmAgent) -> int:
    instructions = (agent.instruction, agent.global_instruction)
    size = sum(len(text.encode()) for text in instructions if isinstance(text, str))
    return size + sum(_declaration_bytes(tool) for tool in static_tools(agent))


def _declaration_bytes(tool: BaseTool) -> int:
    declaration = tool._get_declaration()
    return len(declaration.model_dump_json(exclude_none=True)) if declaration is not None else 0


def _line(message: AgentMessage) -> str:
    event = load_event(copy_json(message.framework_item))
    said = []
    for part in (event.content.parts if event.content else None) or []:
        if part.text and not part.thought:
            said.append(part.text)
        elif part.function_call is not None:
            said.append(f"called {part.function_call.name}({_json(part.function_call.args)})")
        elif part.function_response is not None:
            answer = part.function_response
            said.append(f"{answer.name} returned {_json(answer.response)}")
        elif part.file_data is not None or part.inline_data is not None:
            said.append("(an attachment)")
    return f"{event.author}: {' '.join(said)}" if said else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _last_agent(messages: Sequence[AgentMessage]) -> str | None:
    for message in reversed(messages):
        author = message.framework_item.get("author")
        if author and author != USER:
            return str(author)
    return None
