"""What a session's Steps did, read from the engine's history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import grpc.aio
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

_CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class StepRow:
    """One method of one Step execution that has ended.

    Attributes:
        from_step_execution_id: Execution that scheduled it.
        method: ``"wait_for"`` or ``"execute"``.
        attempts: Number of the last attempt.
        duration_s: Seconds from that attempt's start to its end.
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

    Raises:
        grpc.aio.AioRpcError: The engine cannot be reached, or knows no such session.
    """
    rows = []
    async for event in _events(server_address, session_id):
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
    """Step types in the order in which their Execute ended."""
    return [row.step_type for row in rows if row.method == "execute"]


async def read_step_shape(server_address: str, session_id: str) -> list[str]:
    """:func:`step_shape` of a session."""
    return step_shape(await read_step_history(server_address, session_id))


async def _events(server_address: str, session_id: str) -> AsyncIterator[pb.FlowHistoryEvent]:
    # A page of history holds whole Step inputs, which may be more than gRPC's own limit of 4 MiB.
    unlimited = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(server_address, options=unlimited) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        summary = await stub.GetFlowSummary(
            pb.GetFlowSummaryRequest(flow_id=session_id), timeout=_CALL_TIMEOUT_S
        )
        token = b""
        while True:
            page = await stub.GetHistoryEvents(
                pb.GetHistoryEventsRequest(
                    flow_id=session_id,
                    run_id=summary.flow_execution_id.run_id,
                    next_page_token=token,
                ),
                timeout=_CALL_TIMEOUT_S,
            )
            for event in page.events:
                yield event
            token = page.next_page_token
            if not token:
                return


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
