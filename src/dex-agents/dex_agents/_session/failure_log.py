"""What the log says of a failed attempt of a model call: one line instead of the SDK's trace."""

from __future__ import annotations

import logging

from dex import AsyncContext, RetryAfterError

from dex_agents._session.failures import ModelStepError

_LOGGER = logging.getLogger("dex_agents")
_SDK_LOGGERS = ("dex._pull_worker", "dex._async_worker_service")


def tell_failed_attempt(
    context: AsyncContext, turn_id: str, attempts: int, failure: Exception, error: BaseException
) -> None:
    """One warning; whoever looks at ``DEBUG`` gets the trace of what the runner raised with it.

    Args:
        attempts: How many the call has.
        failure: What the Step raises.
        error: What the runner raised.
    """
    _LOGGER.warning(
        "attempt %d of %d of a model call of turn %s of session %s failed: %s",
        context.attempt,
        attempts,
        turn_id,
        context.flow_id,
        failure,
        exc_info=error if _LOGGER.isEnabledFor(logging.DEBUG) else None,
    )


class _ToldFilter(logging.Filter):
    """Drops the SDK's trace of a failure that has its line; it shows only where we raised it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RetryAfterError):
            error = error.cause
        return not (isinstance(error, ModelStepError) and error.is_told)


_TOLD = _ToldFilter()


def silence_told_failures() -> None:
    """Let the SDK log no trace of failed model calls. All else it logs as ever."""
    # Once, however often it is added.
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addFilter(_TOLD)
