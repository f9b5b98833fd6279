"""The workarounds fit this ADK, and step aside with a warning when ADK has changed."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp
import mcp_types
import pytest
from google.adk import runners
from google.adk.agents import parallel_agent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.context import Context
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events import _interrupts
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.flows.llm_flows.context import _contents
from google.adk.telemetry import tracing
from google.adk.tools.base_authenticated_tool import BaseAuthenticatedTool
from google.adk.tools.mcp_tool import mcp_session_manager, mcp_tool
from google.adk.tools.mcp_tool.mcp_session_manager import MCPSessionManager
from google.adk.tools.mcp_tool.mcp_tool import McpTool
from google.adk.utils import _sync_runner
from google.adk.workflow import Workflow, _llm_agent_wrapper
from google.adk.workflow._dynamic_node_scheduler import DynamicNodeScheduler
from google.adk.workflow._node_runner import NodeRunner
from google.adk.workflow.utils import _rehydration_utils, _replay_interceptor
from google.adk.workflow.utils._replay_manager import ReplayManager
from google.adk.workflow.utils._replay_sequence_barrier import ReplaySequenceBarrier
from google.genai import types

import dex_agents
from dex_agents import ToolEffect
from dex_agents_google_adk._adk_workarounds import (
    AdkWorkaroundWarning,
    agent_callbacks,
    begun_nodes,
    call_ids_of_session,
    contents_in_one_pass,
    contents_on_replay,
    deferred_questions,
    entry_agent_replay,
    finished_chat_nodes,
    leaked_branches,
    mcp_errors,
    mcp_sessions,
    model_lookup,
    nested_node_paths,
    nested_pauses,
    node_retries,
    parallel_pauses,
    plain_history,
    replayed_calls,
    replayed_nodes,
    task_delegations,
    tool_threads,
    unfinished_nodes,
    unheard_telemetry,
    waiting_lanes,
)
from dex_agents_google_adk._adk_workarounds.workflow_markers import is_workflow_marker

PATCHED: list[tuple[Any, Any, str, str]] = [
    (contents_on_replay, _contents.request_processor, "run_async", "contents processor"),
    (contents_in_one_pass, _contents, "_get_contents", "in another way"),
    (call_ids_of_session, _rehydration_utils, "_collect_function_call_ids", "ids of a session"),
    (plain_history, runners, "_apply_rewinds", "through the events"),
    (plain_history, runners, "_find_active_task_scope", "through the events"),
    (plain_history, InvocationContext, "_get_events", "through the events"),
    (unheard_telemetry, tracing, "_use_native_generate_content_span", "log records that nobody"),
    (agent_callbacks, BaseAgent, "_handle_before_agent_callback", "callbacks around an agent"),
    (agent_callbacks, BaseAgent, "_handle_after_agent_callback", "callbacks around an agent"),
    (entry_agent_replay, DynamicNodeScheduler, "_check_existing_run", "begins with a sub-agent"),
    (deferred_questions, _interrupts, "extract_event_interrupt_ids", "asks for input"),
    (model_lookup, BaseLlmFlow, "_get_llm", "lookup of an agent's model"),
    (task_delegations, _llm_agent_wrapper, "_find_unresolved_task_delegations", "hands on a task"),
    (task_delegations, _llm_agent_wrapper, "_dispatch_task_fc", "hands on a task"),
    (replayed_calls, BaseLlmFlow, "_replay_function_calls", "finished beside"),
    (nested_pauses, Context, "_run_node_internal", "below another one"),
    (nested_pauses, NodeRunner, "_run_node_loop", "below another one"),
    (replayed_nodes, Workflow, "_at_concurrency_limit", "max_concurrency"),
    (node_retries, NodeRunner, "_create_child_context", "more often than"),
    (node_retries, NodeRunner, "_attempt_retry", "more often than"),
    (node_retries, NodeRunner, "_snapshot_dynamic_children", "more often than"),
    (parallel_pauses, parallel_agent, "_merge_agent_run", "waits in a branch"),
    (finished_chat_nodes, _replay_interceptor, "check_interception", "asked twice"),
    (mcp_sessions, mcp_session_manager, "_reports_session_terminated", "has ended a session"),
    (leaked_branches, NodeRunner, "_enrich_event", "behind a ParallelAgent"),
    (unfinished_nodes, NodeRunner, "_flush_output_and_deltas", "hand on another output"),
    (unfinished_nodes, ReplayManager, "scan_workflow_events", "hand on another output"),
    (unfinished_nodes, DynamicNodeScheduler, "_rehydrate_from_events", "hand on another output"),
    (begun_nodes, NodeRunner, "_execute_node", "say things twice"),
    (begun_nodes, NodeRunner, "_enqueue_event", "say things twice"),
    (waiting_lanes, ReplayManager, "_scan_sequence", "fifteen seconds"),
    (waiting_lanes, DynamicNodeScheduler, "_run_node_internal", "fifteen seconds"),
    (waiting_lanes, ReplaySequenceBarrier, "wait", "fifteen seconds"),
    (nested_node_paths, _rehydration_utils, "_reconstruct_node_states", "how far a node"),
    (nested_node_paths, ReplayManager, "_index_events", "how far a node"),
]


@pytest.mark.parametrize("module,owner,name,message", PATCHED, ids=[item[2] for item in PATCHED])
def test_a_patch_fits_and_steps_aside(
    module: Any, owner: Any, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.apply()
    patched = getattr(owner, name)
    assert module.apply() and getattr(owner, name) is patched

    async def changed(self: Any, something: Any, more: Any, else_: Any) -> None:
        raise AssertionError("never called")

    monkeypatch.setattr(owner, name, changed)
    with pytest.warns(AdkWorkaroundWarning, match=message):
        assert not module.apply()
    assert getattr(owner, name) is changed


async def test_tool_threads_step_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    with tool_threads.own_threads():
        assert _sync_runner._resolve_sync_callable_runner() is tool_threads._run
    monkeypatch.delattr(_sync_runner, "_use_sync_callable_runner")
    with (
        pytest.warns(AdkWorkaroundWarning, match="keeps one of the tool threads"),
        tool_threads.own_threads(),
    ):
        pass


def _tool_of_a_server() -> McpTool:
    descriptor = mcp_types.Tool(name="put", input_schema={"type": "object"})
    return McpTool(
        mcp_tool=descriptor, mcp_session_manager=MCPSessionManager.__new__(MCPSessionManager)
    )


class _ErrorOfMcp1(Exception):
    """As of the first major version: code and message only in ``error``."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = SimpleNamespace(code=code, message=message)


