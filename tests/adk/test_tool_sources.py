"""Tools of sources as ADK's agents see them, by the oracle where plain ADK can do the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from dex_agents import (
    ImageReference,
    LocalDirectoryMediaStore,
    SourceTool,
    SourceToolCall,
    ToolCallStepOptions,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
    ToolPolicy,
    ToolSource,
    ToolSourceError,
)
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner, adk_agent_session_flow
from support.adk_oracle import Driver, ScriptedLlm, World, call, compare, run_plain, text
from support.tool_source import SCHEMA, ScriptedSource, for_ever


class PlainTool(BaseTool):
    """The same tool without a source, for plain ADK."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, description=f"Does {name}.")

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=SCHEMA
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return args


def agent(world: World, **fields: Any) -> LlmAgent:
    def own(x: int) -> int:
        """A tool of the agent."""
        world.ran("own", x=x)
        return x + 1

    settings: dict[str, Any] = {"name": "root", "model": ScriptedLlm(world=world), "tools": [own]}
    return LlmAgent(**settings | fields)


def driver_of(world: World, *sources: ScriptedSource, root: Any = None, **arguments: Any) -> Driver:
    repeats = arguments.pop("repeats", 1)
    runner = AdkAgentRunner(root or agent(world), tool_sources=sources, **arguments)
    return Driver(runner, world, repeats=repeats)


def answers(world: World, request: int) -> list[Any]:
    """What the newest message of a request answers to calls."""
    parts = world.requests[request]["contents"][-1]["parts"]
    return [part["function_response"]["response"] for part in parts]


def offered(world: World, request: int) -> list[str]:
    tools = world.requests[request]["config"].get("tools") or []
    return [d["name"] for item in tools for d in item["function_declarations"]]


def test_a_scripted_source_is_a_source() -> None:
    source: ToolSource = ScriptedSource()
    assert isinstance(source, ToolSource)


async def test_equals_plain_adk_with_the_same_tools() -> None:
    source = ScriptedSource(["look", "fetch"])
    script = [
        [call("look", id="a"), call("own", x=1), call("fetch", id="b")],
        [call("fetch", id="c")],
        text("done"),
        text("bye"),
    ]

    def plain(world: World) -> LlmAgent:
        root = agent(world)
        root.tools += [PlainTool("look"), PlainTool("fetch")]
        return root

    driver = await compare(
        agent,
        script,
        ["go", "next"],
        plain_build=plain,
        tool_policies={"own": ToolPolicy(ToolEffect.READ)},
        tool_sources=[source],
    )
    assert source.ran() == ["look", "fetch", "fetch"]
    # Every RunModel lists, and the oracle makes each of the four twice.
    assert source.listed == 8
    steps = {item.tool_name: item.effect for item in driver.requested}
    assert steps == dict.fromkeys(("look", "own", "fetch"), ToolEffect.READ)
    execution = source.executions[0]
    assert (execution.arguments, execution.framework_data) == ({"id": "a"}, None)


async def test_every_agent_of_the_tree_gets_one_toolset_for_each_runner() -> None:
    world = World([[call("look", id="1")], text("a"), text("b")])
    root = SequentialAgent(
        name="root",
        sub_agents=[agent(world, name="first"), agent(world, name="second", tools=[])],
    )
    agents: list[Any] = list(root.sub_agents)
    one, two = ScriptedSource(["look"]), ScriptedSource(["other"])
    driver = driver_of(world, one, root=root)
    driver.calls_per_step = 2
    AdkAgentRunner(root, tool_sources=[two])
    AdkAgentRunner(root)
    assert [len(item.tools) for item in agents] == [1, 0]
    await driver.turn("go")
    assert [offered(world, n) for n in range(3)] == [["own", "look"], ["own", "look"], ["look"]]
    assert (one.listed, two.listed) == (driver.steps, 0)


