"""Count how often a node has been tried, also across a pause.

ADK counts the attempts of a node with a ``RetryConfig`` in a local variable. A node that pauses in its
second attempt goes on in what ADK takes for its first: it gets the answers of children that the first
attempt had run, and a model that fails in every attempt is asked for ever.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.workflow._node_runner import NodeRunner

from dex_agents._errors import AgentError
from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._adk_workarounds.single_turn_input import is_failure
from dex_agents_google_adk._attempt import current_attempt
from dex_agents_google_adk._run_state import NodeRetry

_FAILED = "_dex_agents_failed"
_BRANCH = "_dex_agents_branch"


def _creating(create: Any) -> Any:
    def creating(self: Any, resume_inputs: Any, attempt_count: int = 1) -> Any:
        ctx = create(self, resume_inputs, attempt_count)
        attempt = current_attempt()
        if attempt is not None and self._node.retry_config is not None:
            if not hasattr(self, _FAILED):
                kept = attempt.node_retries.get(ctx.node_path)
                setattr(self, _FAILED, kept.failed if kept is not None else 0)
                if (author := _last_author(ctx)) is not None:
                    ctx.event_author = author
            ctx._attempt_count = attempt_count + getattr(self, _FAILED)
        setattr(self, _BRANCH, ctx._invocation_context.branch)
        return ctx

    return creating


def _last_author(ctx: Any) -> str | None:
    """Whose event the newest of a run that goes on is: ADK gives an error the author before it."""
    for event in reversed(ctx.session.events):
        if event.invocation_id == ctx.invocation_id and event.node_info.path == ctx.node_path:
            return None if is_failure(event) else str(event.author)
    return None


def _retrying(retry: Any) -> Any:
    async def retrying(self: Any, e: Exception, attempt_count: int) -> bool:
        attempt = current_attempt()
        if attempt is None:
            return bool(await retry(self, e, attempt_count))
        if _is_ours(e):
            return False  # the turn fails, whatever a node may try again
        attempt.run_fails(self._node.name, getattr(self, _BRANCH, None))
        return bool(await retry(self, e, attempt_count + getattr(self, _FAILED, 0)))

    return retrying


def _starting(take_snapshot: Any) -> Any:
    def starting(self: Any, ctx: Any) -> Any:
        snapshot = take_snapshot(self, ctx)
        attempt = current_attempt()
        if attempt is None or self._node.retry_config is None or ctx.attempt_count < 2:
            return snapshot
        failed, kept = ctx.attempt_count - 1, attempt.node_retries.get(ctx.node_path)
        if kept is not None and kept.failed == failed:
            self._reset_dynamic_children_for_retry(ctx, kept.children)
            return kept.children
        attempt.node_retries[ctx.node_path] = NodeRetry(failed, snapshot or {})
        return snapshot

    return starting


def _is_ours(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, AgentError):
            return True
        error = error.__cause__
    return False


PATCHES = (
    Patch(
        (NodeRunner,),
        "_create_child_context",
        ("self", "resume_inputs", "attempt_count"),
        inspect.isfunction,
        _creating,
    ),
    Patch(
        (NodeRunner,),
        "_attempt_retry",
        ("self", "e", "attempt_count"),
        inspect.iscoroutinefunction,
        _retrying,
    ),
    Patch(
        (NodeRunner,),
        "_snapshot_dynamic_children",
        ("self", "ctx"),
        inspect.isfunction,
        _starting,
    ),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    return install(
        PATCHES,
        "ADK's way to try a failed node again has changed; a node with a RetryConfig may be tried "
        "more often than that says in a durable session",
    )
