"""What the log says of a failed attempt of a call: one line instead of the SDK's trace."""

from __future__ import annotations

import logging

from dex import AsyncContext, RetryAfterError

from dex_agents._session.failures import AttemptError

_LOGGER = logging.getLogger("dex_agents")
_SDK_LOGGERS = ("dex._pull_worker", "dex._async_worker_service")


def tell_failed_attempt(
    context: AsyncContext,
    turn_id: str,
    what: str,
    attempts: int,
    failure: Exception,
    error: BaseException,
    *,
    is_traced: bool = False,
) -> None:
    """One warning.

    Args:
        what: What was attempted.
        attempts: How many it has.
        failure: What the Step raises.
        error: What the runner raised.
        is_traced: Whether the trace of that comes with it, as it always does at ``DEBUG``.
    """
    _LOGGER.warning(
        "attempt %d of %d of %s of turn %s of session %s failed: %s",
        context.attempt,
        attempts,
        what,
        turn_id,
        context.flow_id,
        failure,
        exc_info=error if is_traced or _LOGGER.isEnabledFor(logging.DEBUG) else None,
    )


class _ToldFilter(logging.Filter):
    """Drops the SDK's trace of a failure that has its line; it shows only where we raised it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RetryAfterError):
            error = error.cause
        return not (isinstance(error, AttemptError) and error.is_told)


_TOLD = _ToldFilter()


def silence_told_failures() -> None:
    """Let the SDK log no trace of failed calls of models and tools. All else it logs as ever."""
    # Once, however often it is added.
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addFilter(_TOLD)