@pytest.mark.parametrize("has_tools", [True, False])
async def test_nothing_is_offered_outside_our_runs(has_tools: bool) -> None:
    shape = {"type": "object", "properties": {"size": {"type": "integer"}}}

    def build(world: World) -> LlmAgent:
        return agent(world, **({} if has_tools else {"tools": [], "output_schema": shape}))

    script = [text('{"size": 1}')]
    before = await run_plain(build, script, ["go"])
    source = ScriptedSource()

    def sourced(world: World) -> LlmAgent:
        root = build(world)
        AdkAgentRunner(root, tool_sources=[source])
        return root

    after = await run_plain(sourced, script, ["go"])
    assert after.world.requests == before.world.requests
    assert source.listed == 0


async def test_an_agent_with_an_output_schema_has_the_tools_in_our_runs() -> None:
    class Shape(BaseModel):
        size: int

    world = World([[call("look", id="1")], [call("set_model_response", size=3)]])
    driver = driver_of(world, ScriptedSource(), root=agent(world, tools=[], output_schema=Shape))
    outcome = await driver.turn("go")
    assert outcome.final_text == '{"size": 3}'
    assert "look" in offered(world, 0)


async def test_guardrails_see_the_call_first() -> None:
    seen: list[str] = []

    def guard(tool: Any, args: Any, tool_context: Any) -> Any:
        seen.append(tool.name)
        return {"blocked": True} if args["id"] == "secret" else None

    source = ScriptedSource()
    world = World([[call("look", id="secret"), call("look", id="ok")], text("done")])
    driver = driver_of(world, source, root=agent(world, before_tool_callback=guard))
    await driver.turn("go")
    assert seen == ["look", "look"]
    assert [item.arguments for item in driver.requested] == [{"id": "ok"}]
    assert answers(world, 1) == [{"blocked": True}, {"id": "ok"}]


WRITE = ToolEffect.NON_IDEMPOTENT_WRITE


async def test_the_source_decides_and_a_policy_changes_the_approval_only() -> None:
    source = ScriptedSource(
        ["look", "pay", "charge", "asks"],
        calls={
            "pay": SourceToolCall(WRITE, is_ordered_write=True, hint="money", data={"k": 1}),
            "charge": SourceToolCall(ToolEffect.IDEMPOTENT_WRITE),
            "asks": SourceToolCall(ToolEffect.READ, requires_approval=True),
        },
        options={"charge": ToolCallStepOptions(timedelta(seconds=7), 5, timedelta(seconds=2))},
    )
    policies = {
        "look": ToolPolicy(WRITE, requires_approval=True),
        "pay": ToolPolicy(ToolEffect.READ, requires_approval=False),
        "asks": ToolPolicy(ToolEffect.READ),
    }
    world = World(
        [[call(name, id=name) for name in ("look", "pay", "charge", "asks")], text("done")]
    )
    driver = driver_of(world, source, tool_policies=policies)
    await driver.turn("go")
    asked = {item.tool_name: item for item in driver.requested}
    assert {name: (item.effect, item.requires_approval) for name, item in asked.items()} == {
        "look": (ToolEffect.READ, True),
        "pay": (WRITE, False),
        "charge": (ToolEffect.IDEMPOTENT_WRITE, False),
        "asks": (ToolEffect.READ, True),
    }
    assert [item.is_ordered_write for item in driver.requested] == [False, True, False, False]
    assert (asked["pay"].hint, asked["pay"].timeout_s) == ("money", None)
    charge = asked["charge"]
    assert (charge.timeout_s, charge.maximum_attempts, charge.retry_interval_s) == (7, 5, 2)
    assert {item.tool_name: item.framework_data for item in source.executions}["pay"] == {"k": 1}


async def test_a_source_may_refuse_a_call() -> None:
    class Strict(ScriptedSource):
        def build_tool_call(self, tool_name: str, arguments: Any) -> SourceToolCall:
            raise ToolExecutionError("there is no 9")

    world = World([[call("look", id="9")], text("done")])
    driver = driver_of(world, Strict())
    await driver.turn("go")
    assert driver.requested == []
    assert answers(world, 1) == [{"error": "The tool call failed: there is no 9"}]


