"""``ResetFlow``: from a client's request to the new run."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine import decide
from dex_lite._machine.facts import AnyFact, decode_fact
from dex_lite._machine.fold import fold
from dex_lite._machine.model import Method, RunState
from dex_lite._machine.travel import Fork, Target, find_cut, fork
from dex_lite._machine.turn import AttachSubFlow, Turn
from dex_lite._records import RunRow
from dex_lite._runs import Run
from dex_lite._search._terms import microseconds
from dex_lite._timers import now_ms
from dex_lite._wire.errors import flow_missing, invalid
from dex_lite._wire.limits import reason_fault

if TYPE_CHECKING:
    from dex_lite._engine import Engine

_FACTS_A_READ = 2_000
_METHODS: dict[int, Method | None] = {
    pb.FLOW_RESET_STEP_METHOD_UNSPECIFIED: None,
    pb.FLOW_RESET_STEP_METHOD_WAIT_FOR: "wait_for",
    pb.FLOW_RESET_STEP_METHOD_EXECUTE: "execute",
}


async def reset(engine: Engine, request: pb.ResetFlowRequest) -> pb.ResetFlowResponse:
    """Let the Flow go on in a new run, from a point of an earlier one; a run that is open ends.

    Raises:
        ServiceError: There is no such run, or it never came to that point.
    """
    target = _target(request)
    if fault := reason_fault(request.reason, engine.options.limits):
        raise invalid(fault)
    row = await _row(engine, request)
    read: dict[str, RunState] = {}  # closed SubFlows that the new run waits for
    while True:
        newest = engine.find(request.flow_id)
        last = await engine.state_of(newest)
        facts = await _facts(engine, row)
        if engine.find(request.flow_id).run_id != last.run_id:
            continue
        # From here on nothing waits: what was read is what the new run is made of.
        new, before = _fork(engine, request, target, row, facts, last)
        flow_ids = [call.flow_id for call in new.calls if isinstance(call, AttachSubFlow)]
        unread = engine.unread(flow_ids, read)
        if not unread:
            break
        for sub_flow in unread:
            read[sub_flow.run_id] = await engine.state_of(sub_flow)
    if before is not None and before.state.is_open:
        turn = engine.turn(before)
        decide.leave(turn, new)
        commit = engine.store(before, turn, read)
    else:
        commit = engine.store_new(new, read)
    await engine.durable(commit)
    return pb.ResetFlowResponse(run_id=new.state.run_id, run_attempt=new.state.run_attempt)


def _fork(
    engine: Engine,
    request: pb.ResetFlowRequest,
    target: Target,
    row: RunRow,
    facts: list[AnyFact],
    last: RunState,
) -> tuple[Turn, Run | None]:
    """The new run, and the newest one before it, if that is in memory. ``last`` is the state of that."""
    cut = find_cut(facts, target)
    if cut is None:
        raise invalid(_never_there(request))
    newest = engine.find(request.flow_id)
    before = engine.runs.get(newest.run_id)
    base = engine.runs.get(row.run_id)
    old = base.state if base is not None else _state(facts)
    what = Fork(
        run_id=uuid.uuid4().hex,
        run_attempt=newest.run_attempt + 1,
        first_run_id=newest.first_run_id,
        reason=request.reason,
        cut=cut,
        with_writes=not request.skip_writes_reapply,
        parents=tuple((old if before is None else before.state).parents),
        secrets={key: last.attributes[key] for key in last.secrets},
    )
    return fork(facts, old, what, now_ms()), before


async def _row(engine: Engine, request: pb.ResetFlowRequest) -> RunRow:
    """The run that the target is in."""
    row = await engine.find_any(request.flow_id, request.run_id)
    wanted = request.run_attempt
    if wanted < 0:
        raise invalid("the attempt of a run must not be negative")
    if not wanted or row.run_attempt == wanted:
        return row
    if not request.run_id:
        for other in await engine.journal.runs_of(request.flow_id):
            if other.run_attempt == wanted and other.first_run_id == row.first_run_id:
                return other
    raise flow_missing(request.flow_id, f"has no such run with attempt {wanted}")


async def _facts(engine: Engine, row: RunRow) -> list[AnyFact]:
    """All facts of a run, those of this very moment included."""
    run = engine.runs.get(row.run_id)
    if run is None:
        return await _read(engine, row, None)
    tail: list[AnyFact] = []
    count = run.state.fact_count
    run.tails.append(tail)
    try:
        await engine.settled(run)
        return [*await _read(engine, row, count), *tail]
    finally:
        run.tails.remove(tail)


async def _read(engine: Engine, row: RunRow, count: int | None) -> list[AnyFact]:
    facts: list[AnyFact] = []
    while stored := await engine.journal.facts(row.run_id, len(facts) + 1, _FACTS_A_READ):
        facts += [decode_fact(payload) for _, payload in stored]
        if count is not None and len(facts) >= count:
            break
    if not facts:
        raise flow_missing(row.flow_id)  # its retention was over
    return facts[:count]


def _state(facts: list[AnyFact]) -> RunState:
    state: RunState | None = None
    for fact in facts:
        state = fold(state, fact)
    assert state is not None
    return state


def _target(request: pb.ResetFlowRequest) -> Target:
    kind = request.reset_type
    if request.step_method not in _METHODS:
        raise invalid(f"unknown Step method {request.step_method}")
    if kind == pb.FLOW_RESET_TYPE_BEGINNING:
        return Target("beginning")
    if kind == pb.FLOW_RESET_TYPE_HISTORY_EVENT_TIME:
        at = microseconds(request.history_event_time)
        if at is None:
            raise invalid(
                f"{request.history_event_time!r} is not a time such as 2026-01-31T08:00:00Z"
            )
        return Target("time", at_ms=at / 1_000)
    if kind == pb.FLOW_RESET_TYPE_STEP_TYPE:
        if not request.step_type:
            raise invalid("a Step type is needed")
        return Target("step_type", name=request.step_type)
    if kind == pb.FLOW_RESET_TYPE_STEP_EXECUTION_ID:
        if not request.step_execution_id:
            raise invalid("a Step execution id is needed")
        return Target(
            "execution", name=request.step_execution_id, method=_METHODS[request.step_method]
        )
    raise invalid(f"unknown kind of time travel {kind}")


def _never_there(request: pb.ResetFlowRequest) -> str:
    where = f"Flow {request.flow_id!r}"
    look = f"`dex-lite flow show {request.flow_id}` shows what ran"
    if request.reset_type == pb.FLOW_RESET_TYPE_HISTORY_EVENT_TIME:
        return f"{where} has no event at or after {request.history_event_time}; {look}"
    if request.reset_type == pb.FLOW_RESET_TYPE_STEP_TYPE:
        return f"no Step of type {request.step_type!r} of {where} has begun; {look}"
    what = "the Execute of " if request.step_method == pb.FLOW_RESET_STEP_METHOD_EXECUTE else ""
    return f"{what}Step {request.step_execution_id!r} of {where} has not begun; {look}"
