"""What holds of a run between any two commands: one definition, for the tests of the machine and for `dex-lite check`.

Pure functions over states. Each yields what is wrong, in words; nothing if all is well. What holds of facts, one after
the other, is in :mod:`ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from dex_lite._machine.decide import SKIPS_KEPT
from dex_lite._machine.fold import RPC_ANSWERS_KEPT
from dex_lite._machine.model import (
    FAILED,
    TERMINATED,
    FlowStart,
    FlowTimeout,
    RunState,
    StepExecution,
)
from dex_lite._machine.waits import won


def faults(state: RunState, rpc_locks: frozenset[str] | None) -> Iterator[str]:
    """What is wrong with a state.

    ``rpc_locks`` are the Attributes that RPCs in flight hold. No file has them; with ``None`` they are
    unknown, and then nothing is said of Steps that wait for locks which no other Step holds.
    """
    if (state.status == FAILED) != bool(state.error_type):
        yield f"status {state.status} does not go with error type {state.error_type}"
    if state.next_run_id and state.status not in (FAILED, TERMINATED):
        yield f"status {state.status} is followed by another run"
    for what, count in (
        ("RPC answers", len(state.rpc_answers)),
        ("answered deletions", len(state.deletions_done)),
    ):
        if count > RPC_ANSWERS_KEPT:
            yield f"{count} {what} are kept"
    for attribute in sorted(state.secrets.keys() - state.attributes.keys()):
        yield f"hard-delete Attribute {attribute!r} is no Attribute"
    if state.is_open:
        yield from _open_faults(state, rpc_locks)
    elif state.steps or state.channels or state.kept_skips:
        yield "a closed run has Steps, messages or skips of timers"


def _open_faults(state: RunState, rpc_locks: frozenset[str] | None) -> Iterator[str]:
    if state.is_completing and not state.has_user_steps:
        yield "no Step is left, and it has not completed"
    if sum(step.is_timeout for step in state.steps.values()) > (state.timeout is not None):
        yield "a timeout is waited for that the Flow does not have, or twice"
    yield from _message_faults(state)
    yield from _skip_faults(state)
    for key, step in state.steps.items():
        for fault in _step_faults(state, key, step):
            yield f"Step {key}: {fault}"
    yield from _lock_faults(state, rpc_locks)


def _message_faults(state: RunState) -> Iterator[str]:
    for name, messages in state.channels.items():
        ids = [message.message_id for message in messages]
        if not ids:
            yield f"Channel {name!r} is kept without messages"
        if any(later <= earlier for earlier, later in pairwise(ids)):
            yield f"messages of Channel {name!r} are not in the order in which they were published"


def _skip_faults(state: RunState) -> Iterator[str]:
    if len(state.kept_skips) > SKIPS_KEPT:
        yield f"{len(state.kept_skips)} skips of timers are kept"
    for skip in state.kept_skips:
        step = state.steps.get(skip.execution_id)
        step_type, _, number = skip.execution_id.rpartition("-")
        has_ended = number.isdecimal() and state.has_ended(step_type, int(number))
        if has_ended or (step is not None and step.phase != "wait_for"):
            yield f"a skip of a timer of Step {skip.execution_id} outlives the beginning of its wait"


def _step_faults(state: RunState, key: str, step: StepExecution) -> Iterator[str]:
    step_type, _, number = key.rpartition("-")
    if key != step.execution_id or step_type != step.step_type or not number.isdecimal():
        yield f"it is named {step.execution_id!r} and of type {step.step_type!r}"
    elif not 0 < int(number) <= state.counters.get(step_type, 0):
        yield f"its number is none of the {state.counters.get(step_type, 0)} that were given"
    locks = step.method_options.locks
    if step.has_locks and (step.phase == "waiting" or not locks):
        yield "it holds locks that it does not need"
    maximum = step.method_options.retry.maximum_attempts
    if maximum and step.attempts_used > maximum:
        yield f"{step.attempts_used} attempts were made, and {maximum} are permitted"
    if step.attempt is not None:
        if step.retry_at_ms or step.phase == "waiting":
            yield "an attempt runs while it waits"
        if locks and not step.has_locks:
            yield "an attempt runs without its locks"
        if not step.attempts_used:
            yield "an attempt runs that is not counted"
    if step.phase == "waiting":
        yield from _wait_faults(state, step)


def _wait_faults(state: RunState, step: StepExecution) -> Iterator[str]:
    condition = step.condition
    if condition is None:
        yield "it waits for nothing"
    elif len(step.timers) != len(condition.timers) or (
        len(step.sub_flow_ends) != len(condition.sub_flows)
    ):
        yield "its timers or SubFlows are not those of its condition"
    elif won(step, state.channels) is not None:
        yield "its wait is met, and it has not gone on"


def _lock_faults(state: RunState, rpc_locks: frozenset[str] | None) -> Iterator[str]:
    holders: dict[str, str] = {}
    for step in state.steps.values():
        for lock in step.method_options.locks if step.has_locks else ():
            if lock in holders:
                yield f"Attribute {lock!r} is locked by {holders[lock]} and {step.execution_id}"
            holders.setdefault(lock, step.execution_id)
    if rpc_locks is None:
        return
    for lock in sorted(rpc_locks & holders.keys()):
        yield f"Attribute {lock!r} is locked by {holders[lock]} and an RPC"
    # First come, first served: who waits longer has a claim on all that it wants.
    blocked = {*holders, *rpc_locks}
    for step in state.steps.values():
        wants = step.method_options.locks
        if step.is_ready and wants and not step.has_locks:
            if blocked.isdisjoint(wants):
                yield f"Step {step.execution_id} waits for locks that are free"
            blocked.update(wants)


class Link(msgspec.Struct, frozen=True):
    """What the runs of a Flow that follow each other have to agree on."""

    flow_id: str
    run_id: str
    first_run_id: str
    run_attempt: int
    status: int
    next_run_id: str
    again: FlowStart | None
    timeout: FlowTimeout | None


def link_of(state: RunState) -> Link:
    """The link of a run in the chain of its Flow."""
    return Link(
        flow_id=state.flow_id,
        run_id=state.run_id,
        first_run_id=state.first_run_id or state.run_id,
        run_attempt=state.run_attempt,
        status=state.status,
        next_run_id=state.next_run_id,
        again=state.again,
        timeout=state.timeout,
    )


def chain_faults(before: Link, after: Link) -> Iterator[str]:
    """What is wrong with two runs of which the second follows the first: as its retry, or by time travel."""
    if (before.flow_id, before.first_run_id) != (after.flow_id, after.first_run_id):
        yield f"run {after.run_id} follows it, and is of another Flow or chain"
    if after.run_attempt != before.run_attempt + 1:
        yield (
            f"it is attempt {before.run_attempt}, and attempt {after.run_attempt} follows, "
            f"run {after.run_id}"
        )
    if before.status != FAILED:
        return
    if before.again is None or before.again.retry is None:
        yield f"run {after.run_id} tries it again, and the Flow has no retry policy"
    elif 0 < before.again.retry.maximum_attempts < after.run_attempt:
        yield f"run {after.run_id} tries it again, and no attempt was left"
    elif (before.again, before.timeout) != (after.again, after.timeout):
        yield f"run {after.run_id} tries it again, and began in another way"