async def test_a_process_without_the_source_does_not_run_its_calls() -> None:
    source = ScriptedSource()
    world = World([[call("look", id="1")], text("done")])
    driver = driver_of(world, source)
    other = AdkAgentRunner(agent(World([])))
    execute = driver.runner.execute_deferred_tool_call
    driver.runner.execute_deferred_tool_call = other.execute_deferred_tool_call  # type: ignore[method-assign]
    await driver.turn("go")
    assert source.executions == []
    (answer,) = answers(world, 1)
    assert "this Worker has no tool source named 'shelf'" in answer["error"]
    assert execute is not None


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([ScriptedSource(), ScriptedSource(["x"])], "two sources named 'shelf'"),
        ([ScriptedSource(declared=["own"])], "the name of a tool of agent 'root'"),
        ([ScriptedSource(declared=["root"])], "the name of an agent"),
        ([ScriptedSource(declared=["exit_loop"])], "the name of an ADK control tool"),
        (
            [ScriptedSource(declared=["x"]), ScriptedSource(name="b", declared=["x"])],
            "the name of a tool of the source 'shelf'",
        ),
        ([ScriptedSource(name=" ")], "is blank"),
    ],
)
def test_clashes_when_the_flow_is_built(sources: list[ScriptedSource], message: str) -> None:
    root = agent(World([]))
    with pytest.raises(ValueError, match=message):
        adk_agent_session_flow(root, flow_type="Clash", tool_sources=sources)
    assert len(root.tools) == 1


def test_other_wrong_arguments() -> None:
    wrong: Any = [object()]
    with pytest.raises(TypeError, match="tool_sources must hold tool sources, got object"):
        AdkAgentRunner(agent(World([])), tool_sources=wrong)
    with pytest.raises(ValueError, match="tool_source_listing_timeout must be a whole number"):
        AdkAgentRunner(agent(World([])), tool_source_listing_timeout=timedelta(seconds=0.5))
    refused: list[tuple[Any, type[Exception], str]] = [
        ("look", TypeError, "must be a list of texts, got str"),
        ([7], TypeError, "must hold texts, got int"),
        ([" "], ValueError, "must be a printable text that is not blank, got ' '"),
    ]
    for declared, kind, refusal in refused:
        source = ScriptedSource(declared=[])
        source._declared = declared
        with pytest.raises(kind, match=f"declared_tool_names of the source 'shelf' {refusal}"):
            AdkAgentRunner(agent(World([])), tool_sources=[source])
    policies = {"nothing": ToolPolicy(ToolEffect.READ)}
    with pytest.raises(ValueError, match="the tools are 'look', 'own'"):
        AdkAgentRunner(
            agent(World([])),
            tool_policies=policies,
            tool_sources=[ScriptedSource(declared=["look"])],
        )
    AdkAgentRunner(agent(World([])), tool_policies=policies, tool_sources=[ScriptedSource()])


@pytest.mark.parametrize("name", ["own", "root", "transfer_to_agent", "taken"])
async def test_clashes_at_run_time(name: str) -> None:
    first, second = ScriptedSource(["taken"], name="a"), ScriptedSource([], name="b")
    world = World([text("one"), text("two")])
    driver = driver_of(world, first, second)
    await driver.turn("go")
    second.tools = [name]
    with pytest.raises(ToolSourceError, match=f"the tool '{name}' of the source 'b'") as caught:
        await driver.turn("again")
    assert not isinstance(caught.value, AgentTurnError)
    assert len(world.requests) == 1


@pytest.mark.parametrize("toolset_is_last", [False, True])
async def test_a_toolset_that_lists_a_source_tools_name(toolset_is_last: bool) -> None:
    class Late(BaseToolset):
        names: tuple[str, ...] = ()

        async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
            return [PlainTool(name) for name in self.names]

    world = World([text("one"), text("two")])
    toolset, root = Late(), agent(world)
    if not toolset_is_last:
        root.tools.append(toolset)
    driver = driver_of(world, ScriptedSource(), root=root)
    if toolset_is_last:
        root.tools.append(toolset)
    await driver.turn("go")
    toolset.names = ("look",)
    with pytest.raises(ToolSourceError, match="that the agent, or a toolset of it, lists"):
        await driver.turn("again")
    assert len(world.requests) == 1


