"""The differential oracle for agent trees and Workflows: a script for each agent.

Branches that run side by side may interleave otherwise than in plain ADK, so what is compared is
what each agent was asked, and what each agent left in the history, in its own order.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext

from dex_agents._contract import Json, RequestedToolCall, ToolCallRecord
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Build, Decide, Driver, PlainResult, ScriptedLlm, World, run_plain

Scripts = Mapping[str, Sequence[Any]]
_MOST_SHOWN = 12
_MOST_CHARACTERS = 300
_ABSENT = "nothing"
_ID = re.compile(r"adk-[0-9a-f]{8}-[0-9a-f-]{27}")


class TreeWorld(World):
    """A script for each agent; ``cyclic`` ones begin again at their end."""

    def __init__(self, scripts: Scripts, *, cyclic: bool = False) -> None:
        super().__init__([])
        self.scripts = scripts
        self.cyclic = cyclic
        self.asked: list[tuple[str, Json]] = []
        self.cursors: dict[str, int] = {}

    def next_step(self, agent: str, request: Json) -> Any:
        """What the model of ``agent`` answers now."""
        self.asked.append((agent, request))
        index = self.cursors.get(agent, 0)
        self.cursors[agent] = index + 1
        return self.step_at(agent, index)

    def step_at(self, agent: str, index: int) -> Any:
        """What the model of ``agent`` answers to its call of this number."""
        script = self.scripts[agent]
        if self.cyclic:
            index %= len(script)
        assert index < len(script), f"model call {index} of {agent} is not scripted"
        return script[index]

    def make_tools(self, agent: str) -> list[BaseTool]:
        """The tools of an agent, named ``<kind>_<agent>``."""
        return [make_tool(self, f"t_{agent}")]

    def snapshot(self) -> tuple[Any, ...]:
        """Where the world stands."""
        return (*super().snapshot(), len(self.asked), dict(self.cursors))

    def rewind(self, snapshot: tuple[Any, ...]) -> None:
        """Forget what a thrown away attempt did."""
        *rest, asked, cursors = snapshot
        super().rewind(tuple(rest))
        del self.asked[asked:]
        self.cursors = dict(cursors)

    def requests_of(self, agent: str) -> list[Json]:
        """What the model of ``agent`` was asked."""
        return [request for name, request in self.asked if name == agent]


class KindsWorld(TreeWorld):
    """Has the tools that the scripts call; whatever their kind, they do the same."""

    def make_tools(self, agent: str) -> list[BaseTool]:
        """See :class:`TreeWorld`."""
        steps = (step if isinstance(step, list) else [step] for step in self.scripts[agent])
        calls = (part.function_call for parts in steps for part in parts if part.function_call)
        names = {str(item.name) for item in calls}
        return [make_tool(self, name) for name in sorted(names) if name.endswith(f"_{agent}")]


def make_tool(world: TreeWorld, name: str) -> FunctionTool:
    """Notes its execution, changes the state, has a result that is no dict for some arguments."""

    def run(x: str, tool_context: ToolContext) -> Any:
        world.ran(name, x=x)
        tool_context.state[f"{name}_state"] = f"{x}!"
        tool_context.state["temp:last"] = name
        return [x, None] if x.endswith("7") else {"value": f"{name}({x})"}

    run.__name__ = name
    run.__doc__ = f"Tool {name}."
    return FunctionTool(run)


class TreeLlm(ScriptedLlm):
    """Answers from the script of the agent that asks."""

    def scripted_step(self, request: LlmRequest, shown: Json) -> Any:
        """The next step of the asking agent's script."""
        agent = (request.config.labels or {}).get("adk_agent_name", "?")
        world: TreeWorld = self.world
        return world.next_step(agent, shown)


def canonical(value: Any) -> Any:
    """Without ids that only ADK's generator decides."""
    return json.loads(_ID.sub("<call>", json.dumps(value)))


def history_of(events: Sequence[Json]) -> dict[str, list[Json]]:
    """Stored events by author and branch, without what only ids and clocks decide."""
    found: dict[str, list[Json]] = {}
    for event in canonical(list(events)):
        item = copy.deepcopy(event)
        for name in ("timestamp", "id", "invocation_id"):
            item.pop(name, None)
        found.setdefault(f"{item['author']} in {item.get('branch')}", []).append(item)
    return found


def unordered(requests: Sequence[Json]) -> list[Json]:
    """Requests whose contents count in any order."""
    result: list[Json] = copy.deepcopy(canonical(list(requests)))
    for request in result:
        parts = [
            json.dumps(_with_sorted_keys(part), sort_keys=True)
            for content in request["contents"]
            for part in content["parts"]
        ]
        request["contents"] = sorted(parts)
    return result


def _with_sorted_keys(part: Json) -> Json:
    """A part whose text is a JSON object, as what a JoinNode hands on.

    ADK fills the object by iterating over a set of names, so its order is another one in every
    process.
    """
    text = part.get("text", "")
    if not text.startswith("{"):
        return part
    try:
        return {**part, "text": json.dumps(json.loads(text), sort_keys=True)}
    except ValueError:
        return part


