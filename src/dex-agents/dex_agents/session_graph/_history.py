"""From history events to what happened in each turn. No input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dex.dexpb import dex_pb2 as pb

from dex_agents._session import resources
from dex_agents._session.encoding import EncodingError, decode
from dex_agents._session.live_turns import Ranges, is_removed
from dex_agents._session.records import turn_number

State: TypeAlias = Literal["succeeded", "failed", "unknown", "waiting", "running"]
_OF_STATUS: dict[str, State] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "rejected": "failed",
    "outcome_unknown": "unknown",
}
_WAITS = ("AwaitToolApproval", "AwaitAnswer")
_AWAITED = {
    "approval": "approval",
    "input": "an answer",
    "long_running": "a result",
    "credential": "a credential",
}
_TOOL_STEPS = ("CallTool", "CallSingleAttemptTool")
_RUNNING = "running"
_LATE_S = 1.0  # a Step that begins later had no Worker, or none with a free place
# What of a commit is shown.
_SHOWN = (resources.records.name, resources.last_turn.name, resources.turn_states.name)
_OF_THE_TURN = ("CompactHistory", "RunModel", "FailTurn", "CancelTurn")


@dataclass
class Box:
    """A model call, a tool call or another Step of a turn.

    Attributes:
        title: The tool's name, or what the Step does.
        state: How it ended, or ``waiting`` for a person, or ``running``.
        facts: Short texts: which agent it belongs to, status, attempts, durations, the failure. Of a
            model call that failed the agent is not known.
        has_begun: Of a tool call, whether a Step that runs its tool has begun.
    """

    title: str
    state: State
    facts: list[str] = field(default_factory=list)
    has_begun: bool = False


@dataclass
class TurnHistory:
    """One turn.

    Attributes:
        turn_id: Its id, such as ``t3``.
        rows: Boxes that may run at the same time stand in one row.
        outcome: ``"answered"``, ``"failed"``, ``"cancelled"``, ``"open"``, or ``"closed"`` if the
            session was closed before the turn ended.
        duration_s: Seconds from its first Step to its end, or to the newest event.
        is_removed: Whether a rewind took it back, so that it counts no more.
    """

    turn_id: str
    rows: list[list[Box]] = field(default_factory=list)
    outcome: str = "open"
    duration_s: float = 0.0
    is_removed: bool = False

    def label(self, separator: str) -> str:
        """What stands above the turn: its outcome and how long it took, with ``separator`` between."""
        removed = ["removed by a rewind"] if self.is_removed else []
        return separator.join([self.outcome, *removed, span_text(self.duration_s)])


@dataclass
class SessionHistory:
    """What a session did.

    Attributes:
        session_id: The session.
        flow_type: Its Flow type.
        status: Of the Flow: ``"running"``, ``"completed"`` …
        turns: All that have begun, oldest first.
        facts: Short texts: what it was forked from, and what it waits for while no turn shows it.
    """

    session_id: str
    flow_type: str
    status: str
    turns: list[TurnHistory]
    facts: list[str] = field(default_factory=list)


@dataclass
class _Execution:
    step_type: str
    step_id: str
    input: Mapping[str, Any]
    started_s: float
    ready_s: float = 0.0
    ended_s: float = 0.0
    attempts: int = 1
    execute_s: float = 0.0
    has_executed: bool = False
    error: str = ""
    writes: dict[str, Any] = field(default_factory=dict)


def build_history(session_id: str, events: Iterable[pb.FlowHistoryEvent]) -> SessionHistory:
    """The history of a session from the events of its run."""
    history = SessionHistory(session_id, "", _RUNNING, [])
    executions: dict[str, _Execution] = {}
    scheduled: list[tuple[str, Mapping[str, Any]]] = []
    ends: dict[str, float] = {}  # of executions, when their end was stored
    newest_s = 0.0
    removed: Ranges = ()
    is_served = False  # whether a Worker has ever answered for it
    for event in events:
        newest_s = _seconds(event.event_time)
        kind = event.WhichOneof("payload")
        if kind == "flow_started_or_continued":
            started = event.flow_started_or_continued
            history.flow_type = started.flow_type
            history.facts += _forked_from(started.initial_start.initial_attributes)
        elif kind == "flow_closed":
            name = pb.FlowStatus.Name(event.flow_closed.flow_status)
            history.status = name.removeprefix("FLOW_STATUS_").lower()
        elif kind == "rpc_execution_completed":
            is_served = True
            removed = _removed(event.rpc_execution_completed.upsert_attributes, removed)
        elif kind is not None and kind.startswith("step_") and not kind.endswith("_pending"):
            is_served = True
            body = getattr(event, kind)
            _note(executions, kind, body, ends.get(body.context.from_step_execution_id, 0.0))
            if kind.startswith("step_execute"):
                ends[body.context.step_execution_id] = newest_s
            if kind == "step_execute_completed":
                decision = event.step_execute_completed.output.step_decision
                scheduled += [(s.step_type, _value(s.step_input)) for s in decision.next_steps]
    by_turn: dict[str, list[_Execution]] = {}
    for execution in executions.values():
        if turn_id := str(execution.input.get("turn_id", "")):
            by_turn.setdefault(turn_id, []).append(execution)
    for turn_id in sorted({*by_turn, *_turns(scheduled)}, key=turn_number):
        of_turn = [given for given in scheduled if given[1].get("turn_id") == turn_id]
        turn = _turn(turn_id, by_turn.get(turn_id, []), of_turn, newest_s)
        turn.is_removed = is_removed(removed, turn_number(turn_id))
        if turn.outcome == "open" and history.status != _RUNNING:
            turn.outcome = "closed"
            _end_open_boxes(turn, "session")
        history.turns.append(turn)
    if not history.turns:
        history.facts.append(_why_no_turn(history, is_served))
    return history


def _why_no_turn(history: SessionHistory, is_served: bool) -> str:
    if history.status != _RUNNING:
        return f"{history.status} without a turn of its own"
    return "waits for a message" if is_served else f"waits for a Worker of {history.flow_type}"


def _forked_from(attributes: Iterable[pb.KV]) -> list[str]:
    """Where a fork began, of the Attributes that a session was started with."""
    found = (_value(pair.value) for pair in attributes if pair.key == resources.fork.name)
    return [f"forked from {of['source']} at t{of['last_turn']}" for of in found if of]


def _removed(writes: Iterable[pb.AttributeWrite], before: Ranges) -> Ranges:
    """The ranges of turns that rewinds have removed, behind these writes of an RPC."""
    for write in writes:
        if write.key == resources.header.name:
            before = _value(write.value).get("removed", before)
    return before


def _turns(scheduled: Iterable[tuple[str, Mapping[str, Any]]]) -> set[str]:
    return {str(given["turn_id"]) for _, given in scheduled if given.get("turn_id")}


def _note(executions: dict[str, _Execution], kind: str, body: Any, ready_s: float) -> None:
    context = body.context
    started_s = _seconds(context.started_time)
    execution = executions.get(context.step_execution_id)
    if execution is None:
        execution = executions[context.step_execution_id] = _Execution(
            context.step_type,
            context.step_execution_id,
            _value(body.input.step_input),
            started_s,
            ready_s,
        )
    duration_s = context.duration.ToNanoseconds() / 1e9
    execution.ended_s = started_s + duration_s
    if kind.endswith("_failed"):
        details = body.output.failure.details
        execution.error = details.original_worker_error_detail or details.detail or "failed"
    if kind.startswith("step_execute"):
        execution.has_executed = True
        execution.attempts = context.final_attempt
        execution.execute_s = duration_s
    if kind == "step_execute_completed":
        for write in body.output.upsert_attributes:
            if write.key.startswith(_SHOWN) and (
                value := _value(write.value)
            ):  # empty ones are deletions
                execution.writes[write.key] = value


def _turn(
    turn_id: str,
    executions: list[_Execution],
    scheduled: list[tuple[str, Mapping[str, Any]]],
    newest_s: float,
) -> TurnHistory:
    turn = TurnHistory(turn_id)
    calls: dict[str, dict[int, list[_Execution]]] = {}
    tasks: dict[str, dict[int, Mapping[str, Any]]] = {}
    for _, given in scheduled:
        for task in _with_following(given):
            tasks.setdefault(task["batch"], {}).setdefault(task["index"], task)
    records: dict[str, Any] = {}
    for execution in executions:
        records |= execution.writes
        if "index" in execution.input:
            of_batch = calls.setdefault(execution.input["batch"], {})
            of_batch.setdefault(execution.input["index"], []).append(execution)
    batches = sorted(tasks, key=lambda batch: int(batch.rpartition(".")[2]))
    shown: set[str] = set()
    own = [e for e in executions if e.step_type in _OF_THE_TURN]
    for execution in sorted(own, key=lambda e: e.started_s):
        read = str(execution.input.get("batch", ""))
        is_cut = execution.step_type == "CancelTurn"  # it ends whatever is open
        for batch in [b for b in batches if (is_cut or b == read) and b not in shown]:
            shown.add(batch)
            turn.rows.append(_call_row(batch, tasks[batch], calls.get(batch, {}), records))
        turn.rows.append([_box_of_turn(execution)])
    turn.rows += [
        _call_row(batch, tasks[batch], calls.get(batch, {}), records)
        for batch in batches
        if batch not in shown
    ]
    planned = sum(step_type == "RunModel" for step_type, _ in scheduled)
    has_end = any(e.step_type in ("FailTurn", "CancelTurn") for e in own)
    if planned > sum(e.step_type == "RunModel" for e in own) and not has_end:
        turn.rows.append([Box("model call", "running")])
    last = next((v for k, v in records.items() if k.startswith(resources.last_turn.name)), None)
    if last is not None:
        turn.outcome = "cancelled" if last.get("is_cancelled") else "answered"
        if last.get("error") and not last.get("is_cancelled"):
            turn.outcome = "failed"
        _end_open_boxes(turn, "turn")
    if executions:
        begun_s = min(e.started_s for e in executions)
        ended_s = newest_s if last is None else max(e.ended_s for e in executions)
        turn.duration_s = max(0.0, ended_s - begun_s)
    return turn


def _end_open_boxes(turn: TurnHistory, end: str) -> None:
    for box in (box for row in turn.rows for box in row):
        if box.state in ("waiting", "running"):
            # What only ever waited for a person cannot have run.
            is_unrun = box.state == "waiting" and not box.has_begun
            box.state = "failed" if is_unrun else "unknown"
            box.facts = [f"ended with the {end}", *box.facts]


def _with_following(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A call and those that wait for it in its lane."""
    if "index" not in task:
        return []
    return [task, *(other for other in task.get("following") or () if "index" in other)]


