"""ADK events as JSON, and how one shows as a message of the session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.adk.events.event import Event
from google.genai import types

from dex_agents._contract import AgentMessage, Json, MessageRole
from dex_agents._errors import AgentTurnError
from dex_agents._media.reference import ImageReference
from dex_agents_google_adk._json import to_json

USER = "user"


def dump_event(event: Event) -> Json:
    """The form in which ADK's own database session services store an event."""
    try:
        item = event.model_dump(exclude_none=True, mode="json", fallback=to_json)
    except Exception:  # what pydantic gives up on, such as a container inside itself
        return to_json(event)
    try:
        json.dumps(item, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError):  # a NaN, a huge integer or a lone surrogate
        return to_json(item)
    return item


def load_event(item: Json) -> Event:
    """The event behind a stored item.

    Raises:
        AgentTurnError: The item is no ADK event.
    """
    try:
        return Event.model_validate(item)
    except ValueError as error:
        raise AgentTurnError(f"a stored message is no ADK event: {error}") from error


def shown_text(content: types.Content | None, *, thoughts: bool = False) -> str:
    """The text of a content, its thoughts or everything else."""
    if content is None or not content.parts:
        return ""
    return "".join(
        part.text for part in content.parts if part.text and bool(part.thought) is thoughts
    )


def to_message(event: Event, item: Json, images: Sequence[ImageReference] = ()) -> AgentMessage:
    """The message that stores ``event``, of which ``item`` is the JSON form."""
    calls = event.get_function_calls()
    responses = event.get_function_responses()
    text = shown_text(event.content)
    named: types.FunctionCall | types.FunctionResponse | None = None
    if len(calls) + len(responses) == 1:
        named = (calls or responses)[0]
    if is_users(event):
        role = MessageRole.USER
    elif responses:
        role = MessageRole.TOOL
    else:
        role = MessageRole.ASSISTANT
    return AgentMessage(
        role=role,
        framework_item=item,
        text=text,
        tool_name=named.name if named else None,
        tool_call_id=named.id if named else None,
        images=tuple(images),
    )


def is_users(event: Event) -> bool:
    """Whether the user said it; ADK's summaries have the same author."""
    return event.author == USER and event.actions.compaction is None


def is_resumption_marker(event: Event) -> bool:
    """Whether an event only says where ADK's resumption stands; plain ADK would not have written
    it.
    """
    actions = event.actions
    if actions.agent_state is None and not actions.end_of_agent:
        return False
    return not (
        (event.content and event.content.parts)
        or actions.state_delta
        or actions.artifact_delta
        or actions.compaction
        or actions.rewind_before_invocation_id
        or event.output is not None
    )


def user_event(content: types.Content) -> Event:
    """An event that holds what the user said."""
    return Event(author=USER, content=content)


def text_content(text: str) -> types.Content:
    """A user content of one text part."""
    return types.Content(role=USER, parts=[types.Part(text=text)])


def timestamp_of(item: Json) -> float:
    """The time of a stored event, 0.0 without one."""
    value: Any = item.get("timestamp") if isinstance(item, dict) else None
    return float(value) if isinstance(value, (int, float)) else 0.0