async def compare_tree(
    build: Build,
    scripts: Scripts,
    messages: Sequence[str] = ("go",),
    *,
    cyclic: bool = False,
    any_order: bool = False,
    decide: Decide = lambda _: None,
    execute: Callable[[RequestedToolCall], ToolCallRecord | None] = lambda _: None,
    plain_build: Build | None = None,
    repeats: int = 2,
    plain: PlainResult | None = None,
    plain_world: TreeWorld | None = None,
    world: TreeWorld | None = None,
    compare_callbacks: bool = True,
    leave_out: Callable[[Json], bool] = lambda _: False,
    **runner_arguments: Any,
) -> Driver:
    """Run both and assert that they agree; returns the driver for further checks.

    Args:
        any_order: Whether an agent may see what parallel branches said in another order.
        leave_out: Decides on stored events that count on neither side.
    """
    if plain is None:
        plain_world = TreeWorld(scripts, cyclic=cyclic)
        plain = await run_plain(plain_build or build, plain_world, messages)
    assert plain_world is not None
    world = world or TreeWorld(scripts, cyclic=cyclic)
    runner = AdkAgentRunner(
        build(world), artifact_service=InMemoryArtifactService(), **runner_arguments
    )
    driver = Driver(runner, world, decide=decide, execute=execute, repeats=repeats)
    driver.calls_per_step = 20
    driver.limit = 200
    for message in messages:
        await driver.turn(message)
    ours = Seen(
        world.asked,
        [m.framework_item for m in driver.history if not leave_out(m.framework_item)],
        driver.state,
        world.executed,
        world.callbacks if compare_callbacks else [],
    )
    theirs = Seen(
        plain_world.asked,
        [event for event in plain.events if not leave_out(event)],
        plain.state,
        plain_world.executed,
        plain_world.callbacks if compare_callbacks else [],
    )
    check_same(ours, theirs, any_order=any_order)
    return driver


@dataclass(frozen=True)
class Seen:
    """What can be seen of one side.

    Attributes:
        asked: Agents and their requests, in order.
        history: Stored events.
    """

    asked: Sequence[tuple[str, Json]]
    history: Sequence[Json]
    state: Mapping[str, Json]
    executed: Sequence[tuple[str, Json]]
    callbacks: Sequence[str]


def check_same(ours: Seen, plain: Seen, *, any_order: bool) -> None:
    """Assert that both sides did the same.

    Args:
        any_order: Whether an agent may see what parallel branches said in another order.
    """
    shape: Callable[[Sequence[Json]], Any] = unordered if any_order else canonical
    for agent in sorted({name for name, _ in (*plain.asked, *ours.asked)}):
        requests, expected = (
            shape([request for name, request in side.asked if name == agent])
            for side in (ours, plain)
        )
        _check_equal(f"requests of {agent}", requests, expected)
    _check_equal("history", history_of(ours.history), history_of(plain.history))
    _check_equal("state", ours.state, plain.state)
    executed, expected = (sorted(map(repr, side.executed)) for side in (ours, plain))
    _check_equal("executions", executed, expected)
    callbacks, expected = (callbacks_of(side.callbacks, any_order) for side in (ours, plain))
    _check_equal("callbacks", callbacks, expected)


def _check_equal(name: str, ours: Any, plain: Any) -> None:
    found = list(itertools.islice(differences(ours, plain), _MOST_SHOWN))
    if found:
        raise AssertionError("\n".join([f"{name} differ from plain ADK:", *found]))


def differences(ours: Any, plain: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, with both values there."""
    if isinstance(ours, dict) and isinstance(plain, dict):
        for key in sorted({*ours, *plain}):
            yield from differences(
                ours.get(key, _ABSENT), plain.get(key, _ABSENT), f"{path}.{key}" if path else key
            )
    elif isinstance(ours, list) and isinstance(plain, list):
        if len(ours) != len(plain):
            yield f"{path}: {len(ours)} items, plain {len(plain)}"
        for index, pair in enumerate(zip(ours, plain, strict=False)):
            yield from differences(*pair, f"{path}[{index}]")
    elif ours != plain or type(ours) is not type(plain):
        yield f"{path}: {_short(ours)}, plain {_short(plain)}"


def _short(value: Any) -> str:
    text = _ABSENT if value is _ABSENT else json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def callbacks_of(callbacks: Sequence[str], any_order: bool) -> dict[str, list[str]]:
    """Callbacks in the order in which they ran.

    Those around calls of one response interleave otherwise when the calls run in Steps, so those
    around tools are compared apart from those around agents.
    """
    around_tools = [entry for entry in callbacks if "_tool" in entry]
    others = [entry for entry in callbacks if "_tool" not in entry]
    if not any_order:
        return {"tools": sorted(around_tools), "agents": others}
    found: dict[str, list[str]] = {"tools": sorted(around_tools)}
    for entry in others:
        found.setdefault(entry.split()[-1], []).append(entry)
    return found
