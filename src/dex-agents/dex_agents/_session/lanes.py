"""Which calls of a response start now, and which follow which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dex_agents._contract import ToolCallRecord, ToolCallStatus
from dex_agents._errors import TOOL_CALL_NOT_RUN_ERROR_PREFIX
from dex_agents._session.records import CallTask

_SKIPPED = (
    f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: an earlier write of the same response did not succeed, so "
    "this one was skipped"
)


def waits_first(task: CallTask) -> bool:
    """Whether somebody must answer before the tool runs."""
    return task.call.requires_approval or task.interrupt is not None


def lanes(tasks: Sequence[CallTask], width: int) -> list[CallTask]:
    """The calls that start now; each of the others stands in the ``following`` of one of them.

    Ordered writes form one chain, in the model's order, at the end of a lane. An approval of one of
    them is asked when its turn has come. All other calls that wait first start at once and hold up
    nobody.
    """
    chain = [task for task in tasks if task.call.is_ordered_write]
    others = [task for task in tasks if not task.call.is_ordered_write]
    waiting = [task for task in others if waits_first(task)]
    running = [task for task in others if not waits_first(task)]
    groups = [list(running[number::width]) for number in range(min(width, len(running)))]
    if chain and len(groups) < width:
        groups.append(chain)
    elif chain:
        groups[len(running) % width] += chain
    return [*waiting, *(replace(first, following=tuple(rest)) for first, *rest in groups)]


def split_skipped(
    task: CallTask, record: ToolCallRecord
) -> tuple[Sequence[CallTask], Sequence[CallTask]]:
    """The calls that a call's record makes needless, and those that may still follow it."""
    if not task.call.is_ordered_write or record.status is ToolCallStatus.SUCCEEDED:
        return (), task.following
    skipped = [following for following in task.following if following.call.is_ordered_write]
    return skipped, [f for f in task.following if not f.call.is_ordered_write]


def skipped_record(task: CallTask) -> ToolCallRecord:
    """The record of an ordered write behind one that did not succeed."""
    return ToolCallRecord(
        task.call.call_id,
        task.call.tool_name,
        ToolCallStatus.FAILED,
        error=_SKIPPED,
        not_run=True,
        skipped=True,
    )
