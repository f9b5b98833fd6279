"""Generator functions and nodes as tools run in their Step, and their events are those of plain ADK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, Workflow
from google.genai import types

from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents._errors import AgentTurnError
from dex_agents.testing import explore_crashes
from dex_agents_google_adk import AdkAgentRunner, idempotency_key_for_tool_call
from support.adk_oracle import Driver, ScriptedLlm, Step, World, call, compare, run_plain, text
from support.waiting import pending, session

Items = AsyncGenerator[Any, None]


def agent_with(world: World, *tools: Any, **fields: Any) -> LlmAgent:
    return LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools), **fields)


def answer_in(driver: Driver, index: int) -> Any:
    """The answer to the first call that a message of the history holds."""
    part = driver.history[index].framework_item["content"]["parts"][0]
    return part["function_response"]["response"]


def report(world: World) -> Any:
    async def report(x: str, tool_context: ToolContext) -> Items:
        """Report.

        Args:
            x: What about.
        """
        world.ran("report", x=x)
        tool_context.state[f"began {x}"] = x
        yield Event(partial=True, message="half")  # type: ignore[call-arg]
        yield Event(message=f"half of {x}")  # type: ignore[call-arg]
        tool_context.state["temp:short"] = x
        tool_context.state["newest"] = x
        await tool_context.save_artifact("report.txt", types.Part(text=x))
        yield {"value": x, "seen": tool_context.state[f"began {x}"]}

    return report


def blocking(world: World) -> Any:
    def blocking(x: str) -> Any:
        """Blocking.

        Args:
            x: What about.
        """
        world.ran("blocking", x=x)
        yield f"{x}!"

    return blocking


def silent(world: World) -> Any:
    async def silent(x: str) -> Items:
        """Silent.

        Args:
            x: What about.
        """
        world.ran("silent", x=x)
        if x == "never":
            yield x

    return silent


def ending(world: World) -> Any:
    async def ending(x: str, tool_context: ToolContext) -> Items:
        """Ending.

        Args:
            x: What about.
        """
        tool_context.actions.skip_summarization = True
        yield Event(message="on the way")  # type: ignore[call-arg]
        yield {"value": x}

    return ending


def flow(world: World, *nodes: Any, **fields: Any) -> Workflow:
    return Workflow(
        name="flow",
        description="Flow.",
        input_schema=str,
        edges=[(START, *nodes)],
        **fields,
    )


def double(node_input: str) -> str:
    return node_input * 2


def wrap(node_input: str) -> Event:
    return Event(output={"wrapped": node_input}, state={"wrapped": node_input})  # type: ignore[call-arg]


def workflow_tool(world: World) -> Any:
    return flow(world, double, wrap)


class _Inner(ScriptedLlm):
    """Has answers of its own, and counts with the world what it was asked."""

    answers: Any = ()

    def scripted_step(self, request: Any, shown: Any) -> Step:
        asked = sum(1 for part in request.contents for p in part.parts if p.function_response)
        return self.answers[asked]


def agent_flow(world: World) -> Any:
    def look(x: str) -> dict[str, str]:
        """Look."""
        world.ran("look", x=x)
        return {"value": x}

    inner = LlmAgent(
        name="inner",
        model=_Inner(world=world, answers=[[call("look", "i1", x="5")], [text("inner done")]]),
        tools=[look],
        output_key="said",
    )
    return flow(world, double, inner)


CASES: dict[str, tuple[list[Callable[[World], Any]], list[Step], Sequence[str]]] = {
    "one": ([report], [[call("report", "c1", x="a")], [text("done")]], ["go"]),
    "blocking": ([blocking], [[call("blocking", "c1", x="a")], [text("done")]], ["go"]),
    "nothing": ([silent], [[call("silent", "c1", x="a")], [text("done")]], ["go"]),
    "ends the turn": ([ending], [[call("ending", "c1", x="a")]], ["go"]),
    "two and a plain one": (
        [report, blocking],
        [
            [call("report", "c1", x="a"), call("blocking", "c2", x="b")],
            [call("report", "c3", x="c"), call("report", "c4", x="d")],
            [text("done")],
        ],
        ["go"],
    ),
    "ids that come again": (
        [report],
        [[call("report", "c1", x="a")], [text("one")]] * 2,
        ["go", "again"],
    ),
    "workflow": ([workflow_tool], [[call("flow", "c1", request="a")], [text("done")]], ["go"]),
    "workflow, wrong arguments": ([workflow_tool], [[call("flow", "c1")], [text("done")]], ["go"]),
}


@pytest.mark.parametrize("name", CASES)
async def test_equal_to_plain(name: str) -> None:
    tools, script, messages = CASES[name]
    await compare(
        lambda world: agent_with(world, *(make(world) for make in tools)), script, messages
    )


async def test_an_agent_in_a_workflow_tool_runs_in_the_step() -> None:
    driver = await compare(
        lambda world: agent_with(world, agent_flow(world)),
        [[call("flow", "c1", request="a")], [text("done")], [text("more")]],
        ["go", "again"],
        calls_per_step=3,
    )
    assert [kind.tool_name for kind in driver.requested] == ["flow"]
    assert driver.state["said"] == "inner done"


async def test_model_calls_inside_a_tool_count() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world, agent_flow(world))

    script: list[Step] = [[call("flow", "c1", request="a")], [text("done")]]
    for limit in (3, 4):
        config = RunConfig(max_llm_calls=limit, streaming_mode=StreamingMode.SSE)
        world = World(script)
        runner = AdkAgentRunner(build(world), run_config=config)
        driver = Driver(runner, world, calls_per_step=3)
        if limit == 4:
            await driver.turn("go")
            assert len(world.requests) == driver.usage.model_calls == 4
            continue
        with pytest.raises(LlmCallsLimitExceededError):
            await run_plain(build, script, ["go"], run_config=config)
        with pytest.raises(AgentTurnError, match="limit of `3` exceeded"):
            await driver.turn("go")


async def test_the_answer_of_a_turn_is_no_text_of_its_tools() -> None:
    world = World([[call("ending", "c1", x="a")]])
    driver = Driver(AdkAgentRunner(agent_with(world, ending(world))), world)
    assert (await driver.turn("go")).final_text == ""


async def test_the_answer_of_a_turn_may_be_the_text_of_a_task() -> None:
    world = World(
        [
            [call("task", "t1", request="paint")],
            [text("Which colour?")],
            [call("finish_task", "f1", result="blue")],
            [text("painted")],
        ]
    )
    task = LlmAgent(name="task", mode="task", model=ScriptedLlm(world=world), description="Task.")
    driver = Driver(AdkAgentRunner(agent_with(world, sub_agents=[task])), world)
    assert (await driver.turn("go")).final_text == "Which colour?"
    assert (await driver.turn("blue")).final_text == "painted"


async def test_in_a_tree_with_callbacks_and_plugins() -> None:
    class Watch(BasePlugin):
        def __init__(self, world: World) -> None:
            super().__init__("watch")
            self.world = world

        async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
            if event.partial:
                return  # those of a tool are shown live only
            output = event.output if event.output is not None else ""
            told = [part.text for part in (event.content.parts if event.content else None) or []]
            self.world.log(f"event {event.author} {told} {output} {event.branch}")

        async def after_tool_callback(self, *, tool: Any, result: Any, **_: Any) -> None:
            self.world.log(f"after {tool.name} {result}")

    def build(world: World) -> App:
        sub = LlmAgent(
            name="sub",
            model=ScriptedLlm(world=world),
            tools=[report(world), blocking(world)],
            before_tool_callback=lambda tool, args, tool_context: world.log(f"before {tool.name}"),
        )
        root = agent_with(world, sub_agents=[sub])
        return App(name="root", root_agent=root, plugins=[Watch(world)])

    await compare(
        build,
        [
            [call("transfer_to_agent", "t1", agent_name="sub")],
            [call("report", "c1", x="a")],
            [call("blocking", "c2", x="b")],
            [text("done")],
            [call("report", "c3", x="c")],
            [text("again")],
        ],
        ["go", "more"],
    )


async def test_below_a_composite_root_where_plain_adk_has_no_queue() -> None:
    seen: list[Any] = []

    class Watch(BasePlugin):
        async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
            if event.author == "report":
                seen.append((event.branch, event.output))

    def build(world: World) -> App:
        leaf = LlmAgent(name="leaf", model=ScriptedLlm(world=world), tools=[report(world)])
        root = SequentialAgent(name="root", sub_agents=[leaf])
        return App(name="root", root_agent=root, plugins=[Watch("watch")])

    script: list[Step] = [[call("report", "c1", x="a")], [text("done")]]
    with pytest.raises(RuntimeError, match="_event_queue is not set"):
        await run_plain(build, script, ["go"])
    world = World(script)
    runner = AdkAgentRunner(build(world), artifact_service=InMemoryArtifactService())
    driver = Driver(runner, world, repeats=2)
    await driver.turn("go")
    assert driver.state == {"began a": "a", "newest": "a"}
    assert [(m.framework_item["author"], m.text) for m in driver.history] == [
        ("user", "go"),
        ("leaf", ""),
        ("report", "half of a"),
        ("report", ""),
        ("leaf", ""),
        ("leaf", "done"),
    ]
    assert seen[-2:] == [("report@c1", None), ("report@c1", {"value": "a", "seen": "a"})]
    assert len(seen) == 4  # both attempts


async def test_what_it_shows_comes_live_and_once() -> None:
    world = World([[call("report", "c1", x="a")], [text("done")]])
    agent = agent_with(world, report(world))
    driver = Driver(
        AdkAgentRunner(agent, artifact_service=InMemoryArtifactService()), world, repeats=2
    )
    await driver.turn("go")
    assert [
        (e["text"], e["is_partial"], e["output"]) for e in driver.live.of("tool_call_progress")
    ] == [
        ("half", True, None),
        ("half of a", False, None),
        ("", False, {"value": "a", "seen": "a"}),
    ]
    assert [e["text"] for e in driver.live.of("text_delta")] == ["done"]


async def test_idempotency_key_is_the_calls() -> None:
    async def keyed(tool_context: ToolContext) -> Items:
        """Keyed."""
        yield {"key": idempotency_key_for_tool_call(tool_context)}

    world = World([[call("keyed", "c1")], [text("done")]])
    driver = Driver(AdkAgentRunner(agent_with(world, keyed)), world)
    await driver.turn("go")
    assert answer_in(driver, 3) == {"key": "session-1/t1/c1"}


async def test_long_running_generator_waits_for_the_answer(tmp_path: Path) -> None:
    async def begin(x: str) -> Items:
        """Begin."""
        yield Event(message="begun")  # type: ignore[call-arg]
        yield {"ticket": x}

    world = World([[call("begin", "c1", x="a")], [text("done")]])
    root = agent_with(world, LongRunningFunctionTool(begin))
    async with session(root, tmp_path) as sessions:
        waiting = (await pending(sessions, 1))[0]
        assert (waiting.kind, waiting.payload) == ("long_running", {"ticket": "a"})
        await sessions.answer_question("s", waiting.interrupt_id, {"url": "b"})
        await sessions.wait_for_turn("s", 1, timeout_s=40.0)
        page = await sessions.list_messages("s")
    assert [message.text for message in page.messages] == ["go", "", "begun", "", "", "done"]
    assert world.requests[-1]["contents"][-1]["parts"][0]["function_response"]["response"] == {
        "url": "b"
    }


async def test_a_generator_that_is_cancelled_is_closed(tmp_path: Path) -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    async def stream(x: str) -> Items:
        """Stream."""
        try:
            yield Event(message="begun")  # type: ignore[call-arg]
            began.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    world = World([[call("stream", "c1", x="a")], [text("done")]])
    async with session(agent_with(world, stream), tmp_path) as sessions:
        async with asyncio.timeout(40):
            await began.wait()
            await sessions.cancel_turn("s")
            await closed.wait()
        await sessions.wait_for_turn("s", 1, timeout_s=40.0)
        await sessions.send_user_message("s", "more")
        await sessions.wait_for_turn("s", 2, timeout_s=40.0)
        page = await sessions.list_messages("s")
    assert [message.text for message in page.messages][-2:] == ["more", "done"]


@pytest.mark.long
async def test_no_kill_changes_what_it_does() -> None:
    report = await explore_crashes(
        "adk.yielding_agent:build_flow", ["go"], repeatable=["began", "ended", "look"]
    )
    report.check()


async def generator_that_asks(x: str) -> Items:
    """Ask."""
    yield RequestInput(interrupt_id="q1", message="Which?", response_schema=None)


def node_that_asks(node_input: str) -> Any:
    """Ask in a node."""
    yield RequestInput(interrupt_id="q1", message="Which?", response_schema=None)


def job(x: str) -> str:
    """Begin a job."""
    return x


def agent_that_calls(tool: BaseTool) -> LlmAgent:
    world = World([call("job", "c9", x="a"), text("never")])
    return LlmAgent(name="inner", model=ScriptedLlm(world=world), tools=[tool])


QUESTIONS: dict[str, Callable[[World], Any]] = {
    "a generator": lambda _: generator_that_asks,
    "a node of a Workflow": lambda world: flow(world, node_that_asks),
    "a long-running tool in a Workflow": lambda world: flow(
        world, agent_that_calls(LongRunningFunctionTool(job))
    ),
    "an approval in a Workflow": lambda world: flow(
        world, agent_that_calls(FunctionTool(job, require_confirmation=True))
    ),
}


@pytest.mark.parametrize("make", QUESTIONS.values(), ids=QUESTIONS)
async def test_a_question_on_the_way_is_an_explicit_failure(make: Callable[[World], Any]) -> None:
    world = World([])
    tool = make(world)
    is_flow = isinstance(tool, Workflow)
    name, arguments = ("flow", {"request": "a"}) if is_flow else (tool.__name__, {"x": "a"})
    world.script[:] = [call(name, "c1", **arguments), text("done")]
    driver = Driver(AdkAgentRunner(agent_with(world, tool)), world)
    assert (await driver.turn("go")).final_text == "done"
    answer = answer_in(driver, 2)
    assert "stopped to wait for an approval or an answer" in answer["error"]
    assert "Ask before it is called, with the input tool or a confirmation" in answer["error"]


async def test_a_workflow_without_an_output_is_an_explicit_failure() -> None:
    def nothing(node_input: str) -> None:
        """Nothing."""

    def build(world: World) -> LlmAgent:
        return agent_with(world, flow(world, nothing))

    script: list[Step] = [[call("flow", "c1", request="a")], [text("done")]]
    plain = await run_plain(build, script, ["go"])
    assert len(plain.world.requests) == 1  # plain ADK ends the turn there, without a word
    world = World(script)
    driver = Driver(AdkAgentRunner(build(world)), world)
    await driver.turn("go")
    answer = answer_in(driver, 2)
    assert "ended without an output" in answer["error"]


async def test_a_tool_may_run_nodes() -> None:
    def helper(node_input: str) -> dict[str, str]:
        return {"helped": node_input}

    def build(world: World) -> LlmAgent:
        async def runs(x: str, tool_context: ToolContext) -> Any:
            """Runs."""
            world.ran("runs", x=x)
            first = await tool_context.run_node(helper, node_input=x)
            return [first, await tool_context.run_node(helper, node_input="b", run_id="second")]

        return agent_with(world, runs)

    script: list[Step] = [[call("runs", f"c{n}", x="a")] for n in range(2)]
    await compare(build, [*script, [text("done")]], default_tool_effect=ToolEffect.READ)


async def test_a_generator_that_raises_is_a_failed_call() -> None:
    async def broken(x: str) -> Items:
        """Broken."""
        yield Event(message="half")  # type: ignore[call-arg]
        raise ValueError(f"no {x}")

    world = World([[call("broken", "c1", x="a")], [text("done")]])
    runner = AdkAgentRunner(agent_with(world, broken), default_tool_effect=ToolEffect.READ)
    driver = Driver(runner, world)
    await driver.turn("go")
    answer = answer_in(driver, 2)
    assert answer == {"error": "The tool call failed: no a"}


async def test_a_read_may_not_hold_a_write() -> None:
    world = World([[call("flow", "c1", request="a")]])
    runner = AdkAgentRunner(
        agent_with(world, agent_flow(world)), tool_policies={"flow": ToolPolicy(ToolEffect.READ)}
    )
    with pytest.raises(AgentTurnError, match=r"node tool 'flow'.*'look'"):
        await Driver(runner, world).turn("go")


async def test_an_event_that_json_cannot_hold_holds_up_nothing() -> None:
    world = World([[call("odd")], text("done")])

    async def odd() -> Items:
        """Odd."""
        circle: dict[str, Any] = {"kept": 1}
        circle["itself"] = circle
        yield Event(message="first", custom_metadata=circle)  # type: ignore[call-arg]
        yield Event(message="second")  # type: ignore[call-arg]
        yield {"value": 1}

    runner = AdkAgentRunner(agent_with(world, odd), default_tool_effect=ToolEffect.READ)
    driver = Driver(runner, world)
    async with asyncio.timeout(60):
        await driver.turn("go")
    assert [message.text for message in driver.history] == [
        "go",
        "",
        "first",
        "second",
        "",
        "",
        "done",
    ]
    assert driver.history[2].framework_item["custom_metadata"] == {
        "kept": 1,
        "itself": {"kept": 1, "itself": "<circular reference>"},
    }
