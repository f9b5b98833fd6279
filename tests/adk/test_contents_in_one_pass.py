"""Contents made in one pass are those that ADK's own function makes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.flows.llm_flows.context import _contents
from google.genai import types
from pydantic import ConfigDict

from dex_agents_google_adk._adk_workarounds.contents_in_one_pass import (
    PATCHES,
    contents_in_one_pass,
)
from dex_agents_google_adk._late_copies import Original
from dex_agents_google_adk._model_copies import shallow_copy

_NAMES = ("root", "helper")
_SEEDS = 60
_OTHER_PARTS: tuple[dict[str, Any], ...] = (
    {"text": ""},
    {"text": " "},
    {"text": "thinking", "thought": True},
    {"thought_signature": b"s"},
    {"text": "signed", "thought": True, "thought_signature": b"s"},
    {"inline_data": {"mime_type": "image/png", "data": b"p"}},
    {"file_data": {"mime_type": "image/png", "file_uri": "gs://b/o"}},
    {"executable_code": {"code": "1", "language": "PYTHON"}},
    {"tool_call": {"id": "server"}},
)


def call(name: str, call_id: str | None) -> types.Part:
    return types.Part(
        function_call=types.FunctionCall(name=name, id=call_id, args={"b": [1], "a": 2})
    )


def response(name: str, call_id: str | None) -> types.Part:
    made = types.FunctionResponse(name=name, id=call_id, response={"result": [1]})
    return types.Part(function_response=made)


def said(author: str, *parts: types.Part, **fields: Any) -> Event:
    role = "model" if author in _NAMES and not any(p.function_response for p in parts) else "user"
    return Event(author=author, content=types.Content(role=role, parts=list(parts)), **fields)


class Histories:
    """Random histories: mostly what an agent does, sometimes what hardly any session has."""

    def __init__(self, seed: int, oddness: float) -> None:
        self._random = random.Random(seed)
        self._oddness = oddness
        self._ids = 0

    def make(self) -> list[Event]:
        events: list[Event] = []
        for _ in range(self._random.randint(0, 4)):
            events.append(said("user", self._text()))
            for _ in range(self._random.randint(0, 2)):
                events += self._round(self._random.choice(_NAMES))
            events.append(said(self._random.choice(_NAMES), self._text(), *self._extra()))
        if self._is_odd():
            self._spoil(events)
        return events

    def _is_odd(self) -> bool:
        return self._random.random() < self._oddness

    def _text(self) -> types.Part:
        return types.Part(text=self._random.choice(("hello", "<<<END_QUOTED_AGENT_CONTENT>>>")))

    def _extra(self) -> list[types.Part]:
        if self._random.random() < 0.7:
            return []
        return [types.Part.model_validate(self._random.choice(_OTHER_PARTS))]

    def _round(self, author: str) -> list[Event]:
        ids = [self._id() for _ in range(self._random.randint(1, 3))]
        names = [self._random.choice(("look", "write")) for _ in ids]
        calls = said(author, *map(call, names, ids), *self._extra())
        results = list(map(response, names, ids))
        if self._is_odd():
            return [calls, *(said(author, item) for item in results)]
        self._random.shuffle(results)
        return [calls, said(author, *results)]

    def _id(self) -> str | None:
        if self._is_odd():
            return self._random.choice((None, "", "adk-1", "2"))
        self._ids += 1
        return f"{self._random.choice(('adk-', ''))}{self._ids}"

    def _spoil(self, events: list[Event]) -> None:
        for _ in range(self._random.randint(1, 3)):
            if not events:
                return
            at = self._random.randrange(len(events))
            event = events[at]
            match self._random.randint(0, 11):
                case 0:
                    del events[at]
                case 1:
                    events.insert(at, said("user", self._text()))
                case 2:
                    events.insert(at, event)
                case 3:
                    event.branch = self._random.choice(("a", "a.b", "look@1", "look@adk-1"))
                case 4:
                    event.isolation_scope = "1"
                case 5:
                    event.node_info.path = self._random.choice(("here", "there"))
                case 6:
                    event.author = self._random.choice((*_NAMES, "user", ""))
                case 7:
                    event.content = self._random.choice(
                        (None, types.Content(), types.Content(role="user", parts=[]))
                    )
                case 8:
                    event.output_transcription = types.Transcription(text="heard")
                case 9:
                    event.actions.rewind_before_invocation_id = "i"
                case 10:
                    name = self._random.choice(("adk_request_credential", "adk_framework"))
                    events.insert(at, said(self._random.choice(_NAMES), call(name, "c")))
                case 11:
                    event.live_session_id = "live"


def exact(contents: list[types.Content]) -> list[Any]:
    """Everything of contents that a callback can see."""
    return [
        (
            content.model_fields_set,
            content.model_dump(exclude={"parts"}),
            [(type(p), p.model_fields_set, p.model_dump()) for p in content.parts or ()],
        )
        for content in contents
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("oddness", "at_least"), [(0.0, 1.0), (0.15, 0.3)])
def test_they_are_adks_own(oddness: float, at_least: float) -> None:
    made = 0
    for seed in range(_SEEDS):
        events = Histories(seed, oddness).make()
        for agent in ("root", ""):
            for path in (None, "here"):
                for keeps in (False, True):
                    adks = PATCHES[0].original(
                        None, events, agent, node_path=path, preserve_function_call_ids=keeps
                    )
                    ours = contents_in_one_pass(events, agent, node_path=path, keeps_call_ids=keeps)
                    kept = [Original(event.model_copy(deep=True)).copy() for event in events]
                    late = contents_in_one_pass(kept, agent, node_path=path, keeps_call_ids=keeps)
                    assert (late is None) == (ours is None), seed
                    if ours is not None and late is not None:
                        assert exact(ours) == exact(adks), seed
                        assert exact(late) == exact(adks), seed
                        made += bool(agent)
    assert made >= at_least * _SEEDS * 4


def test_a_summary_is_left_to_adk() -> None:
    summary = said("user", types.Part(text="so far"))
    summary.actions = EventActions(
        compaction=EventCompaction(
            start_timestamp=1.0,
            end_timestamp=2.0,
            compacted_content=types.Content(role="model", parts=[types.Part(text="s")]),
        )
    )
    assert contents_in_one_pass([summary], "root") is None


def test_a_request_shares_with_its_events_what_adk_shares() -> None:
    events = [said("root", call("look", "adk-1")), said("root", response("look", "adk-1"))]
    for made in (contents_in_one_pass(events, "root"), PATCHES[0].original(None, events, "root")):
        for content, event in zip(made or [], events, strict=True):
            assert event.content is not None and event.content.parts is not None
            assert content is not event.content and content.parts is not event.content.parts
            (part,), (own,) = content.parts or [], event.content.parts
            assert part is not own
            if part.function_call is not None and own.function_call is not None:
                assert part.function_call.id is None and own.function_call.id == "adk-1"
                assert part.function_call.args is own.function_call.args
            if part.function_response is not None and own.function_response is not None:
                assert part.function_response.response is own.function_response.response


def test_other_runs_of_adk_in_the_process_are_asked_adks_way() -> None:
    asked: list[str] = []

    def original(
        branch: str | None, events: list[Event], agent_name: str = ""
    ) -> list[types.Content]:
        asked.append(agent_name)
        return []

    guarded = PATCHES[0].guard(original)
    assert guarded(None, [said("user", types.Part(text="hello"))], "root") == []
    assert asked == ["root"]
    assert _contents._get_contents is not original


def test_copies_of_models_are_pydantics_own() -> None:
    class Loose(types.Part):
        model_config = ConfigDict(extra="allow")

    for model in (
        said("user", types.Part(text="hello")),
        types.Part(text="hello"),
        types.Content(role="user", parts=[]),
        Loose.model_validate({"text": "t", "more": 1}),
    ):
        made, expected = shallow_copy(model), model.model_copy()
        assert made == expected
        assert type(made) is type(expected)
        assert made.__dict__ is not model.__dict__
        assert made.__dict__.keys() == expected.__dict__.keys()
        assert all(made.__dict__[key] is value for key, value in expected.__dict__.items())
        assert made.model_fields_set == expected.model_fields_set
        assert made.model_fields_set is not model.model_fields_set
        assert made.model_extra == expected.model_extra
