"""Tool Steps, effects, concurrency, and what callbacks cannot reach."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.platform import time as adk_time
from google.adk.platform import uuid as adk_uuid
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_memory_tool import load_memory_tool
from google.adk.tools.tool_context import ToolContext

from dex_agents._contract import (
    AgentFrameworkRunner,
    DeferredToolExecution,
    InterruptKind,
)
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents._errors import (
    AgentTurnError,
    ToolExecutionError,
    ToolNotStartedError,
)
from dex_agents_google_adk import (
    IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY,
    AdkAgentRunner,
    idempotency_key_for_tool_call,
)
from dex_agents_google_adk._effects import PolicyResolver
from support.adk_oracle import (
    Driver,
    ScriptedLlm,
    Step,
    World,
    call,
    compare,
    request_json,
    text,
)

READ: Any = {"default_tool_effect": ToolEffect.READ}


def agent_with(world: World, *tools: Any, **fields: Any) -> LlmAgent:
    return LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools), **fields)


def execution(name: str, **fields: Any) -> DeferredToolExecution:
    base = DeferredToolExecution(
        session_id="s",
        turn_id="t1",
        call_id="c1",
        tool_name=name,
        arguments={},
        effect=ToolEffect.UNCLASSIFIED,
        agent_name="root",
        step_execution_id="CallTool-1",
        attempt=1,
        idempotency_key="s/t1/c1",
    )
    return replace(base, **fields)


def runner_of(*tools: Any, **arguments: Any) -> AdkAgentRunner:
    # The effect that ``execution`` was asked for with.
    given = {"default_tool_effect": ToolEffect.READ, **arguments}
    return AdkAgentRunner(agent_with(World([]), *tools), **given)


def test_is_a_framework_runner() -> None:
    assert isinstance(runner_of(), AgentFrameworkRunner)


async def test_idempotency_key() -> None:
    seen: list[ToolContext] = []

    def tool(tool_context: ToolContext) -> str:
        seen.append(tool_context)
        return idempotency_key_for_tool_call(tool_context)

    runner = runner_of(tool, run_config=RunConfig(custom_metadata={"a": 1}))
    result = await runner.execute_deferred_tool_call(execution("tool"))
    assert result.output == "s/t1/c1"
    assert seen[0].custom_metadata == {"a": 1, IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY: "s/t1/c1"}
    assert seen[0].session.id == "s"
    assert seen[0].session.events == []


async def test_no_idempotency_key_outside_a_step() -> None:
    errors: list[str] = []

    def before(tool: Any, args: Any, tool_context: ToolContext) -> dict[str, Any]:
        with pytest.raises(RuntimeError) as caught:
            idempotency_key_for_tool_call(tool_context)
        errors.append(str(caught.value))
        return {}

    world = World([call("tool"), text("done")])

    def tool() -> None:
        """Tool."""

    await Driver(AdkAgentRunner(agent_with(world, tool, before_tool_callback=before)), world).turn(
        "go"
    )
    assert "tool Step of a durable session" in errors[0]


async def test_errors_of_a_tool() -> None:
    def fails() -> None:
        raise ToolExecutionError("no")

    def breaks() -> None:
        raise LookupError("boom")

    runner = runner_of(fails, breaks)
    with pytest.raises(ToolExecutionError, match=r"^no$"):
        await runner.execute_deferred_tool_call(execution("fails"))
    with pytest.raises(LookupError, match=r"^'?boom'?$"):
        await runner.execute_deferred_tool_call(execution("breaks"))
    with pytest.raises(ToolNotStartedError, match="no tool named 'gone'"):
        await runner.execute_deferred_tool_call(execution("gone"))
    with pytest.raises(ToolNotStartedError, match="could not be prepared"):
        await runner.execute_deferred_tool_call(execution("fails", tool_context=[1]))


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), BaseExceptionGroup("two", [SystemExit(3)]), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
async def test_a_toolset_that_breaks_before_its_tool_runs(error: BaseException) -> None:
    class Breaks(BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
            raise error

    with pytest.raises(ToolNotStartedError, match=f"be prepared: .*{type(error).__name__}"):
        await runner_of(Breaks()).execute_deferred_tool_call(execution("any"))


async def test_a_cancelled_preparation_stays_cancelled() -> None:
    class Waits(BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
            await asyncio.Event().wait()
            return []

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await runner_of(Waits()).execute_deferred_tool_call(execution("any"))


async def test_asking_for_an_approval_inside_a_step_waits() -> None:
    def confirm(tool_context: ToolContext) -> str:
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="sure?")
        return "did it"

    runner = runner_of(confirm)
    asked = (await runner.execute_deferred_tool_call(execution("confirm"))).interrupt
    assert asked is not None
    assert (asked.kind, asked.hint) == (InterruptKind.APPROVAL, "sure?")
    answered = execution("confirm", answer={"approved": True, "payload": None})
    assert (await runner.execute_deferred_tool_call(answered)).output == "did it"
    approved = execution("confirm", framework_data={"branch": None, "approved": True})
    assert (await runner.execute_deferred_tool_call(approved)).output == "did it"


async def test_asking_for_a_credential_fails() -> None:
    from fastapi.openapi.models import HTTPBearer
    from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
    from google.adk.auth.auth_tool import AuthConfig

    def ask(tool_context: ToolContext) -> None:
        scheme = HTTPBearer()
        credential = AuthCredential(auth_type=AuthCredentialTypes.HTTP)
        tool_context.request_credential(
            AuthConfig(auth_scheme=scheme, raw_auth_credential=credential)
        )

    with pytest.raises(ToolExecutionError, match="asked for a credential"):
        await runner_of(ask).execute_deferred_tool_call(execution("ask"))


VARIABLE = contextvars.ContextVar("variable", default="unset")


async def test_blocking_tools_run_side_by_side_in_threads() -> None:
    barrier = threading.Barrier(3)
    threads: set[int] = set()

    def wait() -> str:
        threads.add(threading.get_ident())
        barrier.wait(5)
        return VARIABLE.get()

    runner = runner_of(wait)
    VARIABLE.set("seen")
    results = await asyncio.gather(
        *(runner.execute_deferred_tool_call(execution("wait", call_id=f"c{i}")) for i in range(3))
    )
    assert [result.output for result in results] == ["seen"] * 3
    assert len(threads) == 3
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "arguments", [{"tools_in_threads": False}, {"loop_bound_tools": ["ident"]}]
)
async def test_tools_can_stay_on_the_loop(arguments: dict[str, Any]) -> None:
    def ident() -> int:
        return threading.get_ident()

    runner = runner_of(ident, **arguments)
    result = await runner.execute_deferred_tool_call(execution("ident"))
    assert result.output == threading.get_ident()


async def test_the_loop_goes_on_while_a_tool_blocks() -> None:
    def block() -> None:
        time.sleep(0.3)

    task = asyncio.create_task(runner_of(block).execute_deferred_tool_call(execution("block")))
    beats = 0
    while not task.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert beats > 5


async def test_twenty_sessions_share_a_runner() -> None:
    class Echo(ScriptedLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            await asyncio.sleep(0.001)
            last = llm_request.contents[-1].parts[0]
            question = next(
                p.text
                for c in reversed(llm_request.contents)
                for p in c.parts
                if c.role == "user" and p.text
            )
            from support.adk_oracle import answer

            if last.function_response:
                yield answer(text(f"{question} -> {last.function_response.response['result']}"))
            else:
                yield answer(call("double", word=question), call("double", word=question + "!"))

    async def double(word: str, tool_context: ToolContext) -> str:
        await asyncio.sleep(0.001)
        tool_context.state["words"] = [*tool_context.state.get("words", []), word]
        return word * 2

    runner = AdkAgentRunner(LlmAgent(name="root", model=Echo(), tools=[double]), **READ)
    drivers = [Driver(runner, World([]), session_id=f"s{i}") for i in range(20)]

    async def session(index: int, driver: Driver) -> None:
        for turn in range(3):
            done = await driver.turn(f"{index}.{turn}")
            assert done.final_text == f"{index}.{turn} -> {index}.{turn}{index}.{turn}"

    await asyncio.gather(*(session(i, d) for i, d in enumerate(drivers)))
    ids = [m.framework_item["id"] for d in drivers for m in d.history]
    assert len(set(ids)) == len(ids) == 20 * 3 * 4
    assert adk_uuid.new_uuid() not in ids
    assert abs(adk_time.get_time() - time.time()) < 1


async def test_event_times_never_go_back() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "ok"

    world = World([call("slow"), text("done"), call("slow"), text("done")])
    driver = Driver(AdkAgentRunner(agent_with(world, slow), **READ), world)
    started = time.time()
    await driver.turn("one")
    await driver.turn("two")
    times = [m.framework_item["timestamp"] for m in driver.history]
    assert times == sorted(times)
    assert times[0] >= started - 0.1
    assert times[2] - times[1] > 0.04


async def test_callbacks_cannot_reach_stored_things() -> None:
    def build(world: World) -> LlmAgent:
        def tool(x: dict[str, Any]) -> dict[str, Any]:
            """Tool."""
            return {"x": x}

        def meddle(callback_context: Any, llm_request: Any) -> None:
            for content in llm_request.contents:
                for part in content.parts:
                    if part.function_call:
                        part.function_call.args["x"]["secret"] = "redacted"
                    if part.function_response:
                        part.function_response.response["x"]["secret"] = "redacted"
                    if part.text:
                        part.text = part.text.upper()

        def after(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
            tool_response["seen"] = True

        return agent_with(world, tool, before_model_callback=meddle, after_tool_callback=after)

    script: list[Step] = [
        call("tool", x={"secret": 1}),
        text("a"),
        call("tool", x={"secret": 2}),
        text("b"),
        text("c"),
    ]
    world = World(script)
    driver = Driver(AdkAgentRunner(build(world), **READ), world, repeats=2)
    for message in ("one", "two", "three"):
        await driver.turn(message)
    assert "redacted" not in str([m.framework_item for m in driver.history])
    assert "redacted" in str(world.requests[-1])


class Hinted(BaseTool):
    def __init__(self, name: str, **hints: bool) -> None:
        super().__init__(name=name, description="d")
        self.raw_mcp_tool = type("Raw", (), {"annotations": type("Hints", (), hints)()})()


@pytest.mark.parametrize(
    "tool,expected",
    [
        (Hinted("x", readOnlyHint=True), ToolEffect.READ),
        (Hinted("x", read_only_hint=True), ToolEffect.READ),
        (Hinted("x", idempotentHint=True), ToolEffect.IDEMPOTENT_WRITE),
        (Hinted("x", idempotent_hint=True, readOnlyHint=False), ToolEffect.IDEMPOTENT_WRITE),
        (Hinted("x", readOnlyHint=False), ToolEffect.UNCLASSIFIED),
        (Hinted("named", readOnlyHint=True), ToolEffect.NON_IDEMPOTENT_WRITE),
        (load_memory_tool, ToolEffect.READ),
    ],
)
def test_effects(tool: BaseTool, expected: ToolEffect) -> None:
    policies = {"named": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)}
    assert PolicyResolver(policies, ToolEffect.UNCLASSIFIED).resolve(tool).effect is expected


async def test_toolset_and_agent_tool() -> None:
    def build(world: World) -> LlmAgent:
        class Tools(BaseToolset):
            async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
                def lookup(x: str) -> str:
                    """Look up."""
                    world.ran("lookup", x=x)
                    return f"found {x}"

                return [FunctionTool(lookup)]

        class Inner(ScriptedLlm):
            async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                from support.adk_oracle import answer

                world.ran("inner", request=str(request_json(llm_request)["contents"]))
                yield answer(text("inner answer"))

        inner = LlmAgent(
            name="inner", model=Inner(), description="Inner agent.", output_key="inner"
        )
        return agent_with(world, Tools(tool_name_prefix="db"), AgentTool(inner))

    script: list[Step] = [[call("db_lookup", x="1"), call("inner", request="help")], text("done")]
    driver = await compare(build, script, **READ)
    assert driver.state["inner"] == "inner answer"


async def test_read_agent_tool_must_not_write() -> None:
    def write() -> None:
        """Write."""

    world = World([call("inner", request="x")])
    inner = LlmAgent(name="inner", model=ScriptedLlm(world=world), tools=[write])
    runner = AdkAgentRunner(
        agent_with(world, AgentTool(inner)), tool_policies={"inner": ToolPolicy(ToolEffect.READ)}
    )
    with pytest.raises(AgentTurnError, match=r"'inner' has the effect read.*'write'"):
        await Driver(runner, world).turn("go")
