"""The SDK options of each Step: time limits, attempts, failure routes and what it loads."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dex import (
    AttributeMap,
    AttributeMapLoad,
    RetryPolicy,
    StepDurability,
    StepMovement,
    StepOptions,
)

from dex_agents._effects import ToolEffect
from dex_agents._session import resources
from dex_agents._session.encoding import encode
from dex_agents._session.options import AgentSessionOptions
from dex_agents._session.records import CallTask, Round

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow

# Of Steps that only store something: they must get through in the end.
PATIENT = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=30),
    total_duration=timedelta(days=365),
)
_PURE = StepDurability.ASYNC
_SUMMARY_ATTEMPTS = 2


def pure_step() -> StepOptions:
    """A Step that does nothing outside and may be repeated freely."""
    return StepOptions(
        wait_for_retry=PATIENT,
        execute_retry=PATIENT,
        wait_for_durability=_PURE,
        execute_durability=_PURE,
    )


def wait_for_message() -> StepOptions:
    """Of the Step that opens turns: nobody opens one while a cancel looks at the open one."""
    return replace(
        pure_step(),
        execute_lock_attributes=(resources.header.lock(),),
        execute_load_attribute_maps=(resources.steering, resources.asked),
        execute_load_channel_maps=resources.OF_A_TURN,
    )


def await_user_message(flow: AgentSessionFlow) -> StepMovement[bytes]:
    """To the next turn."""
    from dex_agents._session.steps_turn import AwaitUserMessage

    return StepMovement.of(AwaitUserMessage, encode({}), options=wait_for_message())


def _call_keys(before: Round) -> list[str]:
    return [resources.call_key(before.batch, index) for index in range(before.calls)]


def run_model(options: AgentSessionOptions, before: Round) -> StepMovement[bytes]:
    """To a model call; when its attempts run out, to the end of the turn."""
    from dex_agents._session.steps_turn import RunModel

    return StepMovement.of(
        RunModel, encode(before.to_json()), options=run_model_options(options, before)
    )


def run_model_options(options: AgentSessionOptions, before: Round) -> StepOptions:
    """Options of a model call."""
    from dex_agents._session.steps_turn import FailTurn

    keys = _call_keys(before)
    state = resources.turn_states.load(before.turn_id)
    # Nothing large: a turn that failed because it does not fit a task must still be able to end.
    failed = StepOptions(
        execute_retry=PATIENT,
        execute_load_attribute_map_instances=(state, *map(resources.call_notes.load, keys)),
    )
    run = replace(
        _model_step(options, options.model_attempts),
        execute_load_attribute_maps=(*_history(before), resources.steering),
        execute_load_attribute_map_instances=(
            state,
            resources.run_states.load(before.turn_id),
            *map(resources.records.load, keys),
            *_chosen(before),
        ),
    )
    return run.on_execute_failure_proceed_to(FailTurn, failed)


def _model_step(options: AgentSessionOptions, attempts: int) -> StepOptions:
    """Of a Step that asks a model."""
    return StepOptions(
        execute_method_timeout=options.model_call_timeout,
        heartbeat_timeout=options.heartbeat_timeout,
        execute_retry=RetryPolicy(
            initial_interval=options.model_retry_interval,
            backoff_coefficient=2.0,
            maximum_interval=options.model_retry_limit,
            maximum_attempts=attempts,
            total_duration=timedelta(days=7),
        ),
        execute_durability=StepDurability.SYNC,
    )


def _history(before: Round) -> list[AttributeMap[bytes]]:
    """All pages, if the model reads all."""
    return [resources.messages] if before.pages is None else []


def _chosen(before: Round) -> list[AttributeMapLoad]:
    """The summary and the pages behind it that count, if the model does not read all."""
    if before.pages is None:
        return []
    loads = [resources.messages.load(resources.page_key(number)) for number in before.pages]
    if before.summarized_turns:
        loads.append(resources.summaries.load(resources.page_key(before.summarized_turns)))
    if before.removed:
        loads.append(resources.removal_note.load(resources.REMOVAL_NOTE_KEY))
    return loads


def compact_history(flow: AgentSessionFlow, before: Round) -> StepMovement[bytes]:
    """To the summary of older turns; without it, when its attempts run out, to the model call."""
    from dex_agents._session.steps_compact import CompactHistory
    from dex_agents._session.steps_turn import RunModel

    options = flow.options
    run = replace(
        _model_step(options, _SUMMARY_ATTEMPTS),
        execute_load_attribute_maps=(*_history(before), resources.summary_marks),
        execute_load_attribute_map_instances=tuple(_chosen(before)),
    )
    return StepMovement.of(
        CompactHistory,
        encode(before.to_json()),
        options=run.on_execute_failure_proceed_to(RunModel, run_model_options(options, before)),
    )


def resume_turn(before: Round) -> StepMovement[bytes]:
    """To the wait for all calls of a response."""
    from dex_agents._session.steps_turn import ResumeTurn

    return StepMovement.of(ResumeTurn, encode(before.to_json()), options=pure_step())


def cancel_turn(turn_id: str) -> StepMovement[bytes]:
    """To the end of a turn whose Steps were cancelled."""
    from dex_agents._session.steps_end import CancelTurn

    return StepMovement.of(CancelTurn, encode({"turn_id": turn_id}), options=_end_open_turn())


def close_session(reason: str) -> StepMovement[bytes]:
    """To the end of a session whose Steps were cancelled."""
    from dex_agents._session.steps_end import CloseSession

    return StepMovement.of(CloseSession, encode({"reason": reason}), options=_end_open_turn())


def _end_open_turn() -> StepOptions:
    # Whole maps, as they hold the open turn's only; nothing large, so that a task can carry them.
    return StepOptions(
        execute_retry=PATIENT,
        execute_load_attribute_maps=(
            resources.turn_states,
            resources.call_notes,
            resources.unapproved,
            resources.asked,
        ),
    )


def await_tool_approval(task: CallTask) -> StepMovement[bytes]:
    """To the wait for a person."""
    from dex_agents._session.steps_tools import AwaitToolApproval

    return StepMovement.of(
        AwaitToolApproval, encode(task.to_json()), options=_wait_options(task.interrupt_id)
    )


def await_answer(task: CallTask) -> StepMovement[bytes]:
    """To the wait for what a call itself asked for."""
    from dex_agents._session.steps_waits import AwaitAnswer

    return StepMovement.of(
        AwaitAnswer, encode(task.to_json()), options=_wait_options(task.interrupt_id)
    )


def _wait_options(interrupt_id: str) -> StepOptions:
    return StepOptions(
        wait_for_retry=PATIENT,
        execute_retry=PATIENT,
        wait_for_durability=_PURE,
        # The answer and its deadline must not both be taken: the RPC needs the same lock.
        execute_lock_attributes=(resources.interrupts.lock(interrupt_id),),
        execute_load_attribute_map_instances=(resources.interrupts.load(interrupt_id),),
    )


def tool_attempts(task: CallTask) -> int:
    """How many attempts a call has."""
    return task.call.maximum_attempts or task.call.effect.maximum_attempts


def call_tool(options: AgentSessionOptions, task: CallTask) -> StepMovement[bytes]:
    """To the tool's own Step, by its effect."""
    from dex_agents._session.steps_tools import (
        CallSingleAttemptTool,
        CallTool,
        RecordToolOutcome,
    )

    effect = task.call.effect
    is_repeatable = effect in (ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE)
    timeout = (
        timedelta(seconds=task.call.timeout_s) if task.call.timeout_s else options.tool_call_timeout
    )
    retry = RetryPolicy(
        initial_interval=(
            timedelta(seconds=task.call.retry_interval_s)
            if task.call.retry_interval_s
            else options.tool_retry_interval
        ),
        backoff_coefficient=2.0,
        maximum_attempts=tool_attempts(task),
        total_duration=timedelta(days=365),
    )
    if longest := task.call.maximum_retry_interval_s:
        retry = replace(retry, maximum_interval=timedelta(seconds=longest))
    loads = (resources.tool_contexts.load(task.batch),) if task.has_context else ()
    run = StepOptions(
        execute_method_timeout=timeout,
        heartbeat_timeout=options.heartbeat_timeout,
        execute_retry=retry,
        execute_durability=StepDurability.SYNC,
        execute_load_attribute_map_instances=loads,
    )
    return StepMovement.of(
        CallTool if is_repeatable else CallSingleAttemptTool,
        encode(task.to_json()),
        options=run.on_execute_failure_proceed_to(
            RecordToolOutcome, StepOptions(execute_retry=PATIENT)
        ),
    )
