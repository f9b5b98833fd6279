"""Without its workaround a session does what ADK's defect makes it do, with it what it should.

Each workaround has a row: how it is taken away, a scenario that holds with it, and how the scenario
fails without it. A row that no longer fails says that ADK has mended the defect, and that the
workaround can go.
"""

from __future__ import annotations

import contextlib
import pkgutil
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.adk.workflow.utils._replay_sequence_barrier import ReplaySequenceBarrier

from adk_canaries import scenarios
from dex_agents_google_adk import (
    _adk_workarounds,
    _session,
    _tool_step,
)
from dex_agents_google_adk._adk_workarounds import (
    active_agent,
    agent_callbacks,
    agent_states,
    agent_tool_pauses,
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
    unfinished_nodes,
    unheard_telemetry,
    waiting_lanes,
)
from support.dynamic_cases import DYNAMIC
from support.graph_cases import GRAPHS
from support.tree_cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore")
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "adk-defects.md"
HELPERS = {"_patch"}

Off = Callable[[pytest.MonkeyPatch], None]
Scenario = Callable[[Path], Awaitable[object]]


@dataclass(frozen=True)
class Defect:
    """A defect of ADK.

    Attributes:
        off: Takes the workaround away.
        scenario: Holds with the workaround; gets a folder of its own.
        symptom: What it fails with without it.
    """

    off: Off
    scenario: Scenario
    symptom: str


def unguarded(module: Any) -> Off:
    def off(monkeypatch: pytest.MonkeyPatch) -> None:
        for patch in getattr(module, "PATCHES", None) or module.patches():
            for owner in patch.owners:
                monkeypatch.setattr(owner, patch.name, patch.original)
        monkeypatch.setattr(module, "apply", lambda: False)

    return off


def _both(first: Off, second: Off) -> Off:
    def off(monkeypatch: pytest.MonkeyPatch) -> None:
        first(monkeypatch)
        second(monkeypatch)

    return off


def replaced(owner: Any, name: str, by: Callable[..., Any] = lambda *_: None) -> Off:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, by)


def _impatient(off: Off) -> Off:
    """The same, but ADK waits for nodes that it replays only a moment instead of 15 seconds."""

    def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ReplaySequenceBarrier.__init__, "__defaults__", (0.5,))
        off(monkeypatch)

    return impatient


def tree(name: str) -> Scenario:
    return lambda _: (CASES | GRAPHS | DYNAMIC)[name].compare()


def _restarting(session: Any, root: Any, invocation_id: str, pick: Any) -> Any:
    return pick(session, root)


