"""Every kind of wait in a UI stream: what is shown, again behind each event, and how it goes on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import ResumeEntry
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.request_input import RequestInput
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow

from dex_agents import AgentSessionClient, InvalidInputError, PendingInterrupt
from dex_agents.testing import private_engine
from dex_agents.ui_stream import AiSdkEncoder, UiEncoder, open_ui_stream
from dex_agents.ui_stream.ag_ui import AgUiEncoder, answer_resume
from support.adk_oracle import ScriptedLlm, World, call, text
from support.credential_agent import Vault, api_key_config, build_agent, build_session_flow
from support.oauth_provider import API_KEY, OAuthProvider
from support.serving import serve
from support.waiting import pending, session
from ui_stream.test_follow import collect, event_ids, payloads

KINDS = ["approval", "confirmation", "long_running", "input", "credential"]
SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
ENCODERS: dict[str, Callable[[], UiEncoder[Any]]] = {
    "AI SDK": lambda: AiSdkEncoder("s"),
    "AG-UI": lambda: AgUiEncoder("s"),
}
ANSWERS: dict[str, Any] = {
    "approval": True,
    "confirmation": {"approved": True, "payload": {"approved_days": 3}},
    "long_running": {"url": "done"},
    "input": {"colour": "blue"},
}
ENDS = {
    "approval": '"paid 5"',
    "confirmation": '"days":3',
    "long_running": '"url":"done"',
    "input": '"colour":"blue"',
    "credential": "report: ",
}


def _agent(kind: str) -> Any:
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def leave(days: int, tool_context: ToolContext) -> Any:
        """Leave."""
        confirmation = tool_context.tool_confirmation
        if confirmation is None:
            tool_context.request_confirmation(hint="How many?", payload={"approved_days": 0})
            return {"status": "pending"}
        return {"days": (confirmation.payload or {})["approved_days"]}

    def render(scene: str) -> Any:
        """Render."""
        return {"job": 7}

    def ask(node_input: Any) -> Any:
        yield RequestInput(message="Which?", payload={"draft": 1}, response_schema=SCHEMA)

    calls = {
        "approval": [call("pay", amount=5)],
        "confirmation": [call("leave", days=9)],
        "long_running": [call("render", scene="a")],
    }
    tools: list[Any] = [
        FunctionTool(pay, require_confirmation=True),
        leave,
        LongRunningFunctionTool(render),
    ]
    script: list[Any] = [calls[kind]] if kind in calls else []
    model = ScriptedLlm(world=World([*script, text("all done")]))
    agent = LlmAgent(name="root", model=model, tools=tools)
    return Workflow(name="flow", edges=[("START", agent, ask)]) if kind == "input" else agent


@contextlib.asynccontextmanager
async def waiting(kind: str, folder: Path) -> AsyncIterator[tuple[AgentSessionClient, Vault]]:
    """A session ``s`` that waits for an answer of a kind."""
    vault = Vault(folder / "vault")
    if kind != "credential":
        async with session(_agent(kind), folder) as sessions:
            yield sessions, vault
        return
    with OAuthProvider() as provider:
        flow = build_session_flow(build_agent(api_key_config(), provider.url), vault)
        async with (
            private_engine(folder / "e.db") as engine,
            serve(engine.address, flow, folder) as sessions,
        ):
            await sessions.start_session("s", "balance?")
            yield sessions, vault


def shown(protocol: str, frames: list[str]) -> list[dict[str, Any]]:
    """What is asked for at the end of a response."""
    parts = payloads(frames)
    if protocol == "AI SDK":
        return [part["data"] for part in parts if part["type"] == "data-interrupt"]
    asked = [item["metadata"] for item in parts[-1]["outcome"]["interrupts"]]
    return [{**fields, "state": "pending"} for fields in asked]


def check_shown(fields: dict[str, Any], asked: PendingInterrupt) -> None:
    told = {
        "interruptId": asked.interrupt_id,
        "kind": asked.kind,
        "toolCallId": asked.tool_call_id,
        "toolName": asked.tool_name,
        "arguments": dict(asked.arguments),
        "argumentsDigest": asked.arguments_digest,
        "hint": asked.hint,
        "payload": asked.payload,
        "responseSchema": asked.response_schema,
        "deadlineMs": asked.deadline and asked.deadline.timestamp() * 1_000,
        "state": "pending",
    }
    assert fields == {name: value for name, value in told.items() if value not in (None, "")}


async def streams_behind_each_event(
    sessions: AgentSessionClient, make: Callable[[], UiEncoder[Any]], frames: list[str]
) -> None:
    """Whoever comes back behind an event of a response gets the rest of it."""
    ids = event_ids(frames)
    assert len(ids) == len(set(ids))
    for number, event_id in enumerate(ids[:-1], start=1):
        stream = await open_ui_stream(sessions, "s", make(), last_event_id=event_id)
        assert await collect(stream) == frames[number:]


@pytest.mark.parametrize("protocol", ENCODERS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_wait_is_shown_again_and_goes_on(kind: str, protocol: str, tmp_path: Path) -> None:
    make = ENCODERS[protocol]
    async with waiting(kind, tmp_path) as (sessions, vault):
        first = await collect(await open_ui_stream(sessions, "s", make()))
        (asked,) = await pending(sessions)
        assert asked.kind == kind.replace("confirmation", "approval")
        (fields,) = shown(protocol, first)
        check_shown(fields, asked)
        await streams_behind_each_event(sessions, make, first)

        # Who waits behind the pause sees the rest of the turn, whoever gives the answer.
        place: Any = {"last_event_id": event_ids(first)[-1]}
        rest = await open_ui_stream(sessions, "s", make(), **place)
        interrupt_id = asked.interrupt_id
        entry = ResumeEntry(interrupt_id=interrupt_id, status="resolved", payload=ANSWERS.get(kind))
        if kind == "credential":
            with pytest.raises(InvalidInputError, match="let the application choose it"):
                await answer_resume(sessions, "s", [entry])
            vault.keep("my-secret", API_KEY)
            await sessions.provide_credential("s", interrupt_id, "my-secret")
        else:
            for _ in range(2):  # a request may come twice
                assert await answer_resume(sessions, "s", [entry]) == [interrupt_id]
        second = await collect(rest)
        ended = payloads(second)[-1]
        assert ended.get("finishReason", ended.get("outcome")) in ("stop", {"type": "success"})
        text_of_all = "".join([*first, *second])
        assert ENDS[kind] in text_of_all.replace('\\"', '"').replace('": ', '":')
        resumed = await open_ui_stream(sessions, "s", make(), after_interrupts=[interrupt_id])
        assert payloads(await collect(resumed)) == payloads(second)
        # A whole turn in one response, and each rest of it.
        await streams_behind_each_event(sessions, make, first)
        states = [part["state"] for part in shown("AI SDK", second)]
        assert states == (["answered"] if protocol == "AI SDK" else [])
        for leak in (
            *("RunModel", "CallTool", "CallSingle", "AwaitAnswer", "AwaitToolApproval"),
            *("attempt", "step_execution", "stepExecution", "Traceback", "framework"),
            *(API_KEY, "my-secret", str(tmp_path), socket.gethostname()),
        ):
            assert leak not in text_of_all
