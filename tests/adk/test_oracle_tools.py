"""Records, approvals, guardrails and callbacks agree with plain ADK."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents._contract import ContinueTurn, ToolCallsRequested
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents._errors import OUTCOME_UNKNOWN_TOOL_RESULT, ToolExecutionError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import (
    Driver,
    ScriptedLlm,
    Step,
    World,
    call,
    compare,
    failed,
    text,
    unknown,
)

READ: Any = {"default_tool_effect": ToolEffect.READ}


def make_tool(world: World, name: str, result: Any = None) -> Any:
    async def tool(x: str = "") -> Any:
        world.ran(name, x=x)
        if isinstance(result, Exception):
            raise result
        return {"value": f"{name}({x})"} if result is None else result

    tool.__name__ = name
    tool.__doc__ = f"Tool {name}."
    return tool


def agent_with(world: World, *tools: Any, **fields: Any) -> LlmAgent:
    return LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools), **fields)


PARALLEL = [[call("a", x="1"), call("b", x="2"), call("c", x="3")], text("done")]


def abc(world: World, **fields: Any) -> LlmAgent:
    return agent_with(world, *(make_tool(world, name) for name in "abc"), **fields)


@pytest.mark.parametrize("order", ["abc", "cab"])
async def test_guardrail_answers_one_of_three(order: str) -> None:
    async def guard(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
        tool_context.state[f"seen_{tool.name}"] = True
        await asyncio.sleep(0.001 * order.index(tool.name))
        return {"blocked": tool.name} if tool.name == "b" else None

    def build(world: World) -> LlmAgent:
        async def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
            world.log(f"before {tool.name}")
            return await guard(tool, args, tool_context)

        def after(
            tool: Any, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
        ) -> Any:
            world.log(f"after {tool.name} {tool_response}")
            tool_context.state[f"after_{tool.name}"] = str(tool_response)

        return abc(world, before_tool_callback=before, after_tool_callback=after)

    driver = await compare(build, PARALLEL, **READ, compare_callbacks=False)
    assert [c.tool_name for c in driver.requested] == ["a", "c"]
    assert sorted(driver.world.callbacks) == sorted(
        [
            "before a",
            "before b",
            "before c",
            "after a {'value': 'a(1)'}",
            "after b {'blocked': 'b'}",
            "after c {'value': 'c(3)'}",
        ]
    )


async def test_guardrail_answers_all() -> None:
    def build(world: World) -> LlmAgent:
        return abc(
            world, before_tool_callback=lambda tool, args, tool_context: {"blocked": tool.name}
        )

    driver = await compare(build, PARALLEL, **READ)
    assert not driver.requested
    assert [type(o).__name__ for o in driver.outcomes] == ["ContinueTurn", "TurnCompleted"]


async def test_callback_changes_arguments() -> None:
    def build(world: World) -> LlmAgent:
        def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
            args["x"] = args["x"] + "!"

        def after(
            tool: Any, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
        ) -> Any:
            world.log(f"{tool.name} {args}")
            return {"changed": tool_response}

        return abc(world, before_tool_callback=[before], after_tool_callback=[after])

    driver = await compare(build, PARALLEL, **READ)
    assert driver.requested[0].arguments == {"x": "1!"}


async def test_rejected_failed_and_unknown() -> None:
    texts = {
        "a": {"error": "not today"},
        "b": {"error": "The tool call failed: no such order"},
        "c": {"error": OUTCOME_UNKNOWN_TOOL_RESULT},
    }

    def plain_build(world: World) -> LlmAgent:
        return agent_with(world, *(make_tool(world, name, texts[name]) for name in "abc"))

    def build(world: World) -> LlmAgent:
        results: dict[str, Any] = {
            "a": None,
            "b": ToolExecutionError("no such order"),
            "c": RuntimeError("boom"),
        }
        return agent_with(world, *(make_tool(world, name, results[name]) for name in "abc"))

    driver = await compare(
        build,
        PARALLEL,
        plain_build=plain_build,
        compare_executions=False,
        decide=lambda item: "not today" if item.tool_name == "a" else None,
    )
    assert [c.requires_approval for c in driver.requested] == [True] * 3
    assert sorted(name for name, _ in driver.world.executed) == ["b", "c"]


async def test_withdrawn_tool_is_not_run() -> None:
    world = World(PARALLEL)
    agent = abc(world)
    runner = AdkAgentRunner(agent, **READ)

    def withdraw(item: Any) -> None:
        agent.tools = agent.tools[:2]

    driver = Driver(runner, world, execute=withdraw)
    await driver.turn("go")
    response = world.requests[1]["contents"][-1]["parts"][2]["function_response"]["response"]
    assert response["error"].startswith("The tool call failed: The tool did not run: ")
    assert "'c'" in response["error"]


async def test_replacing_records() -> None:
    def plain_build(world: World) -> LlmAgent:
        texts = [{"error": "The tool call failed: x"}, {"error": OUTCOME_UNKNOWN_TOOL_RESULT}, "ok"]
        return agent_with(
            world, *(make_tool(world, n, r) for n, r in zip("abc", texts, strict=True))
        )

    def build(world: World) -> LlmAgent:
        return agent_with(
            world, make_tool(world, "a"), make_tool(world, "b"), make_tool(world, "c", "ok")
        )

    await compare(
        build,
        PARALLEL,
        plain_build=plain_build,
        compare_executions=False,
        execute=lambda c: {"a": lambda: failed(c, "x"), "b": lambda: unknown(c)}.get(
            c.tool_name, lambda: None
        )(),
        **READ,
    )


@pytest.mark.parametrize("kind", ["bool", "callable", "async"])
async def test_require_confirmation_forces_approval(kind: str) -> None:
    def sync_check(x: str) -> bool:
        return x == "ask"

    async def async_check(x: str) -> bool:
        return x == "ask"

    check: Any = {"bool": True, "callable": sync_check, "async": async_check}[kind]
    script: list[Step] = [[call("a", x="ask"), call("a", x="free")], text("done")]

    def build(world: World) -> LlmAgent:
        return agent_with(world, FunctionTool(make_tool(world, "a"), require_confirmation=check))

    driver = await compare(
        build,
        script,
        plain_build=lambda world: agent_with(world, make_tool(world, "a")),
        tool_policies={"a": ToolPolicy(ToolEffect.READ, requires_approval=False)},
    )
    assert [c.requires_approval for c in driver.requested] == [True, kind == "bool"]


async def test_unknown_tool_alone() -> None:
    driver = await compare(abc, [call("nope", x="1"), call("a", x="2"), text("done")], **READ)
    assert isinstance(driver.outcomes[0], ContinueTurn)
    assert isinstance(driver.outcomes[1], ToolCallsRequested)


async def test_unknown_tool_beside_a_real_one() -> None:
    def build(world: World) -> LlmAgent:
        def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
            world.log(f"before {tool.name}")

        return abc(world, before_tool_callback=before)

    script: list[Step] = [[call("nope"), call("a", x="2")], text("done")]
    driver = await compare(build, script, **READ)
    assert [c.tool_name for c in driver.requested] == ["a"]


async def test_control_tool_beside_ordinary_one() -> None:
    def build(world: World) -> LlmAgent:
        def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
            world.log(f"before {tool.name}")

        return agent_with(world, make_tool(world, "a"), exit_loop, before_tool_callback=before)

    driver = await compare(
        build, [[call("a", x="1"), call("exit_loop")]], compare_callbacks=False, **READ
    )
    assert [c.tool_name for c in driver.requested] == ["a"]
    assert sorted(driver.world.callbacks) == ["before a", "before exit_loop"]
    assert [e["tool_name"] for e in driver.live.of("tool_call_started")] == ["exit_loop"]
    assert [e["tool_name"] for e in driver.live.of("tool_call_finished")] == ["exit_loop"]


class LoggingPlugin(BasePlugin):
    def __init__(self, world: World) -> None:
        super().__init__("logging")
        self.world = world

    async def on_user_message_callback(self, **_: Any) -> None:
        self.world.log("plugin user message")

    async def before_agent_callback(self, **_: Any) -> None:
        self.world.log("plugin before agent")

    async def after_agent_callback(self, **_: Any) -> None:
        self.world.log("plugin after agent")

    async def before_model_callback(self, **_: Any) -> None:
        self.world.log("plugin before model")

    async def after_model_callback(self, **_: Any) -> None:
        self.world.log("plugin after model")

    async def before_tool_callback(self, *, tool: Any, **_: Any) -> None:
        self.world.log(f"plugin before {tool.name}")

    async def after_tool_callback(self, *, tool: Any, result: Any, **_: Any) -> None:
        self.world.log(f"plugin after {tool.name} {result}")

    async def on_event_callback(self, *, event: Any, **_: Any) -> None:
        parts = event.content.parts if event.content else []
        kinds = [next(iter(part.model_fields_set)) for part in parts]
        if kinds or event.actions.state_delta:
            self.world.log(f"plugin event {event.author} {kinds} {event.actions.state_delta}")


def all_callbacks(world: World) -> App:
    def log(entry: str) -> Any:
        def callback(**_: Any) -> None:
            world.log(entry)

        return callback

    def before_agent(callback_context: Any) -> None:
        world.log("before agent")
        callback_context.state["before"] = callback_context.state.get("before", 0) + 1

    def after_agent(callback_context: Any) -> types.Content:
        world.log("after agent")
        return types.Content(role="model", parts=[types.Part(text="bye")])

    def before_tool(tool: Any, args: Any, tool_context: ToolContext) -> None:
        world.log(f"before {tool.name}")
        tool_context.state[f"n_{tool.name}"] = tool_context.state.get(f"n_{tool.name}", 0) + 1
        tool_context.state["temp:x"] = tool.name

    def after_tool(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> None:
        world.log(f"after {tool.name} {tool_response} {tool_context.state.get('temp:x')}")

    agent = agent_with(
        world,
        make_tool(world, "a"),
        make_tool(world, "text", "some text"),
        instruction="Before {before} {n_a?}",
        before_agent_callback=before_agent,
        after_agent_callback=after_agent,
        before_model_callback=log("before model"),
        after_model_callback=log("after model"),
        before_tool_callback=before_tool,
        after_tool_callback=after_tool,
    )
    return App(name="support", root_agent=agent, plugins=[LoggingPlugin(world)])


async def test_every_callback_once_and_in_order() -> None:
    script: list[Step] = [
        call("a", x="1"),
        call("text", x="2"),
        text("done"),
        call("a", x="3"),
        text("done 2"),
    ]
    driver = await compare(all_callbacks, script, ["one", "two"], **READ)
    assert driver.world.callbacks.count("before agent") == 2
    assert driver.world.callbacks.count("after agent") == 2


async def test_chains_of_callbacks() -> None:
    def build(world: World) -> LlmAgent:
        def chain(kind: str) -> list[Any]:
            def named(number: int) -> Any:
                def callback(*_: Any, **__: Any) -> Any:
                    world.log(f"{kind} {number}")
                    is_answer = number == 2 and kind.endswith("tool")
                    return {"from": kind} if is_answer else None

                return callback

            return [named(number) for number in (1, 2, 3)]

        kinds = ("agent", "model", "tool")
        chains = {
            f"{when}_{kind}_callback": chain(f"{when} {kind}")
            for when in ("before", "after")
            for kind in kinds
        }
        return abc(world, **chains)

    await compare(build, PARALLEL, compare_callbacks=False, **READ)
    await compare(build, [call("a", x="1"), text("done")], **READ)


async def test_before_model_answers_without_a_model_call() -> None:
    def build(world: World) -> LlmAgent:
        from support.adk_oracle import answer

        def before(callback_context: Any, llm_request: Any) -> Any:
            world.log("before model")
            if len(world.callbacks) == 1:
                return answer(call("a", x="cached"), usage_metadata=None)
            return None

        return abc(world, before_model_callback=before)

    driver = await compare(build, [text("done")], **READ)
    assert driver.usage.model_calls == 1


async def test_before_agent_content_skips_the_agent() -> None:
    def build(world: World) -> LlmAgent:
        def before(callback_context: Any) -> types.Content:
            return types.Content(role="model", parts=[types.Part(text="closed")])

        return abc(world, before_agent_callback=before)

    driver = await compare(build, [])
    assert driver.history[-1].text == "closed"


async def test_skip_summarization_ends_the_turn() -> None:
    def build(world: World) -> LlmAgent:
        def final(x: str, tool_context: ToolContext) -> dict[str, str]:
            """Final."""
            tool_context.actions.skip_summarization = True
            return {"final": x}

        return agent_with(world, final)

    driver = await compare(build, [call("final", x="1")], **READ)
    assert len(driver.outcomes) == 2


async def test_plugin_rewrites_user_message() -> None:
    class Rewriter(BasePlugin):
        async def on_user_message_callback(self, *, user_message: Any, **_: Any) -> Any:
            return types.Content(role="user", parts=[types.Part(text="rewritten")])

    world = World([call("a", x="1"), text("done"), text("more")])
    app = App(name="x", root_agent=abc(world), plugins=[Rewriter("rewriter")])
    driver = Driver(AdkAgentRunner(app, **READ), world)
    await driver.turn("original")
    for request in world.requests[:2]:
        assert request["contents"][0]["parts"][0]["text"] == "rewritten"
    await driver.turn("second")
    shown = [content["parts"][0].get("text") for content in world.requests[-1]["contents"]]
    assert shown[0] == "original"  # the stored message, as nobody rewrote it
    assert shown[-1] == "rewritten"
    assert driver.history[0].text == "original"
    assert driver.history[0].framework_item["content"]["parts"] == [{"text": "original"}]


@pytest.mark.parametrize("who", ["plugin", "agent"])
async def test_a_callback_may_answer_for_a_tool_that_raised(who: str) -> None:
    def build(world: World) -> App:
        def answer_for(source: str, tool: Any, args: Any, context: Any, error: Exception) -> Any:
            world.log(f"{source} {tool.name} {args} {error!r}")
            if source != who or "hopeless" in args["x"]:
                return None
            context.state["rescued"] = source
            return {"instead": str(error)}

        class Rescue(BasePlugin):
            async def on_tool_error_callback(
                self, *, tool: Any, tool_args: Any, tool_context: Any, error: Exception
            ) -> Any:
                return answer_for("plugin", tool, tool_args, tool_context, error)

        def on_error(tool: Any, args: Any, tool_context: Any, error: Exception) -> Any:
            return answer_for("agent", tool, args, tool_context, error)

        def after(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
            world.log(f"after {tool_response}")

        agent = agent_with(
            world,
            make_tool(world, "a", ValueError("broken")),
            on_tool_error_callback=on_error,
            after_tool_callback=after,
            instruction="{rescued?}",
        )
        return App(name="x", root_agent=agent, plugins=[Rescue("rescue")])

    driver = await compare(build, [call("a", x="1"), text("done")], **READ)
    assert driver.state["rescued"] == who
    world = World([call("a", x="hopeless"), text("done")])
    driver = Driver(AdkAgentRunner(build(world), **READ), world)
    await driver.turn("go")
    assert [entry.split()[0] for entry in world.callbacks] == ["plugin", "agent", "after"]
    response = world.requests[1]["contents"][-1]["parts"][0]["function_response"]["response"]
    assert response == {"error": "The tool call failed: broken"}


async def test_error_of_a_callback_comes_out_as_it_is() -> None:
    def build(world: World) -> LlmAgent:
        def before(tool: Any, args: Any, tool_context: ToolContext) -> None:
            raise LookupError("guard is broken")

        return abc(world, before_tool_callback=before)

    world = World(PARALLEL)
    with pytest.raises(LookupError, match="guard is broken"):
        await Driver(AdkAgentRunner(build(world), **READ), world).turn("go")
