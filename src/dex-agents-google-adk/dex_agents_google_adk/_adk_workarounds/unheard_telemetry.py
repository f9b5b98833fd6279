"""Do not make a log record of each content of a request that nobody gets.

Also the short form of ADK's telemetry makes one for every content of the whole history, for every
model call. While nobody listens, the function that makes them gets a request without contents; the
span itself is as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import isfunction
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.telemetry import tracing
from google.adk.telemetry.context import TelemetryConfig

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt
from dex_agents_google_adk._telemetry import is_unheard

_Span = Callable[..., AbstractContextManager[Any]]


def _guarded(span: _Span) -> _Span:
    def guarded(
        llm_request: LlmRequest,
        common_attributes: Any,
        telemetry_config: TelemetryConfig,
        log_only_common_attributes: Any = None,
    ) -> AbstractContextManager[Any]:
        if current_attempt() is not None and is_unheard(telemetry_config):
            llm_request = llm_request.model_copy(update={"contents": []})
        return span(llm_request, common_attributes, telemetry_config, log_only_common_attributes)

    return guarded


PATCHES = (
    Patch(
        (tracing,),
        "_use_native_generate_content_span",
        (
            "llm_request",
            "common_attributes",
            "telemetry_config",
            "log_only_common_attributes",
        ),
        isfunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's telemetry of model calls has changed; durable sessions make log records that nobody "
        "gets",
    )