def _call_row(
    batch: str,
    tasks: Mapping[int, Mapping[str, Any]],
    calls: Mapping[int, list[_Execution]],
    records: Mapping[str, Any],
) -> list[Box]:
    row = []
    for index, task in sorted(tasks.items()):
        key = resources.call_key(batch, index)
        record = next((v for k, v in records.items() if k.endswith(f"/{key}")), None)
        row.append(_call_box(task, calls.get(index, []), record))
    return row


def _call_box(task: Mapping[str, Any], steps: list[_Execution], record: Any) -> Box:
    box = Box(str(task["call"]["tool_name"]), "running")
    if agent := task["call"].get("agent_name"):
        box.facts.append(f"called by {agent}")
    waits = [step for step in steps if step.step_type in _WAITS]
    if record is not None:
        status = str(record.get("status", ""))
        box.state = _OF_STATUS.get(status, "unknown")
        box.facts.append(status.replace("_", " "))
    elif waits and not waits[-1].has_executed:
        box.state = "waiting"
        box.facts.append(f"waits for {_awaited(waits[-1])}")
    for step in waits:
        if step.has_executed:
            waited = span_text(step.ended_s - step.started_s)
            box.facts.append(f"waited {waited} for {_awaited(step)}")
    for step in steps:
        if step.step_type in _TOOL_STEPS:
            box.has_begun = True
            box.facts.append(f"ran {span_text(step.execute_s)}{_attempts(step)}")
    if record is not None and (why := record.get("error") or record.get("rejection_message")):
        box.facts.append(str(why))
    return box


