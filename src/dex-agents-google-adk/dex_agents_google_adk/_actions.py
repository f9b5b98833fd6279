"""Carry the actions of a tool context from one process to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.adk.events.event_actions import EventActions
from google.adk.tools.tool_context import ToolContext

from dex_agents._contract import Json
from dex_agents_google_adk._json import to_json

_MAPS = ("state_delta", "artifact_delta")
_VALUES = (
    "skip_summarization",
    "transfer_to_agent",
    "transfer_reason",
    "escalate",
    "route",
    "set_model_response",
)


def actions_to_json(actions: EventActions) -> dict[str, Json]:
    """What must happen again on the context of the replayed call; empty when there is nothing."""
    found: dict[str, Any] = {}
    for name in _MAPS:
        if entries := getattr(actions, name):
            found[name] = to_json(entries)
    for name in _VALUES:
        if (value := getattr(actions, name)) is not None:
            found[name] = to_json(value)
    if actions.render_ui_widgets:
        found["render_ui_widgets"] = [
            widget.model_dump(mode="json", exclude_none=True)
            for widget in actions.render_ui_widgets
        ]
    return found


def apply_actions(context: ToolContext, actions: Mapping[str, Json]) -> None:
    """Repeat stored actions on a context, through its state so that callbacks see the values."""
    for key, value in (actions.get("state_delta") or {}).items():
        context.state[key] = value
    target = context.actions
    target.artifact_delta.update(actions.get("artifact_delta") or {})
    for name in _VALUES:
        if name in actions:
            setattr(target, name, actions[name])
    if widgets := actions.get("render_ui_widgets"):
        restored = EventActions.model_validate({"render_ui_widgets": widgets}).render_ui_widgets
        target.render_ui_widgets = [*(target.render_ui_widgets or []), *(restored or [])]
