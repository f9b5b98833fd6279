"""Which failures of a model call may pass and which end the turn."""

from __future__ import annotations

import asyncio
import email.utils
import math
import re
import time
from typing import Any

from google.auth import exceptions as google_auth_errors
from google.genai import errors as genai_errors

from dex_agents._errors import AgentTurnError, ModelCallError

_PASSING_STATUS = frozenset({408, 409, 425, 429})
PASSING_CODES = frozenset(
    {
        "FINISH_REASON_UNSPECIFIED",
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "MODEL_RETURNED_NO_CONTENT",
        "OTHER",
        "TOO_MANY_TOOL_CALLS",
        "UNEXPECTED_TOOL_CALL",
    }
)
_TRANSPORT_MODULES = ("httpx", "httpx2", "httpcore", "aiohttp", "openai", "anthropic", "litellm")
_TRANSPORT_NAMES = ("Timeout", "Connection", "Transport", "Network", "Protocol", "Payload", "Read")
_CLIENT_MODULES = ("google", "openai", "anthropic", "litellm")
# Clients say so in their own words, LiteLLM as a status 500 for OpenAI's "Missing credentials".
_NO_KEY = re.compile(
    r"\b(no|missing)\b[^.]{0,40}\b(api[ _]key|credentials|key inputs)\b", re.IGNORECASE
)
_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
"""Headers of OpenAI and Azure, finer than ``retry-after`` beside them."""
_DELAY = re.compile(r"^(\d+(?:\.\d+)?)s$")


def classify(error: BaseException) -> AgentTurnError | ModelCallError | None:
    """The error to raise for an exception of a model call; ``None`` leaves it to the session's
    policy.
    """
    status = _status_of(error)
    text = f"{type(error).__name__}: {error}".strip()
    if _is_key_missing(error, status):
        return AgentTurnError(
            "the Worker has no API key or credentials for the model; set what the model's client "
            f"names in the Worker's environment, then send the message again ({text})"
        )
    if status is None:
        if isinstance(error, (asyncio.TimeoutError, ConnectionError)) or _is_transport(error):
            return ModelCallError(f"the model could not be reached: {text}")
        return None
    if status in _PASSING_STATUS or status >= 500:
        return ModelCallError(
            f"the model call failed with status {status}: {text}", retry_after_s=_retry_after(error)
        )
    if 400 <= status < 500:
        return AgentTurnError(f"the model refused the request with status {status}: {text}")
    return None


def is_unreachable(error: BaseException) -> bool:
    """Whether it is one of a network, a file or another service."""
    return isinstance(error, (OSError, asyncio.TimeoutError)) or _is_transport(error)


def classify_answer(code: str, message: str | None) -> AgentTurnError | ModelCallError:
    """The error to raise for an answer that holds an error code instead of content."""
    code = str(getattr(code, "value", code))  # ADK puts the client library's enums here, too
    text = f"{code}: {message}" if message else code
    if code in PASSING_CODES:
        return ModelCallError(f"the model gave no usable answer ({text})")
    return AgentTurnError(f"the model gave no answer ({text})")


def _status_of(error: BaseException) -> int | None:
    # google-genai calls it code, the OpenAI, Anthropic and LiteLLM clients status_code.
    value: Any
    if isinstance(error, genai_errors.APIError):
        value = error.code
    else:
        value = getattr(error, "status_code", None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_key_missing(error: BaseException, status: int | None) -> bool:
    if isinstance(error, google_auth_errors.DefaultCredentialsError):
        return True
    trace, module = error.__traceback__, type(error).__module__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return (
        status in (None, 401, 500)
        and module.partition(".")[0] in _CLIENT_MODULES
        and _NO_KEY.search(str(error)) is not None
    )


def _is_transport(error: BaseException) -> bool:
    return any(
        kind.__module__.partition(".")[0] in _TRANSPORT_MODULES
        and any(name in kind.__name__ for name in _TRANSPORT_NAMES)
        for kind in type(error).__mro__
    )


def _retry_after(error: BaseException) -> float | None:
    # LiteLLM makes up a response of its own, and keeps the provider's headers apart.
    given: Any
    for given in (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    ):
        if not hasattr(given, "items"):
            continue
        headers = {str(name).lower(): str(value) for name, value in given.items()}
        for name in _MILLISECONDS:
            if (milliseconds := _number(headers.get(name))) is not None:
                return milliseconds / 1000
        if (seconds := _seconds(headers.get("retry-after"))) is not None:
            return seconds
    return _retry_info(getattr(error, "details", None))


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def _seconds(value: str | None) -> float | None:
    if value is None:
        return None
    if (number := _number(value)) is not None:
        return number
    try:
        moment = email.utils.parsedate_to_datetime(value)
        return max(0.0, moment.timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


def _retry_info(details: Any) -> float | None:
    """The delay of a ``google.rpc.RetryInfo`` in an error body."""
    body = details.get("error", details) if isinstance(details, dict) else None
    for item in (body.get("details") if isinstance(body, dict) else None) or []:
        delay = item.get("retryDelay") if isinstance(item, dict) else None
        if isinstance(delay, str) and (found := _DELAY.match(delay)):
            return float(found.group(1))
    return None