def _awaited(wait: _Execution) -> str:
    """What a call waits for; without a question of its own for approval."""
    asked = wait.input.get("interrupt") or {}
    return _AWAITED.get(str(asked.get("kind") or "approval"), "an answer")


def _attempts(step: _Execution) -> str:
    """How often it was tried and over how long, or how long it found no Worker."""
    if step.attempts > 1:
        within = f" within {span_text(step.ended_s - step.ready_s)}" if step.ready_s else ""
        return f", {step.attempts} attempts{within}"
    late_s = step.started_s - step.ready_s if step.ready_s and step.has_executed else 0.0
    return f", began after {span_text(late_s)}" if late_s >= _LATE_S else ""


def _box_of_turn(step: _Execution) -> Box:
    titles = {
        "RunModel": "model call",
        "CompactHistory": "summary of older turns",
        "FailTurn": "turn failed",
        "CancelTurn": "turn cancelled",
    }
    is_bad = bool(step.error) or step.step_type in ("FailTurn", "CancelTurn")
    state: State = "failed" if is_bad else "succeeded"
    if not step.has_executed:
        state = "running"
    facts = [*_agents(step), f"{span_text(step.execute_s)}{_attempts(step)}"]
    return Box(titles[step.step_type], state, [*facts, step.error] if step.error else facts)


def _agents(step: _Execution) -> list[str]:
    """The agents whose model a Step asked, as its commit says."""
    if step.step_type != "RunModel":
        return []
    names = [name for value in step.writes.values() for name in value.get("agents") or ()]
    return [f"called by {', '.join(dict.fromkeys(names))}"] if names else []


def span_text(seconds: float) -> str:
    """A duration for people."""
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _seconds(time: Any) -> float:
    return float(time.seconds + time.nanos / 1e9)


def _value(value: Any) -> Mapping[str, Any]:
    """What a Step's input or an Attribute holds, if it is an object of the session's."""
    try:
        # In the wire form text; what the SDK has put aside as a blob is not looked up.
        payload = value.obj_value.payload
        data = payload if isinstance(payload, bytes) else payload.encode("latin-1")
        decoded = decode(data)
    except (EncodingError, UnicodeEncodeError, AttributeError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
