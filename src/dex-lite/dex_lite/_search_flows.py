"""``SearchFlows``: from a client's query to a page of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_lite._errors import SearchTooSlowError
from dex_lite._machine.model import RunState
from dex_lite._search._page import (
    MOST_ROWS,
    Found,
    PageTokenError,
    position_of,
    read_page,
    token,
)
from dex_lite._search._query import QueryError, parse
from dex_lite._search._sql import compile_query
from dex_lite._wire.errors import ServiceError, invalid

if TYPE_CHECKING:
    from dex_lite._engine import Engine


async def search(engine: Engine, request: pb.SearchFlowsRequest) -> pb.SearchFlowsResponse:
    """One page of the runs that a query finds, as they are on disk at one moment.

    Raises:
        ServiceError: The query or the token is not valid, or the search takes too long.
    """
    engine.check_running()
    if request.page_size < 0:
        raise invalid("a page size must not be negative")
    try:
        query = parse(request.query)
        compiled = compile_query(query, engine.indexes.types, partial(_active_steps, engine))
        after = position_of(request.query, request.next_page_token, len(compiled.sort))
    except (QueryError, PageTokenError) as error:
        raise invalid(str(error)) from None
    limit_s = engine.options.search_limit_s
    if compiled.needs_indexes and not await engine.indexes.filled(limit_s):
        raise ServiceError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "an Attribute index is still being filled with older Flows; ask again in a moment",
        )
    # What anybody was told before this search came must be in it.
    await engine.durable(engine.journal.submit([]))
    size = min(request.page_size or MOST_ROWS, MOST_ROWS)
    try:
        found, has_more = await engine.journal.search(
            lambda connection: read_page(
                connection, compiled, after, size, engine.options.limits.task
            ),
            limit_s,
        )
    except SearchTooSlowError as error:
        raise invalid(str(error)) from None
    response = pb.SearchFlowsResponse(flow_runs=[_entry(row) for row in found])
    if has_more:
        response.next_page_token = token(request.query, found[-1].position)
    return response


def flows_without_worker(engine: Engine, page: pb.SearchFlowsResponse) -> list[int]:
    """Places in the page of Flows with Steps that no connected Worker could take."""
    return [
        place
        for place, row in enumerate(page.flow_runs)
        if (run := engine.runs.get(row.run_id)) and engine.attempts.without_worker(run)
    ]


def _active_steps(engine: Engine) -> Mapping[str, frozenset[str]]:
    return {
        run_id: found
        for run_id, run in engine.runs.items()
        if run.state.is_open and (found := _active_types(run.state))
    }


def _active_types(state: RunState) -> frozenset[str]:
    mode = pb.FlowConfig.FromString(state.config).active_step_search_mode
    if mode == pb.ACTIVE_STEP_SEARCH_MODE_DISABLED:
        return frozenset()
    only_waits = mode == pb.ACTIVE_STEP_SEARCH_MODE_ENABLED_FOR_STEPS_WITH_WAIT_FOR
    return frozenset(
        step.step_type
        for step in state.steps.values()
        if not (only_waits and step.movement.options.skip_wait_for)
    )


def _entry(found: Found) -> pb.SearchFlowsResponseEntry:
    row = found.row
    entry = pb.SearchFlowsResponseEntry(
        flow_id=row.flow_id,
        run_id=row.run_id,
        flow_type=row.flow_type,
        flow_status=row.status,  # type: ignore[arg-type]
    )
    entry.start_time.FromMilliseconds(row.start_ms)
    if row.close_ms is not None:
        entry.close_time.FromMilliseconds(row.close_ms)
    values: dict[str, list[bytes]] = {}
    for name, value in found.attributes:
        values.setdefault(name, []).append(value)
    for name, encoded in values.items():
        entry.indexed_attributes.add(key=name).value.CopyFrom(_shown(encoded))
    return entry


def _shown(encoded: Sequence[bytes]) -> pb.Value:
    """The value; of several instances of a map in one index, a JSON array of theirs."""
    values = [pb.Value.FromString(value) for value in encoded]
    if len(values) == 1:
        return values[0]
    data = json.dumps([_plain(value) for value in values]).encode()
    return pb.Value(obj_value=pb.EncodedObject(encoding="json", payload=data))


def _plain(value: pb.Value) -> object:
    kind = value.WhichOneof("kind")
    if kind == "obj_value":
        return json.loads(value.obj_value.payload)
    return None if kind is None else getattr(value, kind)
