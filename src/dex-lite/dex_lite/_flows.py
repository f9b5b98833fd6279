"""Starting Flows, and what clients read of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_lite._machine import decide
from dex_lite._machine.facts import RunStarted, decode_fact
from dex_lite._machine.model import COMPLETED, RUNNING, RunState
from dex_lite._machine.starts import run_started
from dex_lite._machine.turn import end_of
from dex_lite._records import RunRow
from dex_lite._room import check_open_flows
from dex_lite._search._fields import IndexTypeError
from dex_lite._search._terms import TYPE_NAMES
from dex_lite._timers import now_ms
from dex_lite._wire.errors import ServiceError, flow_missing, invalid
from dex_lite._wire.history import HistoryReader
from dex_lite._wire.limits import name_fault
from dex_lite._wire.options import BadRequest, check_enum
from dex_lite._wire.starts import flow_start
from dex_lite._wire.tasks import flow_result
from dex_lite._wire.views import flow_state

if TYPE_CHECKING:
    from dex_lite._engine import Engine

_FACTS_A_READ = 2_000
_PAGE_EVENTS = 100
_LONGEST_NUMBER = 18  # digits that 64 bits hold


async def start(engine: Engine, request: pb.StartFlowRequest) -> pb.StartFlowResponse:
    """Start a run, or answer a repeated request."""
    engine.check_taking()
    try:
        fact = _started(engine, request)
    except BadRequest as error:
        raise invalid(str(error)) from None
    row = engine.rows.get(request.flow_id)
    if row is not None and not _may_start(request, row):
        options = request.flow_start_options.flow_already_started_options
        if options.ignore_already_started_error and row.request_id == request.request_id:
            run = engine.runs.get(row.run_id)
            if run is not None:
                await engine.settled(run)
            return pb.StartFlowResponse(run_id=row.first_run_id)
        raise ServiceError(
            grpc.StatusCode.ALREADY_EXISTS,
            f"Flow {request.flow_id!r} was already started",
            pb.ERROR_SUB_STATUS_FLOW_ALREADY_STARTED,
        )
    if row is None or row.status != RUNNING:
        check_open_flows(engine)
    else:
        before = engine.runs[row.run_id]
        turn = engine.turn(before)
        decide.stop(turn, "terminate", "")
        engine.store(before, turn)
    await engine.durable(engine.start_run(fact).commit)
    return pb.StartFlowResponse(run_id=fact.run_id)


def _may_start(request: pb.StartFlowRequest, row: RunRow) -> bool:
    policy = request.flow_start_options.id_reuse_policy
    if policy == pb.ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING:
        return True
    if row.status == RUNNING:
        return False
    if policy == pb.ID_REUSE_POLICY_ALLOW_IF_NO_RUNNING:
        return True
    if policy == pb.ID_REUSE_POLICY_ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY:
        return row.status != COMPLETED
    return False


def _started(engine: Engine, request: pb.StartFlowRequest) -> RunStarted:
    limits = engine.options.limits
    if fault := name_fault("Flow ID", request.flow_id, limits):
        raise BadRequest(fault)
    if fault := name_fault("request id", request.request_id, limits, forbidden=""):
        raise BadRequest(fault)
    options = request.flow_start_options
    check_enum("id reuse policy", options.id_reuse_policy, pb.IdReusePolicy)
    start = flow_start(
        request,
        engine.reader.attributes(options.attributes),
        limits,
        int(engine.options.heartbeat_floor_s * 1_000),
    )
    return run_started(
        start,
        flow_id=request.flow_id,
        run_id=uuid.uuid4().hex,
        request_id=request.request_id,
        at=now_ms(),
    )


async def wait_for_flow(engine: Engine, request: pb.WaitForFlowRequest) -> pb.FlowResult:
    """Wait until the Flow is closed and no retry follows."""
    row = await engine.find_any(request.flow_id, request.run_id)
    timeout_s = wait_budget(engine, request.wait_time_seconds)

    def check(state: RunState) -> pb.FlowResult | None:
        if state.is_open:
            return None
        return flow_result(end_of(state), with_results=request.needs_results)

    result: pb.FlowResult | None
    while True:
        run = engine.runs.get(row.run_id)
        state = None if run is not None and run.state.is_open else await engine.state_of(row)
        if state is None or not state.next_run_id:
            break
        row = await engine.find_any(request.flow_id, state.next_run_id)
    if state is None:
        assert run is not None
        message = f"Flow {request.flow_id!r} is still running"
        result = await engine.wait(run, check, timeout_s, message)
    else:
        result = check(state)
    assert result is not None
    if result.ByteSize() > engine.options.limits.task:
        raise invalid(
            f"the results of Flow {request.flow_id!r} are larger than a client can receive"
        )
    return result


async def wait_for_step(engine: Engine, request: pb.WaitForStepCompletionRequest) -> None:
    """Wait until a Step execution has ended."""
    try:
        number = int(request.step_execution_number)
    except ValueError:
        number = 0
    if number < 1 or not request.step_type:
        raise invalid("a Step type and an execution number from 1 are needed")

    def check(state: RunState) -> Any:
        if state.has_ended(request.step_type, number):
            return True
        return None if state.is_open else flow_missing(request.flow_id, "closed without that Step")

    await _wait_open_or_closed(
        engine, request.flow_id, check, request.request_timeout_seconds, "the Step has not ended"
    )


async def wait_for_attribute(
    engine: Engine, request: pb.WaitForAttributeRequest
) -> pb.WaitForAttributeResponse:
    """Wait until an Attribute matches."""
    match = request.match
    compare = _comparison(match)
    missing = flow_missing(request.flow_id, "is closed")

    def check(state: RunState) -> Any:
        encoded = state.attributes.get(match.key)
        if encoded is not None:
            value = pb.Value.FromString(encoded)
            if compare(value):
                return value
        return None if state.is_open else missing

    value = await _wait_open_or_closed(
        engine,
        request.flow_id,
        check,
        request.request_timeout_seconds,
        f"Attribute {match.key!r} does not match yet",
    )
    return pb.WaitForAttributeResponse(matched_value=value)


_COMPARISONS: dict[int, Callable[[Any, Any], bool]] = {
    pb.ATTRIBUTE_MATCH_OPERATOR_EQUAL: lambda a, b: a == b,
    pb.ATTRIBUTE_MATCH_OPERATOR_NOT_EQUAL: lambda a, b: a != b,
    pb.ATTRIBUTE_MATCH_OPERATOR_GREATER_THAN: lambda a, b: a > b,
    pb.ATTRIBUTE_MATCH_OPERATOR_GREATER_THAN_OR_EQUAL: lambda a, b: a >= b,
    pb.ATTRIBUTE_MATCH_OPERATOR_LESS_THAN: lambda a, b: a < b,
    pb.ATTRIBUTE_MATCH_OPERATOR_LESS_THAN_OR_EQUAL: lambda a, b: a <= b,
}


def _comparison(match: pb.AttributeMatch) -> Callable[[pb.Value], bool]:
    kind = match.operand.WhichOneof("kind")
    if not match.key:
        raise invalid("an Attribute key is needed")
    if kind not in ("string_value", "int_value", "double_value", "bool_value"):
        raise invalid("an Attribute can only be compared with text, a number or a bool")
    compare = _COMPARISONS.get(match.operator)
    if compare is None:
        raise invalid(f"unknown operator {match.operator}")
    if kind == "bool_value" and match.operator not in (
        pb.ATTRIBUTE_MATCH_OPERATOR_EQUAL,
        pb.ATTRIBUTE_MATCH_OPERATOR_NOT_EQUAL,
    ):
        raise invalid("a bool can only be compared for equality")
    operand = getattr(match.operand, kind)

    def matches(value: pb.Value) -> bool:
        return value.WhichOneof("kind") == kind and compare(getattr(value, kind), operand)

    return matches


async def _wait_open_or_closed(
    engine: Engine, flow_id: str, check: Any, timeout_seconds: int, message: str
) -> Any:
    engine.check_running()
    row = engine.rows.get(flow_id)
    if row is None:
        raise flow_missing(flow_id)
    if timeout_seconds < 0:
        raise invalid("a timeout must not be negative")
    run = engine.runs.get(row.run_id)
    if run is None:
        found = check(await engine.state_of(row))
        if isinstance(found, ServiceError):
            raise found
        return found
    limit = engine.options.max_wait_s
    try:
        return await engine.wait(run, check, min(timeout_seconds or limit, limit), message)
    except ServiceError as error:
        is_over = error.sub_status == pb.ERROR_SUB_STATUS_LONG_POLL_TIME_OUT
        if is_over and 0 < timeout_seconds <= limit:
            raise ServiceError(
                grpc.StatusCode.DEADLINE_EXCEEDED, message, pb.ERROR_SUB_STATUS_REQUEST_TIMEOUT
            ) from None
        raise


def wait_budget(engine: Engine, seconds: int) -> float:
    """Seconds that a long poll may take; 0 is the server's maximum."""
    if seconds < 0:
        raise invalid("a wait must not be negative")
    return min(float(seconds) or engine.options.max_wait_s, engine.options.max_wait_s)


