"""Let a node that has finished wait for one beside it that is at work, however long that takes.

When an invocation goes on, ADK takes finished nodes in the order in which they ended. Among them it
counts nodes that have only asked a question, and nested Workflows with an output that are not at their
end: these are at work again, and after fifteen seconds the node that waits behind them fails the turn.
A question is no end, so it has no place in the order, nor have children of an attempt of their node
that failed: they do not run again. And who waits for a node at work goes on waiting.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from google.adk.events._interrupts import is_interrupt_event
from google.adk.workflow._dynamic_node_scheduler import DynamicNodeScheduler
from google.adk.workflow._errors import WorkflowInvariantError
from google.adk.workflow.utils._rehydration_utils import _event_has_result
from google.adk.workflow.utils._replay_manager import ReplayManager
from google.adk.workflow.utils._replay_sequence_barrier import ReplaySequenceBarrier

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt

_AT_WORK = "_dex_agents_at_work"


def _scanning(scan: Any) -> Any:
    def scanning(
        self: Any, events: Any, ctx: Any, base_path: str, strict_direct_child: bool = False
    ) -> Any:
        attempt = current_attempt()
        if attempt is None:
            return scan(self, events, ctx, base_path, strict_direct_child)
        events = [e for e in events if _event_has_result(e) or not is_interrupt_event(e)]
        sequence = scan(self, events, ctx, base_path, strict_direct_child)
        retry = attempt.node_retries.get(base_path)
        failed = retry.children.get(base_path, {}) if retry is not None else {}
        return [key for key in sequence if not _is_of_failed_run(key, failed)]

    return scanning


def _is_of_failed_run(key: str, failed: Mapping[str, int]) -> bool:
    """Whether a child, such as ``child@2``, ran in an attempt of its node that failed."""
    name, _, run_id = key.rpartition("@")
    return run_id.isdigit() and int(run_id) <= failed.get(name, 0)


def _running(run: Any) -> Any:
    async def running(
        self: Any,
        ctx: Any,
        node: Any,
        name: str,
        node_path: str,
        run_id: str,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        barrier = self._replay_manager._parent_sequence_barriers.get(ctx.node_path)
        if current_attempt() is None or barrier is None:
            return await run(self, ctx, node, name, node_path, run_id, *arguments, **named)
        at_work = barrier.__dict__.setdefault(_AT_WORK, set())
        at_work.add(key := f"{name}@{run_id}")
        try:
            return await run(self, ctx, node, name, node_path, run_id, *arguments, **named)
        finally:
            at_work.discard(key)

    return running


def _waiting(wait: Any) -> Any:
    async def waiting(self: Any, key: str) -> None:
        while True:
            try:
                return await wait(self, key)  # type: ignore[no-any-return]
            except WorkflowInvariantError:
                awaited = self.sequence[self.current_index : self.current_index + 1]
                if not self.__dict__.get(_AT_WORK, set()).intersection(awaited):
                    raise

    return waiting


PATCHES = (
    Patch(
        (ReplayManager,),
        "_scan_sequence",
        ("self", "events", "ctx", "base_path", "strict_direct_child"),
        inspect.isfunction,
        _scanning,
    ),
    Patch(
        (DynamicNodeScheduler,),
        "_run_node_internal",
        (
            "self",
            "ctx",
            "node",
            "name",
            "node_path",
            "run_id",
            "node_input",
            "use_as_output",
            "is_fresh",
            "use_sub_branch",
            "override_branch",
            "override_isolation_scope",
            "resume_inputs",
        ),
        inspect.iscoroutinefunction,
        _running,
    ),
    Patch((ReplaySequenceBarrier,), "wait", ("self", "key"), inspect.iscoroutinefunction, _waiting),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    return install(
        PATCHES,
        "ADK's way to replay finished nodes has changed; a Workflow in which a node beside others "
        "works for more than fifteen seconds may fail its turn in a durable session",
    )
