"""Recorded sessions beside the first five: every kind of wait, every kind of root, every command.

Each is at rest in a place where something of its own is stored. What a session is must not change once
a release has recorded it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools._request_input_tool import request_input
from google.adk.tools.authenticated_function_tool import AuthenticatedFunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import JoinNode, Workflow
from google.genai import types

from dex_agents import (
    AgentSessionFlow,
    AgentTurnError,
    PendingInterrupt,
    SourceToolCall,
    ToolEffect,
    ToolPolicy,
)
from dex_agents.testing import Ledger
from dex_agents_google_adk import CredentialRequest, adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel, tool_call
from support.credential_agent import api_key_config
from support.tool_source import ScriptedSource

if TYPE_CHECKING:
    from recorded.kit import Recorder

POLICIES = {
    "pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
    "look": ToolPolicy(ToolEffect.READ),
    "report": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
    "save": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
    "render": ToolPolicy(ToolEffect.READ),
    "wire": ToolPolicy(ToolEffect.READ),
    "balance": ToolPolicy(ToolEffect.READ),
}
INPUT = "adk_request_input"


def pay(item: str) -> str:
    """Pay for it."""
    return f"paid {item}"


def look(item: str, tool_context: ToolContext) -> str:
    """Look at it."""
    tool_context.state["seen"] = item
    return f"saw {item}"


async def report(item: str, tool_context: ToolContext) -> AsyncGenerator[Any, None]:
    """Report on it, with an event on the way."""
    yield Event(message=f"on {item}")  # type: ignore[call-arg]
    tool_context.state["reported"] = item
    yield {"reported": item}


async def save(item: str, tool_context: ToolContext) -> str:
    """Save it as an artifact."""
    await tool_context.save_artifact(item, types.Part(text=item))
    return f"saved {item}"


def render(item: str) -> dict[str, str]:
    """Begin to render it."""
    return {"job": item}


def wire(item: str, tool_context: ToolContext) -> Any:
    """Ask for itself, then wire the money."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint="sure?", payload={"most": 10})
        return None
    return {"confirmed": tool_context.tool_confirmation.confirmed}


async def balance(item: str, credential: AuthCredential) -> dict[str, Any]:
    """The balance of an account."""
    return {item: len(credential.api_key or "")}


def ask(node_input: Any) -> Any:
    """A node that asks a person."""
    yield RequestInput(
        message="How many?", payload=str(node_input), response_schema={"type": "integer"}
    )


def publish(node_input: Any) -> dict[str, Any]:
    """The last node."""
    return {"published": node_input}


async def find(reference: str, request: CredentialRequest) -> AuthCredential:
    """The application's secrets."""
    return AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=reference * 2)


