"""Every private name of ADK that the driver reads, in one place.

``tests/adk_canaries`` checks the behaviour behind each; ``docs/design/adk-driving.md`` says why
each is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.utils._callback_pipeline import (
    _run_callbacks,
    _stop_on_non_none,
    _stop_on_truthy,
)
from google.adk.utils._function_call_names import (
    REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
    REQUEST_EUC_FUNCTION_CALL_NAME,
    REQUEST_INPUT_FUNCTION_CALL_NAME,
)

CONFIRMATION_CALL = REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
CREDENTIAL_CALL = REQUEST_EUC_FUNCTION_CALL_NAME
INPUT_CALL = REQUEST_INPUT_FUNCTION_CALL_NAME
FRAMEWORK_CALLS = frozenset({CONFIRMATION_CALL, CREDENTIAL_CALL, INPUT_CALL})


def invocation_of(context: ReadonlyContext) -> InvocationContext:
    """The invocation itself; the public accessor returns a copy, whose ``end_invocation`` nobody
    reads.
    """
    return context._invocation_context


async def first_answer(callbacks: Sequence[Any], **arguments: Any) -> Any:
    """Run callbacks until one answers, exactly as ADK's tool pipeline does."""
    return await _run_callbacks(callbacks, _stop_on_non_none, **arguments)


async def first_content(callbacks: Sequence[Any], **arguments: Any) -> Any:
    """Run callbacks until one returns something true, as ADK does around an agent."""
    return await _run_callbacks(callbacks, _stop_on_truthy, **arguments)


def is_unknown_tool(tool: BaseTool) -> bool:
    """Whether ``tool`` is the placeholder that ADK makes for a name that no tool has."""
    return type(tool) is BaseTool


def is_generator_tool(tool: BaseTool) -> bool:
    """Whether the tool's function yields, which needs ADK's event queue."""
    return isinstance(tool, FunctionTool) and bool(tool._spec.is_generator)