@pytest.mark.parametrize(
    ("code", "message", "effect", "is_raised"),
    [
        (-32000, "Connection closed", ToolEffect.READ, True),
        (-32000, "Connection closed", ToolEffect.NON_IDEMPOTENT_WRITE, True),
        (408, "Timed out while waiting for response", ToolEffect.NON_IDEMPOTENT_WRITE, True),
        (32600, "Session terminated", ToolEffect.IDEMPOTENT_WRITE, True),
        (32600, "Session terminated", ToolEffect.NON_IDEMPOTENT_WRITE, False),
        (-32602, "no such note", ToolEffect.READ, False),
    ],
)
async def test_errors_of_an_older_mcp_package_are_told_apart(
    code: int, message: str, effect: ToolEffect, is_raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any, **_: Any) -> Any:
        raise _ErrorOfMcp1(code, message)

    tool = _tool_of_a_server()
    monkeypatch.setattr(mcp_tool, "McpError", _ErrorOfMcp1)
    monkeypatch.setattr(BaseAuthenticatedTool, "run_async", fail)
    monkeypatch.delattr(mcp.types, "REQUEST_TIMEOUT")
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    call = mcp_errors.run_of(tool, effect)(args={}, tool_context=None)
    if is_raised:
        with pytest.raises(_ErrorOfMcp1, match=message):
            await call
    else:
        assert await call == {"error": f"MCP tool execution failed: {message}"}


def test_a_source_of_an_older_mcp_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(mcp, "MCPError")
    with pytest.raises(ImportError, match=r"needs version 2 .* install dex-agents\[mcp\], or give"):
        runpy.run_path(str(Path(dex_agents.__file__).parent / "mcp.py"))


def test_mcp_errors_step_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = _tool_of_a_server()
    assert mcp_errors.run_of(tool, ToolEffect.READ) != tool.run_async
    monkeypatch.setattr(mcp_errors, "BaseAuthenticatedTool", LlmAgent)
    with pytest.warns(AdkWorkaroundWarning, match="McpTool has changed"):
        assert mcp_errors.run_of(tool, ToolEffect.READ) == tool.run_async
    monkeypatch.undo()
    monkeypatch.delattr(mcp_tool, "McpError")
    with pytest.warns(AdkWorkaroundWarning, match="McpTool has changed"):
        assert mcp_errors.run_of(tool, ToolEffect.READ) == tool.run_async


def test_events_that_mislead() -> None:
    def misleads(author: str, **actions: Any) -> bool:
        made = Event(author=author, actions=EventActions(**actions))
        made.node_info.path = "root@1/seq@1"
        return bool(nested_node_paths.misleading_events([made], {"seq", "one"}))

    assert misleads("one", transfer_to_agent="x")
    assert misleads("seq", agent_state={"current_sub_agent": "one"})
    assert not misleads("seq", end_of_agent=True)
    assert not misleads("user")


def test_marks_of_workflows_are_known() -> None:
    checkpoint = Event(author="wf", actions=EventActions(agent_state={"nodes": {}}))
    end = Event(author="wf", actions=EventActions(end_of_agent=True))
    repeated = Event(author="wf", output="x")
    result = Event(author="wf", output="x")
    result.node_info.output_for = ["wf@1"]
    assert [is_workflow_marker(e, {"wf"}) for e in (checkpoint, end, repeated, result)] == [
        True,
        True,
        True,
        False,
    ]
    assert not is_workflow_marker(end, {"other"})


def test_adk_takes_a_question_for_a_pause_by_its_name() -> None:
    assert deferred_questions.apply()
    part = types.Part(function_call=types.FunctionCall(name="adk_request_input", id="i", args={}))
    asked = Event(author="root", content=types.Content(role="model", parts=[part]))
    for module in deferred_questions._MODULES:
        extract: Any = module.extract_event_interrupt_ids
        assert extract(asked) == {"i"}
