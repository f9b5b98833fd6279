"""Compares a session with plain ADK."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dex_agents import OUTCOME_UNKNOWN_TOOL_RESULT, ToolEffect, ToolPolicy
from dex_agents._contract import Json
from dex_agents.testing import Ledger, PlayedSession
from dex_agents_google_adk._adk_compat import INPUT_CALL
from differential.plans import Plan, plan_of
from differential.worlds import Observed, PlainWorld
from support.adk_oracle import PlainResult, run_plain, state_of
from support.random_sessions import QUESTION
from support.tree_oracle import Seen, check_same
from support.waiting_trees import QUESTION_NODE

_MOST_MODEL_CALLS = 25


@dataclass(frozen=True)
class PlainRun:
    """What plain ADK did."""

    world: PlainWorld
    result: PlainResult


async def play_plain(session_id: str, replaced: Mapping[str, Any] | None = None) -> PlainRun | None:
    """The agent in plain ADK; ``None`` if it is too long or depends on chance there.

    Args:
        replaced: Responses by call id of the calls that a kill has changed.
    """
    plan = plan_of(session_id)
    world = PlainWorld(plan.scripts, has_ids=plan.has_ids, replaced=replaced)
    result = await run_plain(plan.build, world, plan.messages, run_config=plan.run_config)
    if len(world.asked) > _MOST_MODEL_CALLS or plan.depends_on_chance(result.events):
        return None
    return PlainRun(world, result)


def choose_place(session_id: str, plain: PlainRun) -> str:
    """A place that the session passes, as :func:`dex_agents.testing.failpoint_env` takes it."""
    # Each turn passes three at least, and each tool that ran two more.
    passes = 3 * len(plan_of(session_id).messages) + 2 * len(plain.world.executed)
    return f"*@{session_id}#{random.Random(session_id).randint(1, passes)}"


async def judge(
    session_id: str, plain: PlainRun, played: PlayedSession, file: Path, *, was_killed: bool
) -> None:
    """Assert that the session did what plain ADK did, or what a kill may change of it."""
    plan = plan_of(session_id)
    assert list(played.errors) == [""] * len(plan.messages)
    items = [m.framework_item for m in played.messages if not _is_question(m.framework_item)]
    _check_marks(items)
    history = list(map(_unmarked, items))
    replaced = _perhaps_killed(history) if was_killed else {}
    if replaced:
        again = await play_plain(session_id, replaced)
        assert again is not None
        plain = again
    seen = Observed.of(Ledger(file).entries())
    _check_bounds(seen, plan, was_killed)
    executed: list[tuple[str, Json]] = [
        (tool, json.loads(arguments))
        for tool, arguments, key in seen.executed
        if _call_id(key) not in replaced
    ]
    check_same(
        Seen(seen.asked, history, state_of(history), executed, seen.callbacks),
        Seen(
            plain.world.asked,
            [_unmarked(event) for event in plain.result.events if not _is_question(event)],
            plain.result.state,
            plain.world.executed,
            plain.world.callbacks,
        ),
        any_order=plan.any_order,
    )


def _is_question(event: Json) -> bool:
    """Whether a node asks the user or is answered; plain ADK has a function with the answer there."""
    path = event.get("node_info", {}).get("path", "")
    name = path.rpartition("/")[2].partition("@")[0]
    if (name == QUESTION_NODE or name.startswith(QUESTION)) and event["author"] != "user":
        return True
    parts = (event.get("content") or {}).get("parts") or []
    return any(
        part.get(kind, {}).get("name") == INPUT_CALL
        for part in parts
        for kind in ("function_call", "function_response")
    )


def _unmarked(event: Json) -> Json:
    return {key: value for key, value in event.items() if key != "long_running_tool_ids"}


def _check_marks(history: Sequence[Json]) -> None:
    """Plain ADK has ordinary tools where the session has long-running ones, and marks none."""
    for event in history:
        parts = (event.get("content") or {}).get("parts") or []
        calls = [part["function_call"] for part in parts if "function_call" in part]
        jobs = sorted(call["id"] for call in calls if call["name"].partition("_")[0] == "job")
        assert sorted(event.get("long_running_tool_ids") or []) == jobs


def _responses(events: Sequence[Json]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in events:
        for part in (event.get("content") or {}).get("parts") or []:
            if (response := part.get("function_response")) is not None:
                value = response["response"]
                # The agents' after_tool_callback wraps some.
                found[response["id"]] = value.get("replaced", value)
    return found


def _perhaps_killed(history: Sequence[Json]) -> dict[str, Any]:
    """Responses of calls whose records say that a kill may have met them; an error of the tool's own
    looks the same.
    """
    return {
        call_id: response
        for call_id, response in _responses(history).items()
        if isinstance(response, dict) and response.get("error") == OUTCOME_UNKNOWN_TOOL_RESULT
    }


def _check_bounds(seen: Observed, plan: Plan, was_killed: bool) -> None:
    reads = ToolPolicy(ToolEffect.READ)
    for (tool, arguments, key), count in seen.executed.items():
        what = f"{tool}({arguments}) ran {count} times as {key}"
        most = plan.policies.get(tool, reads).effect.maximum_attempts
        if was_killed:
            assert count <= most, what
        else:
            assert count == plan.executions(tool, json.loads(arguments)), what


def _call_id(idempotency_key: str) -> str:
    return idempotency_key.rpartition("/")[2].partition("#")[0]
