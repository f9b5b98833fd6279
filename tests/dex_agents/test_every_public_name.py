"""Every public function and class of the three distributions refuses what is none, by name.

The names come from ``__all__``, the arguments from the signatures: a new function or argument that
takes anything fails here until it is checked. The edges of what is taken are in the tables of
``test_bad_arguments.py``, ``dex_lite/test_bad_options.py`` and ``core/test_client_checks.py``.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from dex import AsyncClient, BlobCacheConfig, ClientOptions, Registry, open_blob_cache
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest

from core.scripted_runner import ScriptedRunner
from dex_agents import AgentSessionClient, AgentSessionFlow, InterruptKind, MessageRole, ToolEffect
from dex_agents.connectors import ConnectionReference, ConnectorOutcome
from dex_agents.mcp import StdioServer
from dex_agents.ui_stream import AiSdkEncoder
from dex_agents_google_adk import adk_agent_session_flow
from support.ledger_connector import Books, operations
from support.public_names import public_names


class Wrong:
    """Of no type that anything takes; no error may show all of it."""

    def __repr__(self) -> str:
        return "wrong " * 100_000


WRONG: Any = Wrong()
NOWHERE = "127.0.0.1:1"


def _agent() -> LlmAgent:
    return LlmAgent(name="a", model="m")


def _client() -> AsyncClient:
    cache = open_blob_cache(BlobCacheConfig("cache", 1 << 20))
    return AsyncClient(Registry([]), cache, ClientOptions(server_address=NOWHERE))


def _flow() -> AgentSessionFlow:
    return AgentSessionFlow(ScriptedRunner([]), flow_type="Named")


def _sessions() -> AgentSessionClient:
    return AgentSessionClient(_client(), _flow())


# What an argument of this name takes, wherever it is required.
GOOD: dict[str, Callable[[], Any]] = {
    "agent": _agent,
    "answer": lambda: "yes",
    "approved": lambda: True,
    "arguments": dict,
    "before_turn_id": lambda: "t2",
    "bucket": lambda: "b",
    "call_id": lambda: "c",
    "calls": list,
    "client": _client,
    "command": lambda: "true",
    "connection": lambda: ConnectionReference("ledger", "x"),
    "connector_id": lambda: "ledger",
    "context_window_tokens": lambda: 10_000,
    "data_dir": lambda: "data",
    "data_file": lambda: "engine.db",
    "description": lambda: "d",
    "directory": lambda: "images",
    "effect": lambda: ToolEffect.READ,
    "encoder": lambda: AiSdkEncoder("s"),
    "entries": list,
    "failpoints": lambda: ["tool.after_call"],
    "flow": _flow,
    "flow_id": lambda: "f",
    "flow_type": lambda: "Named",
    "flows": lambda: "os:path",
    "framework_item": dict,
    "input_schema": dict,
    "interrupt_id": lambda: "i",
    "kind": lambda: InterruptKind.INPUT,
    "marker_dir": lambda: "marks",
    "message_id": lambda: "m",
    "messages": lambda: ["hello"],
    "mime_type": lambda: "image/png",
    "name": lambda: "n",
    "new_session_id": lambda: "s2",
    "operation": lambda: operations(Books(Path()))["balance"],
    "operation_id": lambda: "o",
    "outcome": lambda: ConnectorOutcome.COMPLETED,
    "path": lambda: "file",
    "reference": lambda: "secret",
    "request": LlmRequest,
    "requires_approval": lambda: False,
    "role": lambda: MessageRole.USER,
    "run_state": lambda: None,
    "script": lambda: ["hello"],
    "runner": lambda: ScriptedRunner([]),
    "server": lambda: StdioServer("true"),
    "server_address": lambda: NOWHERE,
    "session_id": lambda: "s",
    "sessions": _sessions,
    "step_execution_id": lambda: "e",
    "text": lambda: "hello",
    "timeout_s": lambda: 1.0,
    "tool_name": lambda: "t",
    "tools": list,
    "turn_id": lambda: "t1",
    "turns_done": lambda: 1,
    "uri": lambda: "file:a",
    "url": lambda: "http://127.0.0.1:1/",
}
# Where one name is taken by several functions in several ways.
GOOD_FOR: dict[str, dict[str, Callable[[], Any]]] = {
    "AdkSessionRunner": {"flow": lambda: adk_agent_session_flow(_agent(), flow_type="Named")},
    "TurnCompleted": {"messages": list},
    "answer_approvals": {"messages": list},
    "explore_crashes": {"flow": lambda: "os:path"},
    "WorkerProcess.start": {"flow": lambda: "os:path"},
}
# What only this package makes; users read it.
MADE_HERE = {
    "dex_agents": {
        "AgentEvent",
        "AgentEventBatch",
        "AgentSnapshot",
        "ClosedSession",
        "CompactionRequest",
        "DeferredToolExecution",
        "FinishedTurn",
        "ForkedSession",
        "MessagePage",
        "PendingInterrupt",
        "RewoundSession",
        "RunModelRequest",
        "ToolCallRecord",
    },
    "dex_agents.connectors": {"ConnectorCall", "ConnectorTool"},
    "dex_agents.session_graph": {"Box", "SessionHistory", "TurnHistory"},
    "dex_agents.testing": {"CrashReport", "CrashRow", "PlayedSession", "PrivateEngine", "StepRow"},
    "dex_agents_google_adk": {"CredentialRequest", "SessionFork"},
    "dex_lite": {"RunningEngine"},
}
# What takes any value, and why.
TAKES_ANYTHING = {
    # JSON is checked where it is stored, in its encoder, with the limit of the place.
    *(("AgentMessage", "framework_item"), ("ContinueTurn", "run_state"), ("Reply", "value")),
    *(("InterruptRequest", name) for name in ("payload", "response_schema", "framework_data")),
    *(("ToolCallsRequested", name) for name in ("run_state", "tool_context")),
    *(("Approve", "payload"), ("RequestedToolCall", "framework_data"), ("SourceToolCall", "data")),
    *(("ConnectorResult", name) for name in ("value", "images")),
    ("TurnCompleted", "output"),
    # A wrong form must not hide that the tool ran: see test_an_ill_formed_result_is_still_one.
    *(("ToolExecutionResult", n) for n in ("output", "framework_data", "images", "interrupt")),
    ("ToolExecutionResult", "not_stored"),
}
WITH_METHODS = ("AgentSessionClient",)
STARTED_BY = {"WorkerProcess": "start"}


def _takes_arguments(thing: Any) -> bool:
    if thing is Any:  # what Json stands for
        return False
    if isinstance(thing, type):
        return not (
            issubclass(thing, enum.Enum | BaseException) or getattr(thing, "_is_protocol", False)
        )
    return inspect.isroutine(thing)


def _callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module_name, name, thing in public_names():
        if name in MADE_HERE.get(module_name, ()) or not _takes_arguments(thing):
            continue
        if name in STARTED_BY:
            yield f"{name}.{STARTED_BY[name]}", getattr(thing, STARTED_BY[name])
            continue
        yield name, thing
        if name in WITH_METHODS:
            for method in vars(thing):
                if not method.startswith("_"):
                    yield f"{name}.{method}", getattr(thing, method)


def _arguments(thing: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(thing).parameters.values() if p.name != "self"]


CASES = [
    pytest.param(name, thing, argument.name, id=f"{name}-{argument.name}")
    for name, thing in _callables()
    for argument in _arguments(thing)
    if (name, argument.name) not in TAKES_ANYTHING
]


def _given(name: str, thing: Callable[..., Any], wrong: str) -> dict[str, Any]:
    given = {}
    for argument in _arguments(thing):
        if argument.name == wrong:
            given[argument.name] = WRONG
        elif argument.default is inspect.Parameter.empty:
            good = GOOD_FOR.get(name, GOOD)
            make = good.get(argument.name) or GOOD[argument.name]
            given[argument.name] = make()
    return given


async def _used(name: str, thing: Callable[..., Any], given: dict[str, Any]) -> None:
    owner = name.partition(".")[0]
    result = (
        thing(_sessions(), **given) if owner in WITH_METHODS and "." in name else thing(**given)
    )
    if isinstance(result, AsyncGenerator):
        await anext(result)
    elif isinstance(result, AbstractAsyncContextManager) and not dataclasses.is_dataclass(result):
        async with result:
            pass
    elif inspect.isawaitable(result):
        await result


@pytest.mark.parametrize(("name", "thing", "wrong"), CASES)
async def test_an_argument_of_a_wrong_type_is_refused_by_name(
    name: str,
    thing: Callable[..., Any],
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = _given(name, thing, wrong)
    before = set(tmp_path.iterdir())
    with pytest.raises((TypeError, ValueError)) as refused:
        await _used(name, thing, given)
    # The text names the argument and says what it must be, which Python's own errors do not.
    assert re.search(rf"\b{wrong}\b.* must ", str(refused.value)), refused.value
    assert len(str(refused.value)) < 1_000
    assert {p for p in tmp_path.iterdir() if p.name != "cache"} <= before


def test_the_exceptions_exist() -> None:
    """No name here outlives what it was written for."""
    public = {(module, name) for module, name, _ in public_names()}
    made_here = {(module, name) for module, names in MADE_HERE.items() for name in names}
    assert made_here <= public
    taken = {
        (name, argument.name) for name, thing in _callables() for argument in _arguments(thing)
    }
    assert taken >= TAKES_ANYTHING
    assert set(GOOD) <= {argument for _, argument in taken}
