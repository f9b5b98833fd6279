"""Situations that users of agents reported elsewhere, told by docs/reported-cases.md, next to plain ADK."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.cache_metadata import CacheMetadata
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import BaseModel

from dex_agents._contract import RequestedToolCall
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import (
    Driver,
    ScriptedLlm,
    Step,
    World,
    answer,
    call,
    compare,
    text,
)
from support.tree_oracle import TreeLlm, TreeWorld, compare_tree

READ: Any = {"default_tool_effect": ToolEffect.READ}


def agent_with(world: World, *tools: Any, name: str = "root", **fields: Any) -> LlmAgent:
    model = (TreeLlm if isinstance(world, TreeWorld) else ScriptedLlm)(world=world)
    return LlmAgent(name=name, model=model, tools=list(tools), **fields)


def noting(world: World, name: str, result: Any = None) -> Any:
    """A tool that notes its execution."""

    def tool(x: str = "") -> Any:
        world.ran(name, x=x)
        return {"value": f"{name}({x})"} if result is None else result

    tool.__name__ = name
    tool.__doc__ = f"Tool {name}."
    return tool


async def test_an_ungated_call_beside_a_gated_one_keeps_its_result() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world, noting(world, "delete"), noting(world, "list"))

    driver = await compare(
        build,
        [[call("delete", x="1"), call("list")], text("deleted")],
        tool_policies={
            "delete": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=True),
            "list": ToolPolicy(ToolEffect.READ),
        },
    )
    assert [item.requires_approval for item in driver.requested] == [True, False]
    names = [
        part["function_response"]["name"]
        for part in driver.world.requests[1]["contents"][-1]["parts"]
    ]
    assert names == ["delete", "list"]
    assert driver.history[-1].text == "deleted"


async def test_each_agent_of_a_gated_pipeline_runs_once() -> None:
    def build(world: World) -> BaseNode:
        return SequentialAgent(
            name="root",
            sub_agents=[
                agent_with(world, noting(world, "plan"), name="planner"),
                agent_with(world, noting(world, "execute"), name="executor"),
                agent_with(world, name="validator"),
            ],
        )

    script: list[Step] = [
        call("plan", x="1"),
        text("planned"),
        call("execute", x="2"),
        text("executed"),
        text("valid"),
    ]
    driver = await compare(build, script)
    assert [item.tool_name for item in driver.requested] == ["plan", "execute"]
    assert all(item.requires_approval for item in driver.requested)


async def test_the_loop_behind_a_gated_agent_runs_in_the_same_turn() -> None:
    def build(world: World) -> BaseNode:
        quiz = agent_with(world, name="quiz")
        return SequentialAgent(
            name="root",
            sub_agents=[
                agent_with(world, name="host"),
                agent_with(world, noting(world, "book"), name="gated"),
                LoopAgent(name="loop", sub_agents=[quiz], max_iterations=2),
            ],
        )

    script: list[Step] = [
        text("hello"),
        call("book", x="1"),
        text("booked"),
        text("q1"),
        text("q2"),
        text("hello again"),
        text("nothing to book"),
        text("q3"),
        text("q4"),
    ]
    await compare(build, script, ["one", "two"])


async def test_single_turn_children_see_only_their_own_request() -> None:
    def build(world: World) -> LlmAgent:
        children = [agent_with(world, name=name, mode="single_turn") for name in ("left", "right")]
        return agent_with(world, sub_agents=children)

    scripts: dict[str, list[Step]] = {
        "root": [
            [call("left", request="order 1"), call("right", request="order 2")],
            text("both"),
        ],
        "left": [text("one")],
        "right": [text("two")],
    }
    world = TreeWorld(scripts)
    await compare_tree(build, scripts, world=world)
    for child, own, other in (("left", "order 1", "order 2"), ("right", "order 2", "order 1")):
        (request,) = world.requests_of(child)
        assert own in str(request["contents"])
        assert other not in str(request["contents"])


async def test_a_streamed_call_is_shown_once_and_counted_once() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world, noting(world, "look"))

    made = call("look", None, x="1")
    script: list[Step] = [
        [answer(made, partial=True), answer(made)],
        text("done"),
    ]
    driver = await compare(build, script, **READ)
    assert len(driver.requested) == 1
    assert driver.usage.model_calls == 2
    stored = driver.history[1].framework_item["content"]["parts"][0]["function_call"]
    assert stored["id"] == driver.requested[0].call_id
    assert driver.live.of("tool_call_started") == []  # the tool's own Step tells it


class Settings(BaseModel):
    """What a tool might put into state by mistake."""

    tenant: str = "t1"


async def test_a_model_in_state_is_stored_as_plain_adk_stores_it() -> None:
    def build(world: World) -> LlmAgent:
        def save(tool_context: ToolContext) -> str:
            """Save."""
            tool_context.state["settings"] = Settings()
            return "saved"

        return agent_with(world, save)

    world = World([call("save"), text("done")])
    driver = Driver(AdkAgentRunner(build(world), **READ), world)
    await driver.turn("go")
    assert driver.state["settings"] == {"tenant": "t1"}


class Circle(BaseModel):
    """A circle."""

    radius: float


class Square(BaseModel):
    """A square."""

    side: float


async def test_unions_of_models_arrive_as_their_classes() -> None:
    def build(world: World) -> LlmAgent:
        def draw(shape: Circle | Square, more: list[Circle]) -> str:
            """Draw."""
            world.ran("draw", shape=repr(shape), more=repr(more))
            return "drawn"

        return agent_with(world, draw)

    script: list[Step] = [
        call("draw", shape={"side": 2.0}, more=[{"radius": 1.0}]),
        text("done"),
    ]
    driver = await compare(build, script, **READ)
    assert driver.world.executed == [
        ("draw", {"shape": "Square(side=2.0)", "more": "[Circle(radius=1.0)]"})
    ]


async def test_a_missing_argument_is_told_to_the_model_and_the_tool_not_entered() -> None:
    def build(world: World) -> LlmAgent:
        def book(city: str, nights: int) -> str:
            """Book."""
            world.ran("book", city=city, nights=nights)
            return "booked"

        return agent_with(world, book)

    script: list[Step] = [
        call("book", city="Rome"),
        call("book", city="Rome", nights=2),
        text("done"),
    ]
    driver = await compare(build, script, **READ)
    assert driver.world.executed == [("book", {"city": "Rome", "nights": 2})]
    assert "nights" in str(driver.world.requests[1]["contents"][-1])


async def test_text_of_every_script_reaches_the_next_request_unchanged() -> None:
    words = "שלום 你好 🎉 e\u0301 \u202e"

    def build(world: World) -> LlmAgent:
        def echo(x: str, tool_context: ToolContext) -> dict[str, str]:
            """Echo."""
            tool_context.state["word"] = x
            return {"value": x}

        return agent_with(world, echo, instruction="{word?}")

    driver = await compare(build, [call("echo", x=words), text(words)], [words], **READ)
    last = driver.world.requests[-1]
    assert last["contents"][-1]["parts"][0]["function_response"]["response"] == {"value": words}
    assert words in last["config"]["system_instruction"]
    assert driver.history[-1].text == words


async def test_an_unknown_tool_spoils_no_later_turn() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world, noting(world, "pay"))

    script: list[Step] = [
        [call("nope"), call("pay", x="1")],
        text("paid"),
        call("pay", x="2"),
        text("again"),
        text("third"),
        text("fourth"),
    ]
    driver = await compare(build, script, ["1", "2", "3", "4"], **READ)
    assert driver.world.executed == [("pay", {"x": "1"}), ("pay", {"x": "2"})]


async def test_state_set_beside_a_transfer_is_kept_even_behind_an_approval() -> None:
    def build(world: World) -> LlmAgent:
        def save(x: str, tool_context: ToolContext) -> str:
            """Save."""
            world.ran("save", x=x)
            tool_context.state["saved"] = x
            return "saved"

        child = agent_with(world, name="child", instruction="{saved?}")
        return agent_with(world, save, sub_agents=[child])

    script: list[Step] = [
        [call("save", x="1"), call("transfer_to_agent", agent_name="child")],
        text("from the child"),
    ]
    driver = await compare(build, script)
    assert [item.tool_name for item in driver.requested if item.requires_approval] == ["save"]
    assert driver.state["saved"] == "1"
    assert driver.history[-1].framework_item["author"] == "child"


async def test_an_empty_dictionary_of_a_guardrail_is_an_answer() -> None:
    def build(world: World) -> LlmAgent:
        def guard(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
            return {} if args["x"] == "empty" else None

        return agent_with(world, noting(world, "look"), before_tool_callback=guard)

    script: list[Step] = [[call("look", x="empty"), call("look", x="none")], text("done")]
    driver = await compare(build, script, **READ)
    assert [item.arguments["x"] for item in driver.requested] == ["none"]


async def test_a_plugin_that_answers_before_the_run_keeps_the_model_out() -> None:
    class Closed(BasePlugin):
        async def before_run_callback(self, **_: Any) -> types.Content:
            return types.Content(role="model", parts=[types.Part(text="closed")])

    def build(world: World) -> App:
        return App(name="shop", root_agent=agent_with(world), plugins=[Closed("closed")])

    driver = await compare(build, [])
    assert driver.history[-1].text == "closed"
    assert driver.world.requests == []


async def test_an_edit_before_the_model_goes_to_that_request_only() -> None:
    def build(world: World) -> LlmAgent:
        def before(callback_context: Any, llm_request: Any) -> None:
            llm_request.contents.append(
                types.Content(role="user", parts=[types.Part(text=f"hint {world.cursor}")])
            )

        return agent_with(world, before_model_callback=before)

    driver = await compare(build, [text("a"), text("b")], ["1", "2"])
    first, second = (str(request["contents"]) for request in driver.world.requests)
    assert "hint 0" in first
    assert "hint 0" not in second
    assert "hint 1" in second
    assert "hint" not in str([message.framework_item for message in driver.history])


async def test_the_output_key_of_an_agent_that_a_callback_answers() -> None:
    def build(world: World) -> BaseNode:
        def skip(callback_context: Any) -> types.Content:
            return types.Content(role="model", parts=[types.Part(text="skipped")])

        first = agent_with(world, name="first", output_key="draft", before_agent_callback=skip)
        second = agent_with(world, name="second", instruction="Draft: {draft?}")
        return SequentialAgent(name="root", sub_agents=[first, second])

    await compare(build, [text("done")])


async def test_a_nested_change_of_state_counts_as_in_plain_adk() -> None:
    def build(world: World) -> LlmAgent:
        def before(callback_context: Any) -> None:
            if "person" not in callback_context.state:
                callback_context.state["person"] = {"name": "Ada"}
            else:
                callback_context.state["person"]["name"] += "!"

        return agent_with(world, noting(world, "look"), before_agent_callback=before)

    script: list[Step] = [text("a"), call("look", x="1"), text("b"), text("c")]
    await compare(build, script, ["1", "2", "3"], **READ)


async def test_equal_messages_are_both_kept_and_a_turn_stores_the_same_however_many() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world)

    driver = await compare(build, [text("ok")] * 12, ["yes"] * 12, repeats=1)
    users = [message for message in driver.history if message.role.value == "user"]
    assert [message.text for message in users] == ["yes"] * 12
    sizes = [len(str(message.framework_item)) for message in users]
    assert max(sizes) - min(sizes) < 8  # clocks print with more or fewer digits


async def test_the_stable_beginning_of_requests_never_changes() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(
            world,
            noting(world, "look"),
            static_instruction="You sell shoes. " * 20,
            instruction="It is turn {turn?}.",
            before_agent_callback=lambda callback_context: callback_context.state.update(
                {"turn": callback_context.state.get("turn", 0) + 1}
            ),
        )

    def gate(_: RequestedToolCall) -> None:
        return None

    driver = await compare(
        build,
        [call("look", x="1"), text("a"), text("b")],
        ["1", "2"],
        decide=gate,
        tool_policies={"look": ToolPolicy(ToolEffect.READ, requires_approval=True)},
    )
    prefixes = {request["config"]["system_instruction"] for request in driver.world.requests}
    assert len(prefixes) == 1
    assert "You sell shoes. " in prefixes.pop()


async def test_a_guard_that_asks_for_confirmation_of_a_transfer_is_told_what_to_do() -> None:
    def guard(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
        tool_context.request_confirmation(hint="Hand over?")
        return {"status": "pending"}

    world = World([call("transfer_to_agent", agent_name="child")])
    child = agent_with(world, name="child")
    root = agent_with(world, sub_agents=[child], before_tool_callback=guard)
    with pytest.raises(AgentTurnError, match=r"confirmation of 'transfer_to_agent'.*did not run"):
        await Driver(AdkAgentRunner(root, **READ), world).turn("go")
    assert len(world.requests) == 1


CACHED = CacheMetadata(
    cache_name="cachedContents/1",
    expire_time=2_000_000_000.5,
    fingerprint="f" * 16,
    invocations_used=3,
    contents_count=2,
    created_at=1_900_000_000.5,
)


async def test_cache_metadata_of_a_response_is_kept_in_its_event() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world, noting(world, "look"))

    driver = await compare(
        build,
        [answer(call("look", x="1"), cache_metadata=CACHED), answer(text("done"))],
        default_tool_effect=ToolEffect.READ,
    )
    events = [Event.model_validate(message.framework_item) for message in driver.history]
    assert [event.cache_metadata for event in events if event.cache_metadata] == [CACHED]


async def test_a_context_cache_config_and_the_cache_of_before_reach_every_request() -> None:
    config = ContextCacheConfig(cache_intervals=5, ttl_seconds=99, min_tokens=3)
    seen: list[tuple[Any, Any, Any]] = []

    def note(callback_context: Any, llm_request: LlmRequest) -> None:
        seen.append(
            (
                llm_request.cache_config,
                llm_request.cache_metadata,
                llm_request.cacheable_contents_token_count,
            )
        )

    def build(world: World) -> App:
        agent = agent_with(world, noting(world, "look"), before_model_callback=note)
        return App(name="cached", root_agent=agent, context_cache_config=config)

    script = [answer(call("look", x="1"), cache_metadata=CACHED), answer(text("a")), text("b")]
    await compare(build, script, ["one", "two"], repeats=1, **READ)
    plain, ours = seen[:3], seen[3:]
    assert ours == plain
    assert ours[0] == (config, None, None)
    # One invocation later ADK counts one use more.
    assert [entry[1].invocations_used for entry in ours[1:]] == [3, 4]


async def test_a_response_that_lost_its_call_is_left_out_of_later_requests() -> None:
    def build(world: World) -> BaseNode:
        agents: list[BaseAgent] = [
            agent_with(world, noting(world, f"look_{n}"), name=n) for n in ("one", "two")
        ]
        return ParallelAgent(name="root", sub_agents=agents)

    scripts: dict[str, list[Step]] = {
        name: [
            [call(f"look_{name}", x="1")],
            text("first"),
            [call(f"look_{name}", x="2")],
            text("x"),
        ]
        for name in ("one", "two")
    }
    world = TreeWorld(scripts)
    driver = Driver(AdkAgentRunner(build(world), **READ), world)
    driver.calls_per_step = 2
    await driver.turn("go")
    (lost,) = (
        message
        for message in driver.history
        if message.framework_item["author"] == "one" and "function_call" in str(message)
    )
    driver.history.remove(lost)
    await driver.turn("again")
    parts = [str(content["parts"]) for content in world.requests_of("one")[-1]["contents"]]
    assert [part for part in parts if "function_response" in part and "look_one(1)" in part] == []
    assert "look_one(2)" in parts[-1]
    # The branch beside it still sees its own.
    parts = [str(content["parts"]) for content in world.requests_of("two")[-1]["contents"]]
    assert len([part for part in parts if "function_response" in part]) == 2
