"""A run view as a tree on the terminal and as JSON."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from dex_lite._cli._print import STATUS_STYLES
from dex_lite._cli._run_view import MethodView, RunView, StepView
from dex_lite._cli._show_values import clock, iso, span
from dex_lite._cli._text import visible

_MARKS = {
    "completed": "✓",
    "failed": "✗",
    "waiting": "…",
    "running": "▶",
    "retrying": "↻",
    "queued": "○",
    "canceled": "-",
    "dropped": "-",
}
NEEDS_WORKER = "waiting for a Worker"


def duration_ms(view: RunView) -> int | None:
    """How long the run took, or takes so far."""
    if view.start_ms is None:
        return None
    end = view.close_ms if view.close_ms is not None else int(time.time() * 1_000)
    return max(0, end - view.start_ms)


def draw(view: RunView) -> Group:
    """Heading and tree."""
    head = Text.assemble(
        (view.flow_id, "bold"),
        f"  {view.flow_type}  ",
        (view.status, STATUS_STYLES.get(view.status, "")),
        f"  {span(duration_ms(view))}",
    )
    if view.needs_worker:
        head.append(f"  {NEEDS_WORKER}", style="yellow")
    details = f"run {view.run_id}, started {clock(view.start_ms)}"
    if view.run_attempt > 1:
        details += f", attempt {view.run_attempt}"
    lines: list[Any] = [head, Text(details, style="bright_black")]
    tree = Tree(Text("start", style="bold"), guide_style="bright_black")
    # Not recursive: a chain of Steps may be longer than Python's stack.
    pending = [(tree, step, len(view.roots) == 1) for step in reversed(view.roots)]
    while pending:
        branch, step, is_lone = pending.pop()
        here = branch.add(step_line(step))
        # A chain goes on below itself and not to the right, so that it stays narrow.
        is_chain = len(step.children) == 1
        below = branch if is_lone and is_chain else here
        pending += [(below, child, is_chain) for child in reversed(step.children)]
    lines.append(tree)
    if view.error:
        lines.append(Text(f"error: {visible(view.error)}", style="red"))
    lines += [Text(f"output: {output}") for output in view.outputs]
    return Group(*lines)


def step_line(step: StepView) -> Text:
    """One Step execution."""
    style = STATUS_STYLES.get(step.state, "")
    line = Text.assemble(
        (f"{_MARKS.get(step.state, '?')} ", style), (step.execution_id or step.step_type, "bold")
    )
    line.append(f"  {visible(facts_text(step))}")
    if step.error:
        line.append(f"  {visible(step.error)}", style="red")
    return line


def facts_text(step: StepView) -> str:
    """Attempts, waits and durations in words."""
    parts = []
    for method in step.methods:
        if method.name == "wait_for" and not step.waits_for and method.outcome == "completed":
            continue
        parts.append(_method_text(method))
        if method.name == "wait_for" and step.waited_ms is not None:
            parts.append(f"waited {span(step.waited_ms)} for {step.wait_text}")
    if step.state == "waiting":
        parts.append("waiting for " + (step.wait_text or "its condition"))
    elif step.state == "retrying":
        parts.append(f"attempt {step.attempts} failed, to be tried again")
    elif step.state == "canceled":
        parts.append(f"canceled by {step.canceled_by}")
    elif step.state not in ("completed", "failed"):
        parts.append({"dropped": "not ended when the run closed"}.get(step.state, step.state))
    if step.needs_worker:
        parts.append(NEEDS_WORKER)
    return ", ".join(parts)


def _method_text(method: MethodView) -> str:
    text = f"{method.name} {span(method.duration_ms)}"
    if method.attempts > 1:
        text += f" (attempt {method.attempts})"
    return text if method.outcome == "completed" else f"{text} failed"


def as_data(view: RunView) -> dict[str, Any]:
    """The run with its Steps as a flat list; `source` names the parent."""
    return {
        "flow_id": view.flow_id,
        "run_id": view.run_id,
        "flow_type": view.flow_type,
        "status": view.status,
        "start_time": iso(view.start_ms),
        "close_time": iso(view.close_ms),
        "duration_ms": duration_ms(view),
        "run_attempt": view.run_attempt,
        "needs_worker": view.needs_worker,
        "error": view.error or None,
        "steps": [_step_data(step) for step in view.steps()],
    }


def _step_data(step: StepView) -> dict[str, Any]:
    return {
        "step_execution_id": step.execution_id or None,
        "step_type": step.step_type,
        "source": step.source_id or None,
        "state": step.state,
        "waits_for": step.waits_for,
        "waits_for_text": step.wait_text or None,
        "waited_ms": step.waited_ms,
        "error": step.error or None,
        "canceled_by": step.canceled_by or None,
        "needs_worker": step.needs_worker,
        "methods": [
            {
                "name": method.name,
                "outcome": method.outcome,
                "attempts": method.attempts,
                "start_time": iso(method.started_ms),
                "duration_ms": method.duration_ms,
                "worker": method.worker or None,
            }
            for method in step.methods
        ],
    }
