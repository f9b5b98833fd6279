"""The Step of a call that waits for something other than the policy's approval."""

from __future__ import annotations

from dataclasses import replace

from dex import AsyncContext, StepDecision, go_to_many

from dex_agents import _failpoints
from dex_agents._contract import (
    InterruptKind,
    InterruptRequest,
    Json,
    ToolCallRecord,
    ToolCallStatus,
)
from dex_agents._session import interrupts, step_options
from dex_agents._session.encoding import decode
from dex_agents._session.events import StepEvents
from dex_agents._session.records import CallTask
from dex_agents._session.steps_tools import (
    AFTER_THE_WAIT,
    EXPIRED_TEXT,
    AwaitInterrupt,
    finish,
)

UNANSWERED_TEXT = "Nobody answered before the deadline."
WITHHELD_TEXT = "The user did not give the credential that this tool call needs."


class AwaitAnswer(AwaitInterrupt):
    """Waits for an answer that a call asked for while or instead of running."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        task = CallTask.from_json(decode(input))
        _failpoints.reach("interrupt.answered", context.flow_id)
        answer = interrupts.take_in(context, task.interrupt_id)
        asked = task.interrupt
        assert asked is not None, f"call {task.interrupt_id} waits for nothing"
        if answer is not None and (given := _for_the_tool(task, asked, answer)) is not None:
            edited = answer.get("arguments")  # of a person who approved
            again = replace(
                task,
                interrupt=None,
                answer=given,
                edited_arguments=task.edited_arguments if edited is None else edited,
            )
            return go_to_many(step_options.call_tool(self._flow.options, again))
        record = _record(task, answer)
        events = StepEvents(
            self._flow.event_stream, context, task.turn_id, first_seq=AFTER_THE_WAIT
        )
        decision = finish(context, self._flow, task, record, events)
        events.close()
        return decision


def _for_the_tool(
    task: CallTask, asked: InterruptRequest, answer: dict[str, Json]
) -> dict[str, Json] | None:
    """What the tool runs again with, which it was told before included; ``None``: it does not."""
    before: dict[str, Json] = task.answer or {}
    if asked.kind is InterruptKind.APPROVAL:
        told = {name: value for name, value in answer.items() if name != "arguments"}
        return {**before, **told}
    if asked.kind is InterruptKind.CREDENTIAL and "credential" in answer:
        given = {**answer["credential"], "request": asked.framework_data}
        return {**before, "credentials": [*before.get("credentials", ()), given]}
    return None


def _record(task: CallTask, answer: dict[str, Json] | None) -> ToolCallRecord:
    call, asked = task.call, task.interrupt
    assert asked is not None
    if answer is None:
        if asked.kind is InterruptKind.APPROVAL:
            status = ToolCallStatus.REJECTED
            return ToolCallRecord(
                call.call_id, call.tool_name, status, rejection_message=EXPIRED_TEXT
            )
        return ToolCallRecord(
            call.call_id, call.tool_name, ToolCallStatus.FAILED, error=UNANSWERED_TEXT
        )
    if asked.kind is InterruptKind.CREDENTIAL:
        return ToolCallRecord(
            call.call_id,
            call.tool_name,
            ToolCallStatus.REJECTED,
            rejection_message=str(answer.get("message") or WITHHELD_TEXT),
        )
    return ToolCallRecord(
        call.call_id,
        call.tool_name,
        ToolCallStatus.SUCCEEDED,
        output=answer["value"],
        framework_data=asked.framework_data,
        attempt=1,
    )
