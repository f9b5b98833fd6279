"""Questions to the user: asked by a Workflow node's ``RequestInput``, or by an agent's input tool.

An agent's call of the tool waits like any call with a Step, beside others if the model made others.
A node's question is an event of ADK's own, which is answered by a message of the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.genai import types

from dex_agents._contract import (
    InterruptKind,
    InterruptRequest,
    Json,
    RequestedToolCall,
    ToolCallRecord,
)
from dex_agents._effects import ToolEffect
from dex_agents_google_adk._adk_compat import INPUT_CALL
from dex_agents_google_adk._events import USER
from dex_agents_google_adk._records import response_of
from dex_agents_google_adk._run_state import PausedInput


def question_of(arguments: Mapping[str, Json]) -> InterruptRequest:
    """What a person is asked by a question with these arguments."""
    schema = arguments.get("response_schema")
    return InterruptRequest(
        InterruptKind.INPUT,
        hint=str(arguments.get("message") or ""),
        payload=arguments.get("payload"),
        response_schema=schema if isinstance(schema, dict) else None,
    )


def call_of(question: PausedInput) -> RequestedToolCall:
    """A node's question as a call that waits for its answer."""
    interrupt = question_of(question.arguments)
    return RequestedToolCall(
        call_id=question.call_id,
        tool_name=INPUT_CALL,
        arguments=question.arguments,
        effect=ToolEffect.READ,
        requires_approval=False,
        agent_name=question.author,
        node_path=question.node_path,
        hint=interrupt.hint,
        interrupt=interrupt,
    )


def answers_of(
    questions: Sequence[PausedInput], records: Sequence[ToolCallRecord]
) -> types.Content:
    """The message of the user that answers nodes' questions."""
    parts = [
        types.Part(
            function_response=types.FunctionResponse(
                id=question.call_id, name=INPUT_CALL, response=_answer_of(record)
            )
        )
        for question, record in zip(questions, records, strict=True)
    ]
    return types.Content(role=USER, parts=parts)


def _answer_of(record: ToolCallRecord) -> dict[str, Any]:
    answer = response_of(record)
    return answer if isinstance(answer, dict) else {"result": answer}