LOST = "ADK went on without the results"
DEFECTS = {
    "active_agent": Defect(
        replaced(active_agent, "first_agent", _restarting),
        scenarios.a_sequence_goes_on_with_all_its_agents,
        "never asked",
    ),
    "agent_callbacks": Defect(unguarded(agent_callbacks), tree("sequential"), "callbacks differ"),
    "agent_states": Defect(replaced(agent_states, "restore"), tree("transfer to a sequence"), LOST),
    "agent_tool_pauses": Defect(
        replaced(agent_tool_pauses, "check_result"),
        scenarios.an_agent_tool_that_waits,
        "stopped waiting on unresolved",
    ),
    "begun_nodes": Defect(
        unguarded(begun_nodes),
        tree("a node that says something around its child"),
        "history differ",
    ),
    "call_ids_of_session": Defect(
        unguarded(call_ids_of_session),
        scenarios.calls_of_the_history_are_not_listed,
        r"listed the calls of \d+ events",
    ),
    "contents_in_one_pass": Defect(
        unguarded(contents_in_one_pass),
        scenarios.events_are_not_filtered_one_by_one,
        r"looked at \d+ events",
    ),
    "contents_on_replay": Defect(
        unguarded(contents_on_replay),
        scenarios.contents_are_built_once_for_each_model_call,
        "built 3 times for 2 model calls",
    ),
    "deferred_questions": Defect(
        unguarded(deferred_questions), scenarios.a_question_beside_a_tool, LOST
    ),
    "entry_agent_replay": Defect(
        unguarded(entry_agent_replay),
        tree("a turn that begins at a sub-agent"),
        "model call 3 of mid is not scripted",
    ),
    "escalation": Defect(
        replaced(agent_callbacks, "repeated_escalation"),
        tree("a branch ends the loop while another waits"),
        "model call 1 of p1 is not scripted",
    ),
    "finished_chat_nodes": Defect(
        unguarded(finished_chat_nodes),
        tree("a chat node that has had its say beside one that waits"),
        "model call 1 of router is not scripted",
    ),
    "leaked_branches": Defect(
        unguarded(leaked_branches), scenarios.an_agent_behind_branches_has_none, "begins in"
    ),
    "mcp_errors": Defect(
        replaced(mcp_errors, "run_of", lambda tool, _: tool.run_async),
        scenarios.a_server_that_dies_in_a_write,
        "MCP tool execution failed",
    ),
    "mcp_sessions": Defect(
        unguarded(mcp_sessions),
        scenarios.a_server_that_starts_anew_between_two_calls,
        "the new server was not asked",
    ),
    "model_lookup": Defect(
        unguarded(model_lookup),
        scenarios.branches_whose_attempt_died,
        "asked again",
    ),
    "nested_node_paths": Defect(
        # What a sequence notes on its way is read by both.
        _both(unguarded(nested_node_paths), unguarded(unfinished_nodes)),
        tree("transfer to a sequence"),
        "requests of s1 differ",
    ),
    "nested_pauses": Defect(
        unguarded(nested_pauses), tree("single turn below a single turn"), LOST
    ),
    "node_retries": Defect(
        unguarded(node_retries), tree("an agent that is tried again"), "callbacks differ"
    ),
    "parallel_pauses": Defect(
        unguarded(parallel_pauses),
        tree("single turns in branches side by side"),
        "requests of one differ",
    ),
    "plain_history": Defect(
        unguarded(plain_history),
        scenarios.a_history_is_not_copied_to_look_for_what_is_rare,
        r"copied the actions of \d+ events",
    ),
    "remote_a2a_import": Defect(
        scenarios.forget_failed_import,
        scenarios.nodes_are_built_without_imports,
        "tried 3 times",
    ),
    "replayed_calls": Defect(
        unguarded(replayed_calls),
        tree("a task that finishes beside a tool"),
        "model call 1 of k is not scripted",
    ),
    "replayed_nodes": Defect(
        _impatient(unguarded(replayed_nodes)),
        tree("a limit of one node at a time"),
        "Replay divergence",
    ),
    "single_turn_input": Defect(
        replaced(agent_callbacks, "put_back_input"),
        tree("single turn and then a tool"),
        "requests of st1 differ",
    ),
    "task_delegations": Defect(unguarded(task_delegations), tree("task beside a tool"), LOST),
    "tool_threads": Defect(
        replaced(_tool_step, "own_threads", contextlib.nullcontext),
        scenarios.an_error_that_a_future_cannot_carry,
        "never ends",
    ),
    "unfinished_nodes": Defect(
        unguarded(unfinished_nodes),
        tree("agents whose callbacks write state"),
        "requests of after differ",
    ),
    "unheard_telemetry": Defect(
        unguarded(unheard_telemetry),
        scenarios.no_records_are_made_of_a_history_that_nobody_gets,
        r"made \d+ log records",
    ),
    "waiting_lanes": Defect(
        unguarded(waiting_lanes),
        scenarios.a_model_that_is_slow_beside_a_finished_node,
        "Replay divergence",
    ),
    "workflow_markers": Defect(
        replaced(_session, "is_workflow_marker", lambda *_: False),
        tree("agent, then function"),
        LOST,
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
async def test_the_workaround_is_needed(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    defect = DEFECTS[name]
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    await defect.scenario(tmp_path / "with")
    defect.off(monkeypatch)
    with pytest.raises(Exception, match=defect.symptom):
        await defect.scenario(tmp_path / "without")


def test_every_workaround_has_a_canary_and_a_row_in_the_guide() -> None:
    modules = {item.name for item in pkgutil.iter_modules(_adk_workarounds.__path__)} - HELPERS
    described = re.findall(r"^\| `(\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    assert set(DEFECTS) == modules
    assert described == sorted(modules)
