"""How a run begins: by a client, as a SubFlow, or again by the Flow's retry policy."""

from __future__ import annotations

import hashlib

import msgspec

from dex_lite._machine.facts import RunStarted
from dex_lite._machine.model import FlowStart, Parent, RunState


def run_started(
    start: FlowStart,
    *,
    flow_id: str,
    run_id: str,
    request_id: str,
    at: int,
    backoff_ms: int = 0,
    run_attempt: int = 1,
    first_run_id: str = "",
    parents: tuple[Parent, ...] = (),
) -> RunStarted:
    """The first fact of a run."""
    return RunStarted(
        flow_id=flow_id,
        run_id=run_id,
        flow_type=start.flow_type,
        request_id=request_id,
        at=at,
        config=start.config,
        is_async_default=start.is_async_default,
        start=start.step,
        attributes=start.attributes,
        indexes=start.indexes,
        secrets=start.secrets,
        delay_ms=start.delay_ms,
        timeout=start.timeout,
        retry=start.retry,
        backoff_ms=backoff_ms,
        run_attempt=run_attempt,
        first_run_id=first_run_id,
        parents=parents,
    )


def retry_of(state: RunState, now_ms: int) -> RunStarted | None:
    """The run that follows this one if it fails now; ``None`` if it is the last."""
    start = state.again
    if start is None or start.retry is None:
        return None
    if start.retry.maximum_attempts and state.run_attempt >= start.retry.maximum_attempts:
        return None
    # A stored start has no values of these: the retry goes on with those of now.
    secrets = tuple((key, state.attributes[key]) for key in state.secrets)
    return run_started(
        msgspec.structs.replace(start, secrets=secrets),
        flow_id=state.flow_id,
        run_id=derived_id(state.run_id, "retry"),
        request_id=state.request_id,
        at=now_ms,
        backoff_ms=start.retry.delay_ms(state.run_attempt),
        run_attempt=state.run_attempt + 1,
        first_run_id=state.first_run_id or state.run_id,
        parents=tuple(state.parents),
    )


def derived_id(run_id: str, purpose: str) -> str:
    """A run id that belongs to this run and purpose: decisions have no randomness of their own."""
    return hashlib.sha256(f"{run_id} {purpose}".encode()).hexdigest()[:32]
