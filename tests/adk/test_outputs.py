"""What a root Workflow returns, as its session's client reads it; plain ADK is the oracle."""

from __future__ import annotations

import asyncio
import json
import random
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.workflow import BaseNode, Workflow
from pydantic import BaseModel

from dex_agents import AgentSnapshot, FinishedTurn, MessagePage
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel
from support.adk_oracle import run_plain
from support.serving import serve
from support.waiting import TURN_S, pending, session

ANSWER = '{"city": "Zürich", "days": 3}'


class Trip(BaseModel):
    """What an agent plans."""

    city: str = "Zürich"
    days: int = 3


def as_dict(node_input: Any) -> Any:
    return {"given": node_input, "more": [1, None, "ü"]}


def as_text(node_input: Any) -> Any:
    return f"<{node_input}>"


def as_model(node_input: Any) -> Any:
    return Trip(days=4)


def as_list(node_input: Any) -> Any:
    return [1, "a"]


def as_false(node_input: Any) -> Any:
    return False


def as_event(node_input: Any) -> Any:
    yield Event(output={"by": "event"})


def as_nothing(node_input: Any) -> Any:
    return None


def planner(**fields: Any) -> LlmAgent:
    return LlmAgent(name="planner", model=ScriptedModel([ANSWER]), **fields)


def flow_of(*nodes: Any, name: str = "root") -> Workflow:
    return Workflow(name=name, edges=[("START", *nodes)])


def ends_with(node: Callable[[Any], Any]) -> Workflow:
    return flow_of(planner(), node)


NODES = [as_dict, as_text, as_model, as_list, as_false, as_event, as_nothing]
ROOTS: dict[str, Callable[[], BaseNode]] = {
    **{node.__name__: partial(ends_with, node) for node in NODES},
    "agent last": lambda: flow_of(as_text, planner()),
    "agent with a schema last": lambda: flow_of(planner(output_schema=Trip)),
    "agent alone": planner,
    "agent with a schema alone": lambda: planner(output_schema=Trip),
    "nested": lambda: flow_of(flow_of(planner(), as_dict, name="inner")),
    "nested, not last": lambda: flow_of(flow_of(as_list, name="inner"), planner()),
}


NO_OUTPUT = {
    "as_nothing",
    "agent last",
    "agent alone",
    "agent with a schema alone",
    "nested, not last",
}


async def play(name: str, address: str, folder: Path) -> tuple[AgentSnapshot, MessagePage]:
    """One turn of the root, and what the client reads of it."""
    flow = adk_agent_session_flow(ROOTS[name](), flow_type=name.replace(" ", "-"))
    async with serve(address, flow, folder) as sessions:
        await sessions.start_session(name, "go")
        snapshot = await sessions.wait_for_turn(name, 1, timeout_s=TURN_S)
        return snapshot, await sessions.list_messages(name)


async def test_the_output_of_the_root_is_in_the_last_turn(tmp_path: Path) -> None:
    async with private_engine(tmp_path / "e.db") as engine:
        played = await asyncio.gather(*(play(name, engine.address, tmp_path) for name in ROOTS))
    for (name, root), (snapshot, page) in zip(ROOTS.items(), played, strict=True):
        plain = await run_plain(lambda _: root(), [], ["go"])  # noqa: B023  used at once
        expected = plain.events[-1].get("output")
        assert snapshot.last_turn == FinishedTurn("t1", final_text=ANSWER, output=expected), name
        assert (expected is None) == (name in NO_OUTPUT), name
        # The history has the events of plain ADK, whose last one holds the output.
        assert page.messages[-1].framework_item.get("output") == expected, name


async def test_an_output_behind_a_question_and_a_rewind_comes_back(tmp_path: Path) -> None:
    def ask(node_input: Any) -> Any:
        yield RequestInput(message="How many?", response_schema={"type": "integer"})

    root = flow_of(ask, as_dict)
    async with session(root, tmp_path) as sessions:
        (asked,) = await pending(sessions)
        await sessions.answer_question("s", asked.interrupt_id, 3)
        first = (await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)).last_turn
        assert first == FinishedTurn("t1", output={"given": 3, "more": [1, None, "ü"]})
        await sessions.send_user_message("s", "again")
        snapshot = await sessions.wait_until_settled("s", turns_done=2, timeout_s=TURN_S)
        await sessions.answer_question("s", snapshot.pending_interrupts[0].interrupt_id, 4)
        second = (await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)).last_turn
        assert second == FinishedTurn("t2", output={"given": 4, "more": [1, None, "ü"]})
        await sessions.fork_session("s", "fork", before_turn_id="t2")
        await sessions.rewind("s", "t2")
        for session_id in ("s", "fork"):
            assert (await sessions.get_agent_snapshot(session_id)).last_turn == first


async def test_a_large_output_is_cut_in_the_snapshot_only(tmp_path: Path) -> None:
    letters = "".join(random.Random(1).choices(string.printable, k=600_000))

    def much(node_input: Any) -> Any:
        return {"rows": [letters]}

    async with session(flow_of(much), tmp_path) as sessions:
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        page = await sessions.list_messages("s")
        assert page.messages[-1].framework_item["output"] == much(None)
        shown = snapshot.last_turn.output
        assert (shown["truncated"], shown["original_bytes"]) == (True, len(json.dumps(much(None))))
