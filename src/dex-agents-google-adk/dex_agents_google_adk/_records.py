"""What a record looks like to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dex_agents._contract import Json, ToolCallRecord, ToolCallStatus
from dex_agents._errors import OUTCOME_UNKNOWN_TOOL_RESULT
from dex_agents_google_adk._images import IMAGES_KEY, placeholder

EDITED_KEY = "approved_with_arguments"
"""Beside the result of a call whose arguments were changed by the person who approved it."""


def response_of(record: ToolCallRecord) -> Any:
    """What ADK's pipeline gets in place of the tool's own return value, never ``None``.

    ADK itself turns a value that is no dict into ``{"result": value}``, after the
    ``after_tool_callback`` chain saw it as the tool returned it. ``None`` is the exception: the
    pipeline would take it for "not answered". The result of a call with changed arguments is the
    other one: it is always a dict, which holds them under :data:`EDITED_KEY`.
    """
    response = _plain_response(record)
    if record.edited_arguments is None:
        return response
    if not isinstance(response, dict) or EDITED_KEY in response:
        response = {"result": response}
    return {**response, EDITED_KEY: record.edited_arguments}


class _Given(dict[str, Any]):
    """A dict that counts as an answer although it is empty."""

    def __bool__(self) -> bool:
        return True


def given_answer(answer: Any) -> Any:
    """The answer to a call that ADK lets wait, where an empty value would mean that none came."""
    if answer:
        return answer
    return _Given(answer) if isinstance(answer, dict) else {"result": answer}


def _plain_response(record: ToolCallRecord) -> Any:
    if record.status is ToolCallStatus.SUCCEEDED:
        if record.images:
            return _with_images(record)
        return {"result": None} if record.output is None else record.output
    if record.status is ToolCallStatus.FAILED:
        return {"error": f"The tool call failed: {record.error}"}
    if record.status is ToolCallStatus.REJECTED:
        return {"error": record.rejection_message}
    return {"error": OUTCOME_UNKNOWN_TOOL_RESULT}


def _with_images(record: ToolCallRecord) -> dict[str, Any]:
    # ADK takes the Parts out of the dict, after the callbacks, and puts them behind the response.
    output = record.output
    answer = dict(output) if isinstance(output, dict) else {"result": output}
    answer[IMAGES_KEY] = [placeholder(image) for image in record.images]
    return answer


def actions_of(record: ToolCallRecord) -> Mapping[str, Json]:
    """The state, artifact and flow changes that the tool made in its Step."""
    data = record.framework_data
    actions = data.get("actions") if isinstance(data, dict) else None
    return actions if isinstance(actions, dict) else {}


def ended_at(record: ToolCallRecord) -> float:
    """When the tool ended, 0.0 if it is not known."""
    data = record.framework_data
    value = data.get("ended_at") if isinstance(data, dict) else None
    return float(value) if isinstance(value, (int, float)) else 0.0
