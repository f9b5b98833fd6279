"""Hand-written single agents of the differential suite, by name.

A case builds its agent for both sides. Its tools are made by :func:`tool`, whose ``plain`` is what
stands for the tool in plain ADK: a function that returns the response of the call's record.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.planners.plan_re_act_planner import PlanReActPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import BaseModel

from dex_agents import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    PendingInterrupt,
    ToolEffect,
    ToolExecutionError,
    ToolPolicy,
)
from dex_agents.testing import Approve, Reject, Reply, UserAnswer, approve_all
from differential.worlds import SideWorld
from support.adk_oracle import answer, call, text, thought
from support.tree_oracle import TreeLlm

CHARGE = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
PUT = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)
ASK = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)
UNKNOWN = {"error": OUTCOME_UNKNOWN_TOOL_RESULT}
REJECTED = {"error": "The user rejected this tool call, so it was not run."}

Body = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """An agent, the answers of its model and those of its user.

    Attributes:
        build: Makes the agent in a world.
        script: What the model answers.
        policies: Of tools that do not only read.
        executions: How often a tool's call runs, where that is not once.
    """

    build: Callable[[SideWorld], BaseNode | App]
    script: Sequence[Any]
    messages: Sequence[str] = ("go",)
    policies: Mapping[str, ToolPolicy] = dataclasses.field(default_factory=dict)
    answer: Callable[[PendingInterrupt], UserAnswer] = approve_all
    executions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    run_config: RunConfig | None = None


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Register a case under its function's name."""
    CASES[make.__name__] = make
    return make


def tool(
    world: SideWorld,
    name: str,
    body: Body,
    *,
    plain: Body | None = None,
    plain_ran: Callable[[str], Sequence[str]] = lambda x: [x],
) -> FunctionTool:
    """A tool with the argument ``x``.

    Args:
        body: Takes ``x``, the context, and how often the call has run, as many of them as it wants.
        plain: The same in plain ADK, if it is another one there.
        plain_ran: With what the tool of the session runs, where ``plain`` only has its response.
    """
    chosen = plain if world.is_plain and plain is not None else body

    def run(tool_context: ToolContext, x: str = "") -> Any:
        count = 0
        for seen in plain_ran(x) if world.is_plain else [x]:
            count = world.ran_in(tool_context, name, x=seen)
        wanted = chosen.__code__.co_argcount
        return chosen(*(x, tool_context, count)[:wanted])

    run.__name__ = name
    run.__doc__ = f"Tool {name}."
    return FunctionTool(run)


def echo(world: SideWorld, name: str) -> FunctionTool:
    """A tool that only says what it was given."""
    return tool(world, name, lambda x: {"value": f"{name}({x})"})


def agent(world: SideWorld, *tools: Any, **fields: Any) -> LlmAgent:
    """The agent ``root``."""
    return LlmAgent(name="root", model=TreeLlm(world=world), tools=list(tools), **fields)


def abc(world: SideWorld, **fields: Any) -> LlmAgent:
    """An agent with three reading tools."""
    return agent(world, *(echo(world, name) for name in "abc"), **fields)


def raises(error: Exception) -> Body:
    """A body that fails."""

    def body(x: str) -> Any:
        raise error

    return body


def returns(value: Any) -> Body:
    """A body with one result."""
    return lambda x: value


PARALLEL = [[call("a", x="1"), call("b", x="2"), call("c", x="3")], text("done")]


# Answers of the model


@case
def only_text() -> Case:
    return Case(abc, [text("hello")])


@case
def thoughts_and_chunks() -> Case:
    streamed = [
        answer(thought("hm "), partial=True),
        answer(text("he"), partial=True),
        answer(text("llo"), partial=True),
        answer(thought("hm "), text("hello")),
    ]
    return Case(abc, [streamed])


@case
def text_beside_calls() -> Case:
    return Case(abc, [[text("I look"), call("a", x="1"), call("b", x="2")], text("done")])


@case
def signatures_of_thoughts() -> Case:
    part = types.Part(
        function_call=types.FunctionCall(name="a", args={"x": "1"}),
        thought_signature=bytes(range(256)),
    )
    return Case(abc, [answer(thought("so"), part), text("done")])


@case
def without_streaming() -> Case:
    config = RunConfig(streaming_mode=StreamingMode.NONE)
    return Case(abc, [*PARALLEL], run_config=config)