async def _raise() -> None:
    raise ConnectionError("refused")


async def _wrong() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("listing", [_raise, for_ever, _wrong])
async def test_the_turn_goes_on_without_a_source_that_cannot_list(
    listing: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    broken, fine = ScriptedSource(["lost"], name="broken"), ScriptedSource(["look"])
    broken.listing = listing
    world = World([[call("look", id="1")], text("done")])
    driver = driver_of(world, broken, fine, tool_source_listing_timeout=timedelta(seconds=1))
    with caplog.at_level(logging.WARNING, "dex_agents"):
        await driver.turn("go")
    assert offered(world, 0) == offered(world, 1) == ["own", "look"]
    assert "the tool source broken" in caplog.text
    await asyncio.sleep(0.1)  # the listing that swallowed its cancellation has ended as well


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_withdrawn_tool_is_replayed_and_refused(is_restarted: bool) -> None:
    source = ScriptedSource(["look", "stay"])
    world = World(
        [[call("look", id="1")], [call("look", id="2"), call("stay", id="3")], text("done")]
    )
    driver = driver_of(world, source)

    def withdraw(item: Any) -> None:
        source.tools = ["stay", "new"]
        if is_restarted:
            # Another process: it has never listed the tool that it replays.
            driver.runner = AdkAgentRunner(
                agent(world), tool_sources=[ScriptedSource(["stay", "new"])]
            )

    first = driver._record

    async def record(item: Any, context: Any) -> Any:
        result = await first(item, context)
        withdraw(item)
        return result

    driver._record = record  # type: ignore[method-assign]
    await driver.turn("go")
    assert answers(world, 1) == [{"id": "1"}]
    assert offered(world, 1) == ["own", "stay", "new", "look"]
    declared = [d for t in world.requests[1]["config"]["tools"] for d in t["function_declarations"]]
    assert next(d for d in declared if d["name"] == "look") == next(
        d
        for t in world.requests[0]["config"]["tools"]
        for d in t["function_declarations"]
        if d["name"] == "look"
    )
    assert answers(world, 2) == [
        {"error": "look did not run: its tool source does not offer this tool now."},
        {"id": "3"},
    ]
    assert [item.tool_name for item in driver.requested] == ["look", "stay"]
    world.script.append(text("later"))
    await driver.turn("next")
    assert offered(world, 3) == ["own", "stay", "new"]


@pytest.mark.parametrize("cached", [RuntimeError("no cache"), None, [None], 7])
async def test_a_withdrawn_tool_is_replayed_without_the_source_s_cache(
    cached: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(ScriptedSource):
        def cached_tools(self) -> Any:
            if isinstance(cached, Exception):
                raise cached
            return cached

    source = Forgetful(["look"])
    world = World([[call("look", id="1")], text("done")])
    driver = driver_of(world, source)
    driver.execute = lambda _: source.tools.clear()
    await driver.turn("go")
    assert answers(world, 1) == [{"id": "1"}]
    declared = [
        [d for t in request["config"]["tools"] for d in t["function_declarations"]][-1]
        for request in world.requests
    ]
    assert declared[0] == declared[1] and declared[0]["name"] == "look"
    assert "the tool source shelf could not say which tools it has listed" in caplog.text


async def test_a_listing_in_another_order_changes_nothing_recorded() -> None:
    source = ScriptedSource(["a", "b", "c"])
    world = World([[call("a", id="1"), call("c", id="2")], text("done")])
    driver = driver_of(world, source)

    def reverse(_: Any) -> None:
        source.tools.reverse()

    driver.execute = reverse
    await driver.turn("go")
    assert answers(world, 1) == [{"id": "1"}, {"id": "2"}]


@pytest.mark.parametrize("has_store", [True, False])
async def test_images_of_a_source(has_store: bool, tmp_path: Any) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    data = b"\x89PNG\r\n\x1a\nchart"
    reference: ImageReference = await store.put_image(data)

    async def draw(call: Any) -> ToolExecutionResult:
        return ToolExecutionResult({"title": "chart"}, images=[reference])

    source = ScriptedSource(["draw"], runs={"draw": draw})
    world = World([[call("draw", id="1")], text("done")])
    driver = driver_of(world, source, media_store=store if has_store else None)
    outcome = await driver.turn("go")
    shown = world.requests[1]["contents"][-1]["parts"][0]["function_response"]
    lost = {"not_stored": "1 image was left out: the session has no media store"}
    assert shown["response"] == {"title": "chart"} | ({} if has_store else lost)
    assert ("parts" in shown) is has_store
    images = [list(m.images) for m in outcome.messages if m.role == "tool"]
    assert images == [[reference] if has_store else []]
    assert data not in repr(driver.history).encode()


async def test_adk_never_runs_a_source_tool_itself() -> None:
    source = ScriptedSource()
    world = World([])
    runner = AdkAgentRunner(agent(world), tool_sources=[source])
    offer = await runner._setup.sources.offer({})
    context: Any = None
    with pytest.raises(AgentTurnError, match="it did not run"):
        await offer.tools["look"].run_async(args={}, tool_context=context)


def test_step_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"ToolCallStepOptions\.timeout must be a whole number"):
        ToolCallStepOptions(timedelta(seconds=1.5))
    with pytest.raises(ValueError, match="maximum_attempts must be an int from 1 on, got 0"):
        ToolCallStepOptions(maximum_attempts=0)


@pytest.mark.parametrize(
    "listed",
    [
        lambda: [object()],
        lambda: [SourceTool(" ", "", {})],
        lambda: [SourceTool(cast(Any, 7), "", {})],
        lambda: [SourceTool("look", cast(Any, None), {})],
        lambda: [SourceTool("look", "", cast(Any, None))],
        lambda: [SourceTool("look", "", {"properties": object()})],
    ],
    ids=["wrong type", "no name", "number", "no description", "no schema", "no JSON"],
)
async def test_a_listing_that_is_none_offers_nothing(listed: Callable[[], Any]) -> None:
    class Broken(ScriptedSource):
        async def list_tools(self) -> Any:
            return listed()

    world = World([text("done")])
    await driver_of(world, Broken()).turn("go")
    assert offered(world, 0) == ["own"]


def _raise_at_once() -> Any:
    raise ConnectionError("refused")


def _exit() -> Any:
    raise SystemExit(3)


def _raise_group() -> Any:
    raise BaseExceptionGroup("several", [SystemExit(3)])


@pytest.mark.parametrize("list_tools", [list, _raise_at_once, _exit, _raise_group])
async def test_a_source_that_lists_without_a_coroutine(
    list_tools: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    broken = ScriptedSource(["lost"], name="broken")
    broken.list_tools = list_tools  # type: ignore[method-assign]
    world = World([text("done")])
    with caplog.at_level(logging.WARNING, "dex_agents"):
        await driver_of(world, broken, ScriptedSource()).turn("go")
    assert offered(world, 0) == ["own", "look"]
    assert "the tool source broken could not list" in caplog.text


async def test_a_source_that_cannot_say_how_to_run_a_call_is_named() -> None:
    def fails(name: str, arguments: Any = None) -> Any:
        raise KeyError("price")

    def gives(value: Any) -> Callable[..., Any]:
        return lambda *_: value

    wrong: list[tuple[str, Callable[..., Any], str]] = [
        ("build_tool_call", fails, "KeyError: 'price'"),
        ("build_tool_call", gives(None), "build_tool_call gave a NoneType"),
        (
            "build_tool_call",
            lambda *_: SourceToolCall(cast(Any, "read")),
            "SourceToolCall.effect must be",
        ),
        ("tool_call_step_options", gives(None), "tool_call_step_options gave a NoneType"),
    ]
    for method, replaced, why in wrong:
        source = ScriptedSource()
        setattr(source, method, replaced)
        driver = driver_of(World([[call("look", id="1")]]), source)
        with pytest.raises(ToolSourceError, match=f"'shelf' cannot say how to run 'look': .*{why}"):
            await driver.turn("go")
        assert not source.executions
