"""ADK's long form of telemetry is made while somebody listens, and only then."""

from __future__ import annotations

import pytest
from google.adk.agents.run_config import RunConfig
from google.adk.telemetry.context import TelemetryConfig
from opentelemetry import _logs, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.trace import TracerProvider

from dex_agents_google_adk._telemetry import for_listeners


def is_long(run_config: RunConfig) -> bool:
    return (run_config.telemetry or TelemetryConfig()).should_use_experimental_genai_semconv


def test_nobody_listens() -> None:
    given = RunConfig(max_llm_calls=7)
    used = for_listeners(given)
    assert is_long(given)
    assert not is_long(used)
    assert used.model_copy(update={"telemetry": None}) == given


def test_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    given = RunConfig()
    with monkeypatch.context() as patch:
        patch.setattr(trace, "get_tracer_provider", TracerProvider)
        assert for_listeners(given) is given
    with monkeypatch.context() as patch:
        patch.setattr(_logs, "get_logger_provider", LoggerProvider)
        assert for_listeners(given) is given


def test_what_the_application_says_goes_first() -> None:
    given = RunConfig(telemetry=TelemetryConfig(genai_semconv_stability_opt_in="experimental"))
    assert for_listeners(given) is given