@case
def several_turns() -> Case:
    script = [call("a", x="1"), text("one"), text("two"), [call("b"), call("c")], text("three")]
    return Case(abc, script, messages=("1", "2", "3"))


@case
def ids_of_the_model_come_again_in_another_turn() -> Case:
    script = [call("a", "id", x="1"), text("one"), call("a", "id", x="2"), text("two")]
    return Case(abc, script, messages=("1", "2"))


@case
def ids_of_the_model_come_again_in_one_turn() -> Case:
    def guard(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return {"blocked": args["x"]} if args["x"] == "2" else None

    both = [call("a", "id", x="2"), call("b", x="3")]
    script = [call("a", "id", x="1"), both, call("a", "id", x="4"), text("done")]
    return Case(lambda world: abc(world, before_tool_callback=guard), script)


@case
def eight_rounds() -> Case:
    return Case(abc, [*(call("abc"[n % 3], x=str(n)) for n in range(8)), text("done")])


@case
def more_calls_than_run_at_once() -> Case:
    return Case(abc, [[call("a", x=str(n)) for n in range(20)], text("done")])


@case
def equal_calls() -> Case:
    return Case(abc, [[call("a", x="1") for _ in range(3)], text("done")])


# Results


@case
def results_of_every_json_type() -> Case:
    values: list[Any] = ["", "text", 0, 1.5, False, None, [], {}, [None, {"b": 1, "a": [2]}], "ü🎉"]

    def build(world: SideWorld) -> LlmAgent:
        return agent(world, *(tool(world, f"t{n}", returns(v)) for n, v in enumerate(values)))

    return Case(build, [[call(f"t{n}") for n in range(len(values))], text("done")])


class _Order(BaseModel):
    number: int = 7
    note: str | None = None
    at: datetime.date = datetime.date(2026, 1, 2)


@case
def results_that_adk_makes_json() -> Case:
    values = [_Order(), datetime.datetime(2026, 1, 1, 12), (1, 2), [_Order()]]

    def build(world: SideWorld) -> LlmAgent:
        bodies = (returns({"value": value}) for value in values)
        return agent(world, *(tool(world, f"t{n}", body) for n, body in enumerate(bodies)))

    return Case(build, [[call(f"t{n}") for n in range(len(values))], text("done")])


@case
def a_large_result() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        return agent(world, tool(world, "a", returns({"rows": [{"n": n} for n in range(9_000)]})))

    return Case(build, [call("a"), text("done")])


@case
def blocking_and_async_tools() -> Case:
    async def later(x: str) -> str:
        await asyncio.sleep(0.02)
        return f"async {x}"

    def blocking(x: str) -> str:
        time.sleep(0.02)
        return f"blocking {x}"

    def build(world: SideWorld) -> LlmAgent:
        async def wait(x: str, tool_context: ToolContext) -> str:
            """Wait."""
            world.ran_in(tool_context, "wait", x=x)
            return await later(x)

        return agent(world, wait, tool(world, "block", blocking))

    return Case(build, [[call("wait", x="1"), call("block", x="2")], text("done")])


@case
def odd_arguments() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        def take(z: int, a: dict[str, Any], tool_context: ToolContext, m: str = "?") -> Any:
            """Take."""
            world.ran_in(tool_context, "take", z=z, a=a, m=m)
            return {"z": z, "a": a, "m": m}

        return agent(world, take)

    script = [call("take", z=1, a={"z": None, "a": ["ü", 1.0]}), call("take", a={}, z=0), text("x")]
    return Case(build, script)


# Failures and effects


def _failing(error: Exception, response: Any, policy: ToolPolicy | None, runs: int = 1) -> Case:
    def build(world: SideWorld) -> LlmAgent:
        failing = tool(world, "fail", raises(error), plain=returns(response))
        return agent(world, failing, echo(world, "a"))

    return Case(
        build,
        [[call("a", x="1"), call("fail", x="2")], text("done")],
        policies={"fail": policy} if policy else {},
        executions={"fail": runs},
    )


@case
def an_error_for_the_model() -> Case:
    error = ToolExecutionError("no such order")
    return _failing(error, {"error": "The tool call failed: no such order"}, None)


@case
def an_error_for_the_model_of_a_write() -> Case:
    error = ToolExecutionError("no such order")
    return _failing(error, {"error": "The tool call failed: no such order"}, CHARGE)


@case
def a_read_that_never_works() -> Case:
    error = {"error": "The tool call failed: RuntimeError: broken"}
    return _failing(RuntimeError("broken"), error, None, runs=3)


@case
def a_write_that_breaks() -> Case:
    return _failing(RuntimeError("broken"), UNKNOWN, CHARGE)


@case
def an_idempotent_write_that_never_works() -> Case:
    return _failing(RuntimeError("broken"), UNKNOWN, PUT, runs=3)


@case
def a_read_that_works_at_last() -> Case:
    def body(x: str, context: ToolContext, count: int) -> str:
        if count < 2:
            raise RuntimeError("broken")
        return "worked"

    def build(world: SideWorld) -> LlmAgent:
        return agent(world, tool(world, "a", body, plain=returns("worked")))

    return Case(build, [call("a"), text("done")], executions={"a": 2})


# Approvals and waits


def _approvals(answers: Mapping[str, Approve | Reject], responses: Mapping[str, Any]) -> Case:
    """Three calls of which the first two wait for a person."""

    def build(world: SideWorld) -> LlmAgent:
        return agent(world, *(made(world, name) for name in ("buy", "sell", "a")))

    def made(world: SideWorld, name: str) -> FunctionTool:
        given = answers.get(name, Approve())
        ran = (
            [] if isinstance(given, Reject) else [given.arguments["x"]] if given.arguments else None
        )
        return tool(
            world,
            name,
            lambda x: {"value": x},
            plain=returns(responses[name]) if name in responses else None,
            plain_ran=lambda x: [x] if ran is None else ran,
        )

    script = [[call("buy", x="1"), call("sell", x="2"), call("a", x="3")], text("done")]
    return Case(
        build,
        script,
        policies={"buy": ASK, "sell": ASK},
        answer=lambda interrupt: answers[interrupt.tool_name],
    )


@case
def approved() -> Case:
    return _approvals({"buy": Approve(), "sell": Approve()}, {})


@case
def rejected_with_a_reason() -> Case:
    answers: dict[str, Approve | Reject] = {"buy": Reject("too dear"), "sell": Approve()}
    return _approvals(answers, {"buy": {"error": "too dear"}})


@case
def rejected_without_a_reason() -> Case:
    answers: dict[str, Approve | Reject] = {"buy": Reject(), "sell": Reject()}
    return _approvals(answers, {"buy": REJECTED, "sell": REJECTED})


@case
def approved_with_other_arguments() -> Case:
    edited = {"value": "9", "approved_with_arguments": {"x": "9"}}
    return _approvals({"buy": Approve({"x": "9"}), "sell": Approve()}, {"buy": edited})


@case
def a_read_that_the_tool_lets_confirm() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        made = echo(world, "a")
        if world.is_plain:
            return agent(world, made)
        return agent(world, FunctionTool(made.func, require_confirmation=True))

    return Case(build, [call("a", x="1"), text("done")])


def _confirming(given: UserAnswer, response: Any) -> Case:
    def body(x: str, context: ToolContext) -> Any:
        confirmation = context.tool_confirmation
        if confirmation is None:
            context.request_confirmation(hint="How many?", payload={"days": 0})
            return {"status": "pending"}
        if not confirmation.confirmed:
            return {"status": "refused"}
        return {"status": "ok", "payload": confirmation.payload}

    def build(world: SideWorld) -> LlmAgent:
        return agent(world, tool(world, "leave", body, plain=returns(response)))

    return Case(
        build,
        [call("leave", x="9"), text("done")],
        answer=lambda _: given,
        executions={"leave": 2},
    )


@case
def the_tool_asks_and_may() -> Case:
    return _confirming(Approve(payload={"days": 3}), {"status": "ok", "payload": {"days": 3}})


@case
def the_tool_asks_and_may_not() -> Case:
    return _confirming(Reject(), {"status": "refused"})


def _long_running(value: Any, response: Any) -> Case:
    def build(world: SideWorld) -> LlmAgent:
        def job(x: str, tool_context: ToolContext) -> Any:
            """Job."""
            world.ran_in(tool_context, "job", x=x)
            tool_context.state["job"] = "started"
            return response if world.is_plain else {"ticket": x}

        made = LongRunningFunctionTool(job)
        made.is_long_running = not world.is_plain
        return agent(world, made, echo(world, "a"), instruction="{job?}")

    script = [[call("a", x="1"), call("job", x="2")], text("done"), text("more")]
    return Case(build, script, ("go", "again"), answer=lambda _: Reply(value))


@case
def long_running_work() -> Case:
    return _long_running({"url": "u"}, {"url": "u"})


@case
def long_running_work_with_a_plain_result() -> Case:
    return _long_running("ready", {"result": "ready"})


# Callbacks, guardrails, plugins


def _guarded(before: Callable[..., Any], script: Sequence[Any] = PARALLEL, **fields: Any) -> Case:
    return Case(lambda world: abc(world, before_tool_callback=before, **fields), script)


@case
def a_guardrail_answers_one_call() -> Case:
    def guard(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
        tool_context.state[f"seen_{tool.name}"] = True
        return {"blocked": tool.name} if tool.name == "b" else None

    return _guarded(guard)


@case
def a_guardrail_answers_all_calls() -> Case:
    return _guarded(lambda tool, args, tool_context: {"blocked": tool.name})


@case
def a_guardrail_changes_arguments() -> Case:
    def guard(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        args["x"] += "!"

    return _guarded(guard)


@case
def results_replaced_behind_the_tool() -> Case:
    def after(tool: BaseTool, args: Any, tool_context: ToolContext, tool_response: Any) -> Any:
        tool_context.state[f"after_{tool.name}"] = dict(args)
        return {"replaced": tool_response, "args": dict(args)} if tool.name != "c" else None

    return Case(lambda world: abc(world, after_tool_callback=after), PARALLEL)


@case
def unknown_tools() -> Case:
    script = [call("nope", x="1"), [call("nope"), call("a", x="2")], text("done")]
    return Case(abc, script)


@case
def every_agent_and_model_callback() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        def log(entry: str) -> Callable[..., None]:
            return lambda **_: world.log(entry)

        names = ("before_agent", "after_agent", "before_model", "after_model")
        return abc(world, **{f"{name}_callback": log(name) for name in names})

    return Case(build, [call("a"), text("one"), call("b"), text("two")], ("1", "2"))


class _Watcher(BasePlugin):
    def __init__(self, world: SideWorld) -> None:
        super().__init__("watcher")
        self._world = world

    async def on_user_message_callback(self, **_: Any) -> None:
        self._world.log("message")

    async def before_model_callback(self, **_: Any) -> None:
        self._world.log("before model")

    async def before_tool_callback(self, *, tool: BaseTool, **_: Any) -> None:
        self._world.log(f"before {tool.name}")

    async def after_tool_callback(self, *, tool: BaseTool, result: Any, **_: Any) -> None:
        self._world.log(f"after {tool.name} {result}")

    async def on_event_callback(self, *, event: Any, **_: Any) -> None:
        parts = event.content.parts if event.content else []
        self._world.log(f"event {event.author} {[sorted(p.model_fields_set) for p in parts]}")


@case
def a_plugin_that_watches() -> Case:
    def build(world: SideWorld) -> App:
        return App(name="app", root_agent=abc(world), plugins=[_Watcher(world)])

    return Case(build, [call("a", x="1"), text("one"), call("b"), text("two")], ("1", "2"))


@case
def the_model_callback_answers_itself() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        def before(callback_context: Any, llm_request: Any) -> Any:
            is_first = len(llm_request.contents) == 1
            return answer(call("a", x="cached"), usage_metadata=None) if is_first else None

        return abc(world, before_model_callback=before)

    return Case(build, [text("done")])


@case
def the_model_callback_changes_the_request() -> Case:
    def before(callback_context: Any, llm_request: Any) -> None:
        llm_request.contents.append(types.Content(role="user", parts=[text("Be brief.")]))

    return Case(lambda world: abc(world, before_model_callback=before), PARALLEL)


@case
def the_agent_is_skipped() -> Case:
    def before(callback_context: Any) -> types.Content:
        return types.Content(role="model", parts=[text("closed")])

    return Case(lambda world: abc(world, before_agent_callback=before), [text("never")])


@case
def the_agent_gets_the_last_word() -> Case:
    def after(callback_context: Any) -> types.Content:
        return types.Content(role="model", parts=[text("bye")])

    return Case(lambda world: abc(world, after_agent_callback=after), [*PARALLEL])


# State, schemas, settings


@case
def state_in_the_instruction() -> Case:
    def write(x: str, context: ToolContext) -> str:
        context.state["last"] = x
        context.state["all"] = [*context.state.get("all", []), x]
        context.state["app:shared"] = x
        return "written"

    def build(world: SideWorld) -> LlmAgent:
        instruction = "Last {last?} all {all?} shared {app:shared?} answer {answer?}"
        written = tool(world, "write", write)
        return agent(world, written, instruction=instruction, output_key="answer")

    script = [call("write", x="1"), call("write", x="2"), text("one"), call("write", x="3")]
    return Case(build, [*script, text("two")], ("1", "2"))


@case
def state_of_parallel_tools() -> Case:
    def write(x: str, context: ToolContext) -> str:
        context.state["last"] = x
        context.state[x] = x
        return "written"

    def build(world: SideWorld) -> LlmAgent:
        return agent(world, tool(world, "write", write), instruction="{last?}")

    return Case(build, [[call("write", x=x) for x in "zxy"], text("done")])


@case
def temporary_state() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        def put(x: str, context: ToolContext) -> str:
            context.state["temp:token"] = x
            return "put"

        def get(x: str, context: ToolContext) -> str:
            return str(context.state.get("temp:token"))

        return agent(world, tool(world, "put", put), tool(world, "get", get))

    script = [call("put", x="1"), call("get"), text("one"), call("get"), text("two")]
    return Case(build, script, ("1", "2"))


class _Weather(BaseModel):
    city: str
    degrees: int


@case
def an_output_schema() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        return abc(world, output_schema=_Weather, output_key="weather")

    wrong = call("set_model_response", city="Rome")
    return Case(build, [call("a"), wrong, call("set_model_response", city="Rome", degrees=21)])


@case
def a_tool_that_ends_the_turn() -> Case:
    def final(x: str, context: ToolContext) -> Any:
        context.actions.skip_summarization = True
        return {"final": x}

    def build(world: SideWorld) -> LlmAgent:
        return agent(world, tool(world, "final", final))

    return Case(build, [call("final", x="1"), text("later")], ("1", "2"))


@case
def a_control_tool_beside_another() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        return agent(world, echo(world, "a"), exit_loop)

    return Case(build, [[call("a", x="1"), call("exit_loop")], text("later")], ("1", "2"))


@case
def an_instruction_from_a_function() -> Case:
    def instruction(context: Any) -> str:
        return f"Turn of {context.state.get('who', 'nobody')}"

    def who(x: str, context: ToolContext) -> str:
        context.state["who"] = x
        return "known"

    def build(world: SideWorld) -> LlmAgent:
        return agent(world, tool(world, "who", who), instruction=instruction)

    return Case(build, [call("who", x="Ada"), text("done"), text("more")], ("1", "2"))


@case
def settings_of_the_model_and_no_history() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        config = types.GenerateContentConfig(temperature=0.1, max_output_tokens=99)
        return abc(world, generate_content_config=config, include_contents="none")

    return Case(build, [call("a"), text("one"), text("two")], ("1", "2"))


@case
def a_planner() -> Case:
    planned = [text("/*PLANNING*/ first a"), call("a", x="1")]
    script = [planned, text("/*FINAL_ANSWER*/ done")]
    return Case(lambda world: abc(world, planner=PlanReActPlanner()), script)


@case
def run_config_of_the_application() -> Case:
    config = RunConfig(custom_metadata={"tenant": "t1"}, labels={"team": "x"})
    return Case(abc, [*PARALLEL], run_config=config)


@case
def yields() -> Case:
    def build(world: SideWorld) -> LlmAgent:
        async def report(x: str, tool_context: ToolContext) -> AsyncGenerator[Any, None]:
            """Report."""
            world.ran_in(tool_context, "report", x=x)
            yield Event(message=f"on {x}")  # type: ignore[call-arg]
            tool_context.state["report"] = x
            yield {"value": x}

        return agent(world, FunctionTool(report), echo(world, "b"))

    script = [
        [call("report", "r1", x="1"), call("b", "b1", x="2")],
        [call("report", "r2", x="3")],
        text("done"),
    ]
    return Case(build, script, policies={"report": PUT})
