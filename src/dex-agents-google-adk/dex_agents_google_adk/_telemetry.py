"""ADK's telemetry of model calls, made only while somebody listens.

ADK turns every model request, with the whole history in it, into attributes of a span and of a log
record, also when both go nowhere. For a long session that is a quarter of a turn.
"""

from __future__ import annotations

from google.adk.agents.run_config import RunConfig
from google.adk.telemetry.context import TelemetryConfig
from opentelemetry import _logs, trace
from opentelemetry._logs._internal import ProxyLoggerProvider

_SHORT = TelemetryConfig(genai_semconv_stability_opt_in="stable")
# What OpenTelemetry's API hands out until a program sets a provider of its own.
_NO_TRACES = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
_NO_LOGS = (_logs.NoOpLoggerProvider, ProxyLoggerProvider)


def for_listeners(run_config: RunConfig) -> RunConfig:
    """The configuration of a run, without the long form of telemetry that nobody would get.

    What the application says in ``RunConfig.telemetry`` goes first. A provider may be set at any
    time, so every run asks anew.
    """
    if run_config.telemetry is not None or _somebody_listens():
        return run_config
    return run_config.model_copy(update={"telemetry": _SHORT})


def is_unheard(config: TelemetryConfig) -> bool:
    """Whether a model call's telemetry is our short form, and still nobody would get it."""
    return config == _SHORT and not _somebody_listens()


def _somebody_listens() -> bool:
    has_traces = not isinstance(trace.get_tracer_provider(), _NO_TRACES)
    return has_traces or not isinstance(_logs.get_logger_provider(), _NO_LOGS)
