"""A run as a tree of Step executions, put together from its history and its live state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_lite._cli._conditions import Condition, each_condition, whole_condition
from dex_lite._cli._show_values import enum_name, milliseconds, short


@dataclass
class MethodView:
    """One method of a Step execution that has ended. Times are milliseconds."""

    name: str  # wait_for or execute
    outcome: str  # completed or failed
    attempts: int
    started_ms: int | None
    duration_ms: int
    worker: str = ""
    error: str = ""

    @property
    def ended_ms(self) -> int | None:
        return None if self.started_ms is None else self.started_ms + self.duration_ms


@dataclass
class StepView:
    """One Step execution.

    `state` is completed, failed, waiting, running, retrying, queued, canceled by a decision of
    `canceled_by`, or dropped: the run closed before it ended.
    """

    execution_id: str  # empty if the server does not tell it
    step_type: str
    source_id: str
    state: str
    methods: list[MethodView] = field(default_factory=list)
    waits_for: list[str] = field(default_factory=list)  # each condition
    wait_text: str = ""  # all of them, and which have to come
    attempts: int = 0  # failed so far, of a method that is to be tried again
    error: str = ""
    canceled_by: str = ""  # a Step execution or RPC
    is_closing: bool = False  # its decision was to end the run, or its own branch with an output
    needs_worker: bool = False  # it is ready, and no Worker is connected that could take it
    children: list[StepView] = field(default_factory=list)

    def wait_on(self, condition: Condition) -> None:
        self.waits_for, self.wait_text = each_condition(condition), whole_condition(condition)

    @property
    def waited_ms(self) -> int | None:
        """From the end of WaitFor to the start of Execute."""
        by_name = {method.name: method for method in self.methods}
        wait, execute = by_name.get("wait_for"), by_name.get("execute")
        if wait is None or execute is None or not self.waits_for:
            return None
        if wait.ended_ms is None or execute.started_ms is None:
            return None
        return max(0, execute.started_ms - wait.ended_ms)


@dataclass
class RunView:
    """One run."""

    flow_id: str
    run_id: str
    flow_type: str
    status: str
    start_ms: int | None
    close_ms: int | None
    run_attempt: int
    error: str = ""
    outputs: list[str] = field(default_factory=list)
    roots: list[StepView] = field(default_factory=list)

    @property
    def needs_worker(self) -> bool:
        return any(step.needs_worker for step in self.steps())

    def steps(self) -> list[StepView]:
        """All Step executions, each before its children."""
        found: list[StepView] = []
        pending = self.roots[::-1]
        while pending:
            step = pending.pop()
            found.append(step)
            pending += step.children[::-1]
        return found


def build(
    summary: pb.GetFlowSummaryResponse,
    events: list[pb.FlowHistoryEvent],
    live: pb.GetFlowStateResponse | None,
    without_worker: Collection[str] = (),
) -> RunView:
    """The view of one run.

    Args:
        live: Only of an open one.
        without_worker: Types of Steps that no connected Worker could take.
    """
    view = RunView(
        flow_id=summary.flow_execution_id.flow_id,
        run_id=summary.flow_execution_id.run_id,
        flow_type=summary.flow_type,
        status=enum_name(pb.FlowStatus, summary.flow_status, "FLOW_STATUS_"),
        start_ms=milliseconds(summary.start_time),
        close_ms=milliseconds(summary.close_time),
        run_attempt=summary.run_attempt,
    )
    steps: dict[str, StepView] = {}
    planned: list[tuple[str, str]] = []
    for event in events:
        kind = event_kind(event)
        if kind == "flow_started_or_continued":
            start = event.flow_started_or_continued.initial_start.start_step_type
            if start:
                planned.append(("", start))
        elif kind == "flow_closed":
            view.error = event.flow_closed.error_message
            view.outputs = [
                short(output.completed_step_output)
                for output in event.flow_closed.results
                if output.completed_step_output.WhichOneof("kind") not in (None, "null_value")
            ]
        elif kind == "rpc_execution_completed":
            rpc = event.rpc_execution_completed
            _cancel(steps, planned, rpc.step_decision, f"RPC {rpc.rpc_name}", None)
            for movement in rpc.step_decision.next_steps:
                planned.append(("", movement.step_type))
        elif kind.startswith("step_") and not kind.endswith("_pending"):
            _add_method(steps, planned, kind, getattr(event, kind))
    if live is not None:
        _add_live(steps, live)
    _add_missing(steps, planned, is_open=live is not None)
    for step in steps.values():
        is_ready = step.state in ("queued", "retrying", "running")
        step.needs_worker = is_ready and step.step_type in without_worker
    for step in steps.values():
        parent = steps.get(step.source_id)
        (view.roots if parent is None or parent is step else parent.children).append(step)
    return view


def event_kind(event: pb.FlowHistoryEvent) -> str:
    """Name of the one event that is set."""
    return event.WhichOneof("payload") or "unknown"


def _add_method(
    steps: dict[str, StepView], planned: list[tuple[str, str]], kind: str, event: Any
) -> None:
    context = event.context
    method = MethodView(
        name="wait_for" if kind.startswith("step_wait_for") else "execute",
        outcome="completed" if kind.endswith("_completed") else "failed",
        attempts=max(1, context.final_attempt),
        started_ms=milliseconds(context.started_time),
        duration_ms=context.duration.ToMilliseconds(),
        worker=context.pull_routing.served_by_app_worker_id,
    )
    step = _step(steps, context)
    step.methods.append(method)
    step.state = method.outcome
    if method.outcome == "failed":
        method.error = step.error = failure_text(event.output.failure)
    elif method.name == "wait_for":
        step.wait_on(event.output.wait_for_condition)
        step.state = "waiting" if step.waits_for else "queued"
    else:
        decision = event.output.step_decision
        _cancel(steps, planned, decision, step.execution_id, step)
        planned += [(step.execution_id, movement.step_type) for movement in decision.next_steps]
        step.is_closing = decision.close_decision.close_decision_type not in (
            pb.CLOSE_DECISION_TYPE_UNSPECIFIED,
            pb.CLOSE_DECISION_TYPE_DEAD_END,
        )


def _cancel(
    steps: dict[str, StepView],
    planned: list[tuple[str, str]],
    decision: pb.StepDecision,
    by: str,
    decider: StepView | None,
) -> None:
    """The Steps that a decision canceled: the history has nothing of their own about it."""
    types, sibling_types = set(decision.cancel_step_types), set(decision.cancel_sibling_step_types)
    if not types and not sibling_types:
        return

    def is_meant(step: StepView) -> bool:
        is_sibling = decider is not None and step.source_id == decider.source_id
        return step.step_type in types or (is_sibling and step.step_type in sibling_types)

    _add_unseen(steps, planned, is_meant)
    for step in steps.values():
        # Neither the decider itself nor what has ended is in one of these states.
        if step.state in ("waiting", "queued") and is_meant(step):
            step.state, step.canceled_by = "canceled", by


def _step(steps: dict[str, StepView], found: Any) -> StepView:
    name = found.step_execution_id
    if name not in steps:
        steps[name] = StepView(name, found.step_type, found.from_step_execution_id, "queued")
    return steps[name]


def _add_live(steps: dict[str, StepView], live: pb.GetFlowStateResponse) -> None:
    for active in live.active_step_executions:
        step = _step(steps, active)
        if active.phase == pb.ACTIVE_STEP_PHASE_WAITING:
            step.state = "waiting"
            step.wait_on(active.waiting_condition)
            continue
        failure = active.last_failure_info
        step.state = "retrying" if failure.attempt else "running"
        step.attempts = failure.attempt
        step.error = failure_text(failure) if failure.attempt else ""
    for number, movement in enumerate(live.queued_steps):
        source = movement.from_step_execution_id_internal_only
        known = [
            step
            for step in steps.values()
            if step.state == "queued"
            and (step.step_type, step.source_id) == (movement.step_type, source)
        ]
        if not known:
            steps[f"queued {number}"] = StepView("", movement.step_type, source, "queued")


def _add_missing(
    steps: dict[str, StepView], planned: list[tuple[str, str]], *, is_open: bool
) -> None:
    """What a closed run left: nothing of it can still go on."""
    if is_open:
        return
    _add_unseen(steps, planned, lambda _: True)
    for step in steps.values():
        if step.state in ("waiting", "queued"):
            step.state = "dropped"


def _add_unseen(
    steps: dict[str, StepView],
    planned: list[tuple[str, str]],
    is_wanted: Callable[[StepView], bool],
) -> None:
    """Steps that were scheduled, of which neither history nor live state says anything."""
    have = Counter((_source(steps, step), step.step_type) for step in steps.values())
    for source, step_type in planned:
        if have[source, step_type]:
            have[source, step_type] -= 1
        elif is_wanted(step := StepView("", step_type, source, "queued")):
            steps[f"unseen {len(steps)}"] = step


def _source(steps: dict[str, StepView], step: StepView) -> str:
    return step.source_id if step.source_id in steps else ""


def failure_text(failure: pb.StepMethodFailure) -> str:
    """The error of an attempt as one line."""
    kind = failure.details.original_worker_error_type or failure.backend_error
    detail = failure.details.original_worker_error_detail or failure.details.detail
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    return f"{kind}: {lines[0]}" if kind and lines else kind or (lines[0] if lines else "failed")
