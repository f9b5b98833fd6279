"""What a session's Steps did, read from the engine's history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from dex.dexpb import dex_pb2 as pb

from dex_agents._arguments import check_list
from dex_agents._history_events import read_history_events


@dataclass(frozen=True)
class StepRow:
    """One method of one Step execution that has ended.

    Attributes:
        step_type, step_execution_id: The Step, and which execution of it.
        from_step_execution_id: Execution that scheduled it.
        method: ``"wait_for"`` or ``"execute"``.
        attempts: Number of the last attempt.
        started_at: When that attempt began, in UTC.
        duration_s: Seconds from that attempt's start to its end.
        outcome: How it ended.
        error: Why it failed, or empty.
    """

    step_type: str
    step_execution_id: str
    from_step_execution_id: str
    method: Literal["wait_for", "execute"]
    attempts: int
    started_at: datetime
    duration_s: float
    outcome: Literal["completed", "failed"]
    error: str = ""


async def read_step_history(server_address: str, session_id: str) -> list[StepRow]:
    """All Step methods of a session that have ended, in the order of their end.

    Args:
        server_address: ``host:port`` of the engine.
        session_id: The session.

    Raises:
        grpc.aio.AioRpcError: The engine cannot be reached, or knows no such session.
    """
    rows = []
    async for event in read_history_events(server_address, session_id):
        kind = event.WhichOneof("payload")
        if kind == "step_wait_for_completed":
            rows.append(_row("wait_for", event.step_wait_for_completed.context))
        elif kind == "step_execute_completed":
            rows.append(_row("execute", event.step_execute_completed.context))
        elif kind == "step_wait_for_failed":
            failed = event.step_wait_for_failed
            rows.append(_row("wait_for", failed.context, failed.output.failure))
        elif kind == "step_execute_failed":
            rows.append(
                _row(
                    "execute",
                    event.step_execute_failed.context,
                    event.step_execute_failed.output.failure,
                )
            )
    return rows


def step_shape(rows: Sequence[StepRow]) -> list[str]:
    """Step types of ``rows`` in the order in which their Execute ended."""
    check_list("rows", rows, StepRow, "read_step_history() gives them")
    return [row.step_type for row in rows if row.method == "execute"]


async def read_step_shape(server_address: str, session_id: str) -> list[str]:
    """:func:`step_shape` of a session; takes and raises what :func:`read_step_history` does.

    Args:
        server_address: ``host:port`` of the engine.
        session_id: The session.
    """
    return step_shape(await read_step_history(server_address, session_id))


def _row(
    method: Literal["wait_for", "execute"],
    context: pb.StepMethodEventContext,
    failure: pb.StepMethodFailure | None = None,
) -> StepRow:
    error = ""
    if failure is not None:
        details = failure.details
        error = details.original_worker_error_detail or details.detail or failure.backend_error
    return StepRow(
        step_type=context.step_type,
        step_execution_id=context.step_execution_id,
        from_step_execution_id=context.from_step_execution_id,
        method=method,
        attempts=context.final_attempt,
        started_at=context.started_time.ToDatetime(tzinfo=UTC),
        duration_s=context.duration.ToNanoseconds() / 1e9,
        outcome="completed" if failure is None else "failed",
        error=error,
    )
