"""What one command causes in other runs. All turns belong to one commit: they happen together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dex_lite._machine import decide
from dex_lite._machine.facts import ParentAttached, RunStarted, SubFlowEnded
from dex_lite._machine.model import COMPLETED, FlowEnd, Parent, RunState
from dex_lite._machine.starts import derived_id, run_started
from dex_lite._machine.turn import AttachSubFlow, Call, StartSubFlow, Turn, end_of


class Runs(Protocol):
    """The runs that a command may reach, as they are after the turns before."""

    def latest(self, flow_id: str) -> RunState | None:
        """The newest run of a Flow ID, open or closed."""

    def turn(self, run_id: str) -> Turn | None:
        """A turn of an open run."""


def spread(turn: Turn, runs: Runs) -> Iterator[Turn]:
    """The command's own turn and then every other one, each complete before the next is made.

    ``runs`` must know of a turn before the next one is asked for.
    """
    yield turn
    for call in turn.calls:
        for other in _turns(call, runs, turn.now_ms):
            yield from spread(other, runs)


def _turns(call: Call, runs: Runs, now_ms: int) -> Iterator[Turn]:
    if isinstance(call, Turn):
        yield call
    elif isinstance(call, RunStarted):
        yield decide.start(call)
    elif isinstance(call, AttachSubFlow):
        before = runs.latest(call.flow_id)
        if before is not None:
            yield from _attach(call.parent, before, runs)
    elif isinstance(call, StartSubFlow):
        yield from _start_sub_flow(call, runs, now_ms)
    else:
        yield from _tell(call.parent, call.end, runs)


def _start_sub_flow(call: StartSubFlow, runs: Runs, now_ms: int) -> Iterator[Turn]:
    parent, reuse = call.parent, call.sub_flow.reuse
    before = runs.latest(call.flow_id)
    if before is not None and _is_attached_to(before, reuse):
        yield from _attach(parent, before, runs)
        return
    if before is not None and before.is_open:
        turn = runs.turn(before.run_id)
        assert turn is not None
        decide.stop(turn, "terminate", "")
        yield turn
    purpose = f"{parent.execution_id} {parent.index}"
    yield decide.start(
        run_started(
            call.sub_flow.start,
            flow_id=call.flow_id,
            run_id=derived_id(parent.run_id, purpose),
            request_id=f"{parent.run_id} {purpose}",
            at=now_ms,
            parents=(parent,),
        )
    )


def _attach(parent: Parent, before: RunState, runs: Runs) -> Iterator[Turn]:
    if not before.is_open:
        yield from _tell(parent, end_of(before), runs)
        return
    turn = runs.turn(before.run_id)
    assert turn is not None
    turn.emit(ParentAttached(parent))
    yield turn


def _is_attached_to(before: RunState, reuse: str) -> bool:
    if reuse == "restart_failed":
        return before.is_open or before.status == COMPLETED
    return reuse == "attach"


def _tell(parent: Parent, end: FlowEnd, runs: Runs) -> Iterator[Turn]:
    """A wait hears of an end, if it still is one."""
    turn = runs.turn(parent.run_id)
    step = None if turn is None else turn.state.steps.get(parent.execution_id)
    if turn is None or step is None or step.phase != "waiting":
        return
    if step.sub_flow_ends[parent.index] is None:
        turn.emit(SubFlowEnded(parent.execution_id, parent.index, end))
        turn.settle()
        yield turn
