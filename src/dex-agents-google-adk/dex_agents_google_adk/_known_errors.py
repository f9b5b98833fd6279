"""Which failures of an ADK run the turn reports in words, and no trace of ADK for those.

ADK logs each failure of an agent twice, with some hundred lines of its own calls. What a model's
client or we said is in the turn's error, and in one line of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from google.adk.agents.invocation_context import LlmCallsLimitExceededError

from dex_agents._errors import AgentError, AgentTurnError
from dex_agents_google_adk._attempt import Attempt, current_attempt
from dex_agents_google_adk._model_errors import classify, is_unreachable

_ADK_LOGGERS = ("google_adk.google.adk.runners", "google_adk.google.adk.workflow._node_runner")


def known_error(attempt: Attempt, error: BaseException) -> BaseException | None:
    """What to raise for an exception of an attempt's run; ``None`` if nothing is known of it."""
    # ADK wraps what a plugin raises, so the error may be a cause.
    for cause in _causes(error):
        if isinstance(cause, AgentError) or _holds(attempt.callback_errors, cause):
            return cause
        if isinstance(cause, LlmCallsLimitExceededError):
            return AgentTurnError(f"the turn made too many model calls: {cause}")
        if _holds(attempt.model_errors, cause):
            return classify(cause)
    return None


def may_pass(attempt: Attempt, error: BaseException) -> bool:
    """Whether an exception came from a model, or from what could not be reached: another attempt may
    not meet it.
    """
    return any(
        _holds(attempt.model_errors, cause) or is_unreachable(cause) for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _holds(errors: list[BaseException], wanted: BaseException) -> bool:
    return any(error is wanted for error in errors)


class _ReportedFilter(logging.Filter):
    """Drops what ADK logs of an attempt's failure that the turn reports.

    Of anything else, such as a bug in a callback, one trace is left: the first in the first attempt.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        attempt = current_attempt()
        error = record.exc_info[1] if record.exc_info else None
        if attempt is None or error is None:
            return True
        if isinstance(known_error(attempt, error), AgentError):
            return False
        causes = list(_causes(error))
        if any(_holds([*attempt.model_errors, *attempt.traced_errors], cause) for cause in causes):
            return False
        attempt.traced_errors += causes
        return attempt.number == 1


class _UnmadeClientFilter(logging.Filter):
    """Drops what is left of a Gemini client without a key.

    google-genai closes a client that is freed, also one whose constructor has failed, and then misses
    what that would have set.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not (isinstance(error, AttributeError) and error.name == "_async_httpx_client")


_REPORTED = _ReportedFilter()
_UNMADE_CLIENT = _UnmadeClientFilter()


def silence_reported_errors() -> None:
    """Let ADK log no trace of what our turns report. Its own runs log as ever."""
    # Once, however often they are added.
    for name in _ADK_LOGGERS:
        logging.getLogger(name).addFilter(_REPORTED)
    logging.getLogger("asyncio").addFilter(_UNMADE_CLIENT)
