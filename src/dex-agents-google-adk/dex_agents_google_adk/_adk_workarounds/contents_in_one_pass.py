"""Make the contents of a request in one pass over the events.

ADK makes them in some fifteen passes, for every model call from all events of the session. Most
of these look for what hardly any session has: events that a rewind or a compaction has replaced,
branches, results that came late or twice, calls without results. For a long session that is half of
a turn. The guard on ``_get_contents`` goes through the events once. While nothing of that kind turns
up, what ADK would do is to show one event after another, and so does the guard; otherwise, and
outside of an attempt, ADK's own function is asked.

Nothing is kept between two calls, so an event that a callback has changed counts as it is.

As this says again what ADK's functions do, the guard steps aside when the text of any of them is not
the one that it was made for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isfunction
from typing import Any

from google.adk.events import _rewind_events
from google.adk.events.event import Event
from google.adk.flows.llm_flows.context import _contents, _fencing
from google.adk.flows.llm_flows.tools import _rearranger
from google.adk.models.llm_response import LlmResponse
from google.adk.utils._function_call_names import AF_FUNCTION_CALL_ID_PREFIX
from google.genai import types

from dex_agents_google_adk._adk_compat import CONFIRMATION_CALL, CREDENTIAL_CALL
from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning
from dex_agents_google_adk._adk_workarounds._patch import Patch, digest_of, install
from dex_agents_google_adk._attempt import current_attempt
from dex_agents_google_adk._events import USER
from dex_agents_google_adk._late_copies import Original, peek, unread, untouched
from dex_agents_google_adk._model_copies import set_field, shallow_copy

_GetContents = Callable[..., list[types.Content]]
_HIDDEN_CALLS = frozenset({"adk_framework", CONFIRMATION_CALL, CREDENTIAL_CALL})
_CHANGED = "ADK makes the contents of requests in another way; long durable sessions cost more"

_SAID_AGAIN = {
    _contents: (
        "_get_contents",
        "_filter_single_turn_node_events",
        "_should_include_event_in_context",
        "_contains_empty_content",
        "_is_part_invisible",
        "_is_event_belongs_to_branch",
        "_is_tool_sub_branch_event",
        "_is_function_call_event",
        "_is_adk_framework_event",
        "_is_auth_event",
        "_is_request_confirmation_event",
        "_is_other_agent_reply",
        "_present_other_agent_message",
        "_copy_content_for_request",
    ),
    _rearranger: (
        "drop_orphaned_function_responses",
        "rearrange_events_for_latest_function_response",
        "rearrange_events_for_async_function_responses_in_history",
        "drop_orphaned_function_calls",
    ),
    _rewind_events: ("_apply_rewinds",),
    LlmResponse: ("get_function_calls", "get_function_responses"),
}
MADE_FOR = "e788e9971776dba2"
"""Digest of the text of those functions."""


def contents_in_one_pass(
    events: Iterable[Event],
    agent_name: str,
    *,
    node_path: str | None = None,
    keeps_call_ids: bool = False,
) -> list[types.Content] | None:
    """What ADK makes of ``events`` for an agent without an isolation scope; ``None`` if they are not
    that plain.
    """
    contents: list[types.Content] = []
    called_by: dict[str, str] = {}
    unanswered: set[str | None] = set()
    for event in events:
        kept = unread(event)
        line = _line(event) if kept is None else kept.found(_line)
        if line is None:
            return None
        if not line.is_shown:
            continue
        calls, answers, author = line.calls, line.answers, line.author
        if author == USER and not answers and line.path and line.path != (node_path or ""):
            continue
        is_others = bool(agent_name) and author not in (USER, agent_name)
        for answer in answers:
            caller = called_by.get(answer or "")
            is_others = is_others or (bool(caller) and caller not in (USER, agent_name))
        for call in calls:
            if not call or call in called_by:
                return None
            called_by[call] = author
        if is_others:
            if unanswered:
                return None
            # Each time anew: ADK makes an event for it, and the ids of events are counted.
            shown = _fencing._present_other_agent_message(event)
            if shown is not None and shown.content is not None:
                contents.append(_copied(shown.content, keeps_call_ids=keeps_call_ids))
            continue
        if answers:
            answered = set(answers)
            if calls or answered != unanswered or len(answered) != len(answers):
                return None
            unanswered = set()
        elif unanswered:
            return None
        elif calls:
            unanswered = set(calls)
        original = untouched(event, "content") if kept is None else kept.part("content")
        if original is not None:
            contents.append((original if keeps_call_ids else original.found(_nameless)).copy())
        elif event.content is not None:
            contents.append(_copied(event.content, keeps_call_ids=keeps_call_ids))
    return None if unanswered else contents


@dataclass(frozen=True, slots=True)
class _Line:
    """What an event is to the others: who wrote it, where, ids of its calls and answers, and whether
    it can be shown.
    """

    is_shown: bool
    author: str = ""
    path: str = ""
    calls: tuple[str | None, ...] = ()
    answers: tuple[str | None, ...] = ()


_NOT_SHOWN = _Line(is_shown=False)


def _line(event: Event) -> _Line | None:
    """``None`` if ADK might show the event elsewhere, as another one, or not at all because of others."""
    actions = peek(event, "actions")
    if (
        actions is None
        or actions.compaction
        or actions.rewind_before_invocation_id
        or event.branch
        or event.live_session_id
        or event.input_transcription
        or event.output_transcription
    ):
        return None
    content = peek(event, "content")
    if content is None or not content.role or not content.parts:
        return _NOT_SHOWN
    calls = [part.function_call for part in content.parts if part.function_call is not None]
    answers = [p.function_response for p in content.parts if p.function_response is not None]
    if (
        event.isolation_scope is not None
        or not _HIDDEN_CALLS.isdisjoint([*(c.name for c in calls), *(a.name for a in answers)])
        or all(map(_contents._is_part_invisible, content.parts))
    ):
        return _NOT_SHOWN
    return _Line(
        True,
        event.author,
        peek(event, "node_info").path,
        tuple(call.id for call in calls),
        tuple(answer.id for answer in answers),
    )


def _nameless(content: types.Content) -> Original[types.Content]:
    """A content without the ids that only ADK knows."""
    return Original(_copied(content, keeps_call_ids=False))


def _copied(content: types.Content, *, keeps_call_ids: bool) -> types.Content:
    copied = shallow_copy(content)
    set_field(copied, "parts", [_copied_part(part, keeps_call_ids) for part in content.parts or ()])
    return copied


def _copied_part(part: types.Part, keeps_call_ids: bool) -> types.Part:
    copied = shallow_copy(part)
    if not keeps_call_ids and (
        part.function_call is not None or part.function_response is not None
    ):
        for name, value in (
            ("function_call", part.function_call),
            ("function_response", part.function_response),
        ):
            if value is not None and value.id and value.id.startswith(AF_FUNCTION_CALL_ID_PREFIX):
                nameless = shallow_copy(value)
                set_field(nameless, "id", None)
                set_field(copied, name, nameless)
    return copied


def _guarded(get_contents: _GetContents) -> _GetContents:
    def guarded(
        current_branch: str | None, events: list[Event], agent_name: str = "", **options: Any
    ) -> list[types.Content]:
        if current_attempt() is not None and not (
            options.get("is_single_turn")
            or options.get("isolation_scope") is not None
            or options.get("include_thoughts_from_other_agents")
        ):
            contents = contents_in_one_pass(
                events,
                agent_name,
                node_path=options.get("node_path"),
                keeps_call_ids=options.get("preserve_function_call_ids", False),
            )
            if contents is not None:
                return contents
        return get_contents(current_branch, events, agent_name, **options)

    return guarded


PATCHES = (
    Patch(
        (_contents,),
        "_get_contents",
        ("current_branch", "events", "agent_name"),
        isfunction,
        _guarded,
    ),
)


def is_made_for_this_adk() -> bool:
    """Whether ADK's functions are those that the guard says again."""
    functions = [
        getattr(owner, name, None) for owner, names in _SAID_AGAIN.items() for name in names
    ]
    return digest_of(functions) == MADE_FOR


def apply() -> bool:
    """Install the guard; true if it stands."""
    if not is_made_for_this_adk():
        warnings.warn(_CHANGED, AdkWorkaroundWarning, stacklevel=2)
        return False
    return install(PATCHES, _CHANGED)
