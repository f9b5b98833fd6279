"""Failures of a runner in a form that any SDK can carry, and what a failed tool Step means.

The SDK cannot report an exception whose text it cannot encode, and then a Step may run twice.
So nothing that a tool or a model raised leaves a Step as it is.
"""

from __future__ import annotations

import math

from dex import RetryAfterError, retry_after

from dex_agents._contract import ToolCallRecord, ToolCallStatus
from dex_agents._effects import ToolEffect
from dex_agents._errors import (
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    AgentTurnError,
    ModelCallError,
)
from dex_agents._session.records import CallTask

MAX_DETAIL_BYTES = 900
MAX_MODEL_TEXT_BYTES = 64 * 1024
_LONGEST_RETRY_AFTER_S = 24 * 3600
_MEMBERS_SHOWN = 3

NEVER_DELIVERED = frozenset({"NO_WORKER_AVAILABLE", "UNKNOWN_NAME", "TASK_TOO_LARGE"})
"""Words of an engine for an execution of which no attempt ever reached a Worker."""
_NOT_STARTED_TYPE = "ToolNotStartedError"

RUNNER_FAILURES = (Exception, SystemExit, BaseExceptionGroup)
"""What a runner may raise that ends its attempt and nothing else.

``SystemExit`` is here because it would otherwise end the loop, and with it every other session of
the process. A cancellation is not: it belongs to the Step.
"""


class AttemptError(Exception):
    """An attempt of a Step failed; the text is of who failed.

    Attributes:
        is_told: Whether the log has a line of it.
    """

    is_told = False


class ToolStepError(AttemptError):
    """An attempt of a tool failed; the text is the tool's."""


class ModelStepError(AttemptError):
    """An attempt of ``RunModel`` failed; the text is the runner's."""


def clean_text(text: str, limit: int = MAX_DETAIL_BYTES) -> str:
    """Text that UTF-8 can encode, cut to a number of bytes."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8")
    return data[: limit - 3].decode("utf-8", "ignore") + "..."


def _text_of(error: BaseException) -> str | None:
    try:
        return str(error)
    except Exception:
        return None


def describe(error: BaseException) -> str:
    """What an exception says, whatever its ``__str__`` does."""
    if isinstance(error, RetryAfterError):
        error = error.cause
    text = _text_of(error)
    if text is None:
        text = "(its text cannot be shown)"
    if isinstance(error, BaseExceptionGroup):
        text += ": " + "; ".join(describe(member) for member in error.exceptions[:_MEMBERS_SHOWN])
    name = type(error).__name__
    return clean_text(f"{name}: {text}" if text else name)


def message_of(error: BaseException, limit: int = MAX_MODEL_TEXT_BYTES) -> str:
    """The message of an error that is meant to be read, whatever its ``__str__`` does."""
    return clean_text(_text_of(error) or type(error).__name__, limit)


def retry_delay_s(error: BaseException) -> int | None:
    """Whole seconds that an error asks to wait before a retry, if it asks."""
    asked: object = getattr(error, "retry_after_s", None)
    if isinstance(error, RetryAfterError):
        asked = error.after_seconds
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        return None
    if not math.isfinite(asked) or asked <= 0:
        return None
    return min(math.ceil(asked), _LONGEST_RETRY_AFTER_S)


def tool_failure(error: BaseException, *, is_told: bool = False) -> Exception:
    """What a tool Step raises for a tool's exception.

    Args:
        is_told: Whether the log has a line of it.
    """
    own = ToolStepError(describe(error))
    own.is_told = is_told
    return _carried(own, error)


def model_failure(error: BaseException, *, is_told: bool = False) -> Exception:
    """What a Step raises for a runner's exception that is not the tool's.

    Args:
        is_told: Whether the log has a line of it.
    """
    if isinstance(error, ModelCallError):
        own = ModelStepError(message_of(error, MAX_DETAIL_BYTES))
    else:
        own = ModelStepError(describe(error))
    own.is_told = is_told
    return _carried(own, error)


def _carried(own: Exception, cause: BaseException) -> Exception:
    delay = retry_delay_s(cause)
    return own if delay is None else retry_after(delay, own)


def turn_error_text(error: AgentTurnError) -> str:
    """Why a turn failed at once."""
    return message_of(error, MAX_DETAIL_BYTES)


def record_after_failure(task: CallTask, error_type: str, detail: str) -> ToolCallRecord:
    """The record of a call whose tool Step has no attempt left.

    A word that is not known to mean "never ran" means that the tool may have run.
    """
    detail = clean_text(detail)
    if error_type in NEVER_DELIVERED or error_type.split(".")[-1] == _NOT_STARTED_TYPE:
        return not_run_record(task, detail)
    return unknown_record(task, detail)


def unknown_record(task: CallTask, why: str, attempt: int = 0) -> ToolCallRecord:
    """The record of a call whose tool may have run; for a read it makes no difference."""
    call = task.call
    status = (
        ToolCallStatus.FAILED if call.effect is ToolEffect.READ else ToolCallStatus.OUTCOME_UNKNOWN
    )
    return ToolCallRecord(call.call_id, call.tool_name, status, error=why, attempt=attempt)


def not_run_record(task: CallTask, why: str, attempt: int = 0) -> ToolCallRecord:
    """The record of a call whose tool provably never ran."""
    return ToolCallRecord(
        task.call.call_id,
        task.call.tool_name,
        ToolCallStatus.FAILED,
        error=f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: {why}",
        not_run=True,
        attempt=attempt,
    )
