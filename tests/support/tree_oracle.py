"""The differential oracle for agent trees and Workflows: a script for each agent.

Branches that run side by side may interleave otherwise than in plain ADK, so what is compared is
what each agent was asked, and what each agent left in the history, in its own order.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.models.llm_request import LlmRequest

from dex_agents._contract import Json, RequestedToolCall, ToolCallRecord
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Build, Decide, Driver, PlainResult, ScriptedLlm, World, run_plain

Scripts = Mapping[str, Sequence[Any]]
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
        script = self.scripts[agent]
        if self.cyclic:
            index %= len(script)
        assert index < len(script), f"model call {index} of {agent} is not scripted"
        return script[index]

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
            json.dumps(part, sort_keys=True)
            for content in request["contents"]
            for part in content["parts"]
        ]
        request["contents"] = sorted(parts)
    return result


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
    **runner_arguments: Any,
) -> Driver:
    """Run both and assert that they agree; returns the driver for further checks.

    Args:
        any_order: Whether an agent may see what parallel branches said in another order.
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
    shape: Callable[[Sequence[Json]], Any] = unordered if any_order else canonical
    agents = {name for name, _ in (*plain_world.asked, *world.asked)}
    for agent in sorted(agents):
        assert shape(world.requests_of(agent)) == shape(plain_world.requests_of(agent)), agent
    ours = history_of([message.framework_item for message in driver.history])
    assert ours == history_of(plain.events)
    assert driver.state == plain.state
    assert sorted(map(repr, world.executed)) == sorted(map(repr, plain_world.executed))
    if compare_callbacks:
        assert callbacks_of(world, any_order) == callbacks_of(plain_world, any_order)
    return driver


def callbacks_of(world: World, any_order: bool) -> dict[str, list[str]]:
    """Callbacks in the order in which they ran.

    Those around calls of one response interleave otherwise when the calls run in Steps, so those
    around tools are compared apart from those around agents.
    """
    around_tools = [entry for entry in world.callbacks if "_tool" in entry]
    others = [entry for entry in world.callbacks if "_tool" not in entry]
    if not any_order:
        return {"tools": sorted(around_tools), "agents": others}
    found: dict[str, list[str]] = {"tools": sorted(around_tools)}
    for entry in others:
        found.setdefault(entry.split()[-1], []).append(entry)
    return found
