"""ADK's long form of telemetry is made while somebody listens, and only then."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from google.adk.agents.run_config import RunConfig
from google.adk.telemetry import tracing
from google.adk.telemetry.context import TelemetryConfig
from opentelemetry import _logs, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.trace import TracerProvider

from adk.test_oracle_basic import READ, build
from dex_agents_google_adk import _telemetry
from dex_agents_google_adk._telemetry import for_listeners
from support.adk_oracle import compare, text


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


async def test_only_the_contents_are_left_out_and_only_while_nobody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    for name in ("user_message_body", "system_message_body", "choice_body"):
        body = getattr(tracing, name)

        def noting(*given: Any, body: Any = body, name: str = name, **more: Any) -> Any:
            made.append(name)
            return body(*given, **more)

        monkeypatch.setattr(tracing, name, noting)
    await compare(build, [text("done")], ["hello"], **READ)
    assert set(made) == {"choice_body", "system_message_body"}
    # A provider that is set after the run began.
    monkeypatch.setattr(_telemetry, "_somebody_listens", itertools.cycle([False, True]).__next__)
    await compare(build, [text("done")], ["hello"], **READ)
    assert set(made) == {"choice_body", "system_message_body", "user_message_body"}