class PartsModel(ScriptedModel):
    """Answers a request for the first time in two complete parts, of which a session holds one."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        first = not any(content.role == "model" for content in llm_request.contents)
        async for response in super().generate_content_async(llm_request, stream):
            yield response
        if first:
            part = types.Part(text="and more")
            yield LlmResponse(content=types.Content(role="model", parts=[part]))


def _said(request: LlmRequest) -> str:
    texts = [p.text for c in request.contents if c.role == "user" for p in c.parts or () if p.text]
    return texts[-1]


def _fails_or_pays(request: LlmRequest) -> Any:
    if "fail" in (said := _said(request).partition("\n")[0]):
        return AgentTurnError("no answer to that")
    return tool_call("pay", {"item": "rent"}) if "pay" in said else f"heard {said[:20]}"


def _call(name: str, item: str = "lamp") -> types.Part:
    return tool_call(name, {"item": item})


def build_flows(folder: Path) -> dict[str, AgentSessionFlow]:
    """The Flow of each session, by session id."""
    ledger = Ledger(folder / "requests.jsonl")

    def agent(
        name: str, script: Any, kind: type[ScriptedModel] = ScriptedModel, **more: Any
    ) -> Any:
        given: dict[str, Any] = {"tools": [pay, look], **more}
        return LlmAgent(name=name, model=kind(script, ledger=ledger), **given)

    def flow(
        name: str, root: Any, *, uses: Sequence[str] = ("pay", "look"), **settings: Any
    ) -> AgentSessionFlow:
        policies = {tool: POLICIES[tool] for tool in uses}
        return adk_agent_session_flow(
            root, flow_type=f"Recorded-{name}", tool_policies=policies, **settings
        )

    texts = [f"answer {number}" for number in range(20)]
    saves = ["one", "two", _call("save"), "saved", *texts]
    one_pay = [_call("pay"), *texts]
    jobs = [_call("render"), "begun and done", _call("render", "tree"), "again", *texts]
    lanes = tuple(agent(name, [_call("pay", name), f"{name} end"]) for name in ("left", "right"))
    helper = agent(
        "helper",
        ["which one?", _call("pay"), tool_call("finish_task", {"result": "ok"})],
        mode="task",
        description="helps",
    )
    summarizer = LlmEventSummarizer(llm=ScriptedModel(lambda _: "a summary", ledger=ledger))
    compaction = EventsCompactionConfig(
        compaction_interval=2, overlap_size=1, summarizer=summarizer
    )
    key = AuthenticatedFunctionTool(func=balance, auth_config=api_key_config())
    source = ScriptedSource(
        ["put", "keep"],
        calls={
            name: SourceToolCall(ToolEffect.NON_IDEMPOTENT_WRITE, is_ordered_write=True)
            for name in ("put", "keep")
        },
    )
    puts = [tool_call("put", {"id": "1"}), tool_call("keep", {"id": "2"})]
    branch = flow("source", agent("root", texts))
    closed = flow("closed", agent("root", ["one", _call("pay"), *texts]))
    return {
        "questions": flow(
            "questions",
            Workflow(name="root", edges=[("START", agent("writer", texts), ask, publish)]),
        ),
        "input": flow(
            "input",
            agent(
                "root",
                [[tool_call(INPUT, {"message": "Whose?"}), _call("look")], *texts],
                tools=[request_input, look],
            ),
            uses=("look",),
        ),
        "jobs": flow(
            "jobs", agent("root", jobs, tools=[LongRunningFunctionTool(render)]), uses=("render",)
        ),
        "confirmed": flow(
            "confirmed", agent("root", [_call("wire"), *texts], tools=[wire]), uses=("wire",)
        ),
        "credential": flow(
            "credential",
            agent("root", [_call("balance"), *texts], tools=[key]),
            uses=("balance",),
            credential_resolver=find,
        ),
        "edited": flow("edited", agent("root", one_pay)),
        "steered": flow("steered", agent("root", one_pay)),
        "rewound": flow(
            "rewound",
            agent("root", saves, tools=[save]),
            uses=("save",),
            artifact_service=InMemoryArtifactService(),
        ),
        "source": branch,
        "forked": branch,
        "task": flow(
            "task",
            agent("root", [tool_call("helper", {"request": "it"}), *texts], sub_agents=[helper]),
        ),
        "lanes": flow(
            "lanes",
            Workflow(name="root", edges=[("START", lanes, JoinNode(name="join"), publish)]),
        ),
        "failed": flow("failed", agent("root", _fails_or_pays)),
        "closed": closed,
        "reopened": closed,
        "stated": flow("stated", agent("root", texts, instruction="For {tenant}. {seen?}")),
        "summed": flow(
            "summed",
            App(name="root", root_agent=agent("root", texts), events_compaction_config=compaction),
        ),
        "parts": flow("parts", agent("root", [_call("pay"), *texts], PartsModel)),
        "events": flow(
            "events",
            agent("root", [[_call("report"), _call("pay")], *texts], tools=[report, pay]),
            uses=("report", "pay"),
        ),
        "sourced": flow(
            "sourced", agent("root", [puts, *texts], tools=[]), tool_sources=[source], uses=()
        ),
    }


async def asked(to: Recorder, name: str) -> list[PendingInterrupt]:
    """What the session waits for."""
    return list((await to.clients[name].get_agent_snapshot(name)).pending_interrupts)


async def answer(to: Recorder, name: str, value: Any, number: int) -> None:
    """Answer the one question; its turn to its end, or to the next wait."""
    (question,) = await asked(to, name)
    await to.clients[name].answer_question(name, question.interrupt_id, value)
    await to.clients[name].wait_until_settled(name, turns_done=number, timeout_s=60.0)


def first_turn(name: str, text: str = "go", **more: Any) -> Callable[[Recorder], Awaitable[None]]:
    """A record of one turn, up to where it waits or ends."""

    async def record(to: Recorder) -> None:
        await to.turn(name, text, 1, **more)

    return record


def approved_and(
    name: str, *texts: str, done: int = 1, **answer: Any
) -> Callable[[Recorder], Awaitable[None]]:
    """Approve all that waits, one by one, then more turns."""

    async def go_on(to: Recorder) -> None:
        client = to.clients[name]
        while True:
            snapshot = await client.wait_until_settled(name, turns_done=done, timeout_s=60.0)
            if snapshot.turns_done >= done:
                break
            first = snapshot.pending_interrupts[0]
            await client.resolve_interrupt(name, first.interrupt_id, approved=True, **answer)
        for number, text in enumerate(texts, start=done + 1):
            await to.turn(name, text, number)

    return go_on


async def _go_on_questions(to: Recorder) -> None:
    await answer(to, "questions", 3, 1)
    await to.turn("questions", "again", 2)
    await answer(to, "questions", 4, 2)


async def _go_on_input(to: Recorder) -> None:
    await answer(to, "input", "Ada's", 1)
    await to.turn("input", "again", 2)


async def _go_on_jobs(to: Recorder) -> None:
    await answer(to, "jobs", {"url": "file:lamp"}, 1)
    await to.turn("jobs", "again", 2)
    await answer(to, "jobs", "done", 2)


async def _go_on_credential(to: Recorder) -> None:
    client = to.clients["credential"]
    (wanted,) = await asked(to, "credential")
    await client.provide_credential("credential", wanted.interrupt_id, "alice")
    await client.wait_for_turn("credential", 1, timeout_s=60.0)


async def _record_steered(to: Recorder) -> None:
    await to.turn("steered", "go", 1)
    await to.clients["steered"].steer_user_message("steered", "and quick", message_id="aside")


async def _record_rewound(to: Recorder) -> None:
    for number in (1, 2, 3):
        await to.turn("rewound", f"say {number}", number)
    await to.clients["rewound"].rewind("rewound", "t3", request_id="r")
    await to.turn("rewound", "say 4", 4)
    await to.clients["rewound"].rewind("rewound", "t4", request_id="s")


async def _go_on_rewound(to: Recorder) -> None:
    again = await to.clients["rewound"].rewind("rewound", "t3", request_id="r")
    assert again.removed_turns == ("t3",)
    await to.turn("rewound", "say 5", 5)
    await to.clients["rewound"].rewind("rewound", "t2")
    await to.turn("rewound", "say 6", 6)


async def _record_forked(to: Recorder) -> None:
    for number in (1, 2):
        await to.turn("source", f"say {number}", number)
    await to.clients["forked"].fork_session("source", "forked", after_turn_id="t1")
    await to.turn("forked", "say other", 2)


async def _go_on_forked(to: Recorder) -> None:
    await to.clients["forked"].rewind("forked", "t2")
    await to.turn("forked", "say more", 3)
    await to.turn("source", "say 3", 3)


async def _record_task(to: Recorder) -> None:
    await to.turn("task", "go", 1)
    await to.turn("task", "the lamp", 2)


async def _record_lanes(to: Recorder) -> None:
    await to.turn("lanes", "go", 1)
    left, _ = await asked(to, "lanes")
    await to.clients["lanes"].resolve_interrupt("lanes", left.interrupt_id, approved=True)


async def _record_failed(to: Recorder) -> None:
    await to.turn("failed", "fail", 1)
    await to.turn("failed", "pay", 2)
    assert await to.clients["failed"].cancel_turn("failed")


async def _go_on_failed(to: Recorder) -> None:
    await to.turn("failed", "hello", 3)


async def _record_closed(to: Recorder) -> None:
    await to.turn("closed", "hello", 1)
    await to.turn("closed", "pay", 2)
    await to.clients["closed"].close_session("closed", reason="moved")


async def _go_on_closed(to: Recorder) -> None:
    snapshot = await to.clients["closed"].get_agent_snapshot("closed")
    assert (snapshot.status, snapshot.close_reason) == ("closed", "moved")
    await to.clients["closed"].fork_session("closed", "reopened", after_turn_id="t1")
    await to.turn("reopened", "again", 2)


def _turns(name: str, numbers: range) -> Callable[[Recorder], Awaitable[None]]:
    async def make(to: Recorder) -> None:
        for number in numbers:
            await to.turn(name, f"say {number}", number)

    return make


RECORD: dict[str, Callable[[Recorder], Awaitable[None]]] = {
    **{
        name: first_turn(name)
        for name in ("questions", "input", "jobs", "confirmed", "credential", "edited")
    },
    "steered": _record_steered,
    "rewound": _record_rewound,
    "forked": _record_forked,
    "task": _record_task,
    "lanes": _record_lanes,
    "failed": _record_failed,
    "closed": _record_closed,
    "stated": first_turn("stated", state={"tenant": "t1", "limits": [1, None]}),
    "summed": _turns("summed", range(1, 4)),
    **{name: first_turn(name) for name in ("parts", "events", "sourced")},
}
GO_ON: dict[str, Callable[[Recorder], Awaitable[None]]] = {
    "questions": _go_on_questions,
    "input": _go_on_input,
    "jobs": _go_on_jobs,
    "confirmed": approved_and("confirmed", "again", payload={"most": 5}),
    "credential": _go_on_credential,
    "edited": approved_and("edited", "again", arguments={"item": "less"}),
    "steered": approved_and("steered", "again"),
    "rewound": _go_on_rewound,
    "forked": _go_on_forked,
    "task": approved_and("task", "thanks", done=2),
    "lanes": approved_and("lanes"),
    "failed": _go_on_failed,
    "closed": _go_on_closed,
    "stated": _turns("stated", range(2, 4)),
    "summed": _turns("summed", range(4, 7)),
    "parts": approved_and("parts", "again"),
    "events": approved_and("events", "again"),
    "sourced": approved_and("sourced", "again"),
}