async def summary(engine: Engine, request: pb.GetFlowSummaryRequest) -> pb.GetFlowSummaryResponse:
    """The main facts of a run."""
    row = await engine.find_any(request.flow_id, request.run_id)
    run = engine.runs.get(row.run_id)
    if run is not None:
        await engine.settled(run)
    response = pb.GetFlowSummaryResponse(
        first_run_id=row.first_run_id,
        request_id=row.request_id,
        flow_type=row.flow_type,
        flow_status=row.status,  # type: ignore[arg-type]
        run_attempt=row.run_attempt,
    )
    response.flow_execution_id.flow_id = row.flow_id
    response.flow_execution_id.run_id = row.run_id
    response.start_time.FromMilliseconds(row.start_ms)
    if row.close_ms is not None:
        response.close_time.FromMilliseconds(row.close_ms)
    return response


async def live_state(
    engine: Engine, request: pb.GetFlowStateRequest, most_bytes: int
) -> pb.GetFlowStateResponse:
    """Everything live in a run, for a client that receives so much."""
    row = await engine.find_any(request.flow_id, request.run_id)
    response = flow_state(await engine.state_of(row))
    if response.ByteSize() > most_bytes:
        raise invalid(f"the state of Flow {request.flow_id!r} is larger than a client can receive")
    return response


