"""The idempotency key of a tool call."""

from __future__ import annotations

from google.adk.tools.tool_context import ToolContext

IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY = "dex_idempotency_key"
"""Key of ``tool_context.custom_metadata`` that holds the idempotency key in a tool Step."""


def idempotency_key_for_tool_call(tool_context: ToolContext) -> str:
    """The call's idempotency key, ``"<session id>/<turn id>/<call id>"``, equal for all its
    attempts.

    Pass it to the system that the tool writes to, so that a repeated attempt changes nothing there.

    Raises:
        TypeError: ``tool_context`` is no ``ToolContext``.
        RuntimeError: No tool Step runs the tool, for example because plain ADK or an ``AgentTool``
            does.
    """
    if not isinstance(tool_context, ToolContext):
        raise TypeError(
            f"tool_context must be the ToolContext that ADK gives the tool, got "
            f"{type(tool_context).__name__}"
        )
    key = tool_context.custom_metadata.get(IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY)
    if not isinstance(key, str) or not key:
        raise RuntimeError(
            "idempotency_key_for_tool_call() has no key: the tool does not run in the tool Step of "
            "a durable "
            "session. Plain ADK and the inner agents of an AgentTool have no such Step."
        )
    return key