def steps_without_worker(engine: Engine, request: pb.GetFlowStateRequest) -> list[str]:
    """Types of the run's Steps that are ready while no Worker is connected that could take them."""
    row = engine.rows.get(request.flow_id)
    run = engine.runs.get(request.run_id or (row.run_id if row else ""))
    return [] if run is None else engine.attempts.without_worker(run)


async def history(
    engine: Engine, request: pb.GetHistoryEventsRequest, most_bytes: int
) -> pb.GetHistoryEventsResponse:
    """A page of a run's history, for a client that receives so much."""
    if not request.run_id:
        raise invalid("a run id is needed")
    row = await engine.find_any(request.flow_id, request.run_id)
    first = request.start_internal_event_id
    if request.next_page_token:
        first = _event_of(request.next_page_token)
    if first < 0 or request.estimate_page_size < 0:
        raise invalid("event ids and page sizes must not be negative")
    response = pb.GetHistoryEventsResponse(next_internal_event_id=max(first, 1))
    reader, number, size = HistoryReader(), 1, 0
    while facts := await engine.journal.facts(row.run_id, number, _FACTS_A_READ):
        number = facts[-1][0] + 1
        events = list(reader.read((n, decode_fact(payload)) for n, payload in facts))
        if len(facts) < _FACTS_A_READ:
            events += reader.rest()
        for event in events:
            if event.event_id < first:
                continue
            size += event.ByteSize() + 8
            is_full = len(response.events) >= (request.estimate_page_size or _PAGE_EVENTS)
            if size > most_bytes and not response.events:
                raise invalid(
                    f"event {event.event_id} of Flow {request.flow_id!r} is larger than a client can "
                    f"receive; go on behind it with start_internal_event_id={event.event_id + 1}"
                )
            if is_full or size > most_bytes:
                response.next_page_token = str(event.event_id).encode()
                return response
            response.events.append(event)
            response.next_internal_event_id = event.event_id + 1
    return response


def _event_of(token: bytes) -> int:
    """The event at which a page begins."""
    if not token.isdigit() or len(token) > _LONGEST_NUMBER:
        raise invalid("the page token is not one of this call")
    return int(token)


async def wait_for_event(
    engine: Engine, request: pb.WaitForHistoryEventRequest
) -> pb.WaitForHistoryEventResponse:
    """Wait until a history event with at least this id exists, or the Flow is closed."""
    if request.next_internal_event_id < 1:
        raise invalid("an event id from 1 is needed")
    row = await engine.find_any(request.flow_id, request.run_id)

    def check(state: RunState) -> pb.WaitForHistoryEventResponse | None:
        is_there = state.last_event >= request.next_internal_event_id
        if not is_there and state.is_open:
            return None
        return pb.WaitForHistoryEventResponse(
            event_available=is_there,
            available_internal_event_id=state.last_event if is_there else 0,
            flow_status=state.status,  # type: ignore[arg-type]
        )

    run = engine.runs.get(row.run_id)
    if run is None:
        response = check(await engine.state_of(row))
        assert response is not None
        return response
    found: pb.WaitForHistoryEventResponse = await engine.wait(
        run, check, engine.options.max_wait_s, "no such event yet", follows=False
    )
    return found


async def sync_index_types(engine: Engine, types: dict[str, int]) -> None:
    """Make the indexes that a Worker's Flows need."""
    engine.check_running()
    for name, index_type in types.items():
        if fault := name_fault("index key", name, engine.options.limits, forbidden=""):
            raise invalid(fault)
        if index_type not in TYPE_NAMES:
            raise invalid(f"index {name!r} has the unknown type {index_type}")
    limit = engine.options.limits.indexes
    if len(engine.indexes.types.keys() | types.keys()) > limit:
        raise ServiceError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"there may be at most {limit} Attribute indexes. Use an index key for several Attributes, "
            "or start the engine with a larger Limits(indexes=...)",
        )
    try:
        commit = engine.indexes.register(types)
    except IndexTypeError as error:
        raise ServiceError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
    if commit is not None:
        await engine.durable(commit)


__all__ = [
    "history",
    "live_state",
    "start",
    "steps_without_worker",
    "summary",
    "sync_index_types",
    "wait_budget",
    "wait_for_attribute",
    "wait_for_event",
    "wait_for_flow",
    "wait_for_step",
]
