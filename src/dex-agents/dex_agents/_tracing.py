"""OpenTelemetry spans of sessions, by the GenAI semantic conventions; needs the extra ``otel``.

One trace is one turn: ``invoke_agent`` for the turn, ``chat`` for each attempt of a ``RunModel`` and
of a summary, ``execute_tool`` for each attempt of a tool Step. Trace and span ids are derived from session, turn,
Step execution and attempt, so that Workers in any number of processes, before and after a crash,
write to the same trace, and what is written twice has the same id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dex_agents._arguments import check_fields, shown
from dex_agents._contract import Json, ModelCallMetadata, TokenUsage

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

_LOGGER = logging.getLogger("dex_agents")
_SCOPE = "dex_agents"
_next_ids: ContextVar[tuple[int, int] | None] = ContextVar("dex_agents_span_ids", default=None)


@dataclass(frozen=True)
class TracingOptions:
    """Turns tracing on.

    Attributes:
        tracer_provider: Where spans go; by default OpenTelemetry's global provider.
        record_content: Whether spans carry messages, arguments and results. They may hold what
            users said, so this is off unless you ask for it.
        provider_name: Who serves the models, by a name of the conventions such as ``"gcp.gemini"``
            or ``"openai"``; for an agent framework that does not tell it. Empty says nothing.

    Raises:
        ImportError: ``opentelemetry-api`` is not installed.
        TypeError: A value has the wrong type.
    """

    tracer_provider: TracerProvider | None = None
    record_content: bool = False
    provider_name: str = ""

    def __post_init__(self) -> None:
        try:
            import opentelemetry.trace  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "tracing needs opentelemetry-api: install dex-agents[otel]"
            ) from error
        if self.tracer_provider is not None and not hasattr(self.tracer_provider, "get_tracer"):
            raise TypeError(
                f"TracingOptions.tracer_provider must be a TracerProvider, got "
                f"{shown(self.tracer_provider)}"
            )
        if not isinstance(self.record_content, bool):
            raise TypeError(
                f"TracingOptions.record_content must be True or False, got {shown(self.record_content)}"
            )
        check_fields(self, {"provider_name": str})


@dataclass(frozen=True)
class SpanPlace:
    """Which attempt of which Step of which turn a span belongs to."""

    session_id: str
    turn_id: str
    step_execution_id: str = ""
    attempt: int = 0

    @property
    def trace_id(self) -> int:
        """The id of the turn's trace."""
        return _hash(16, "trace", self.session_id, self.turn_id)

    @property
    def turn_span_id(self) -> int:
        """The id of the turn's span."""
        return _hash(8, "turn", self.session_id, self.turn_id)

    @property
    def span_id(self) -> int:
        """The id of the attempt's span."""
        return _hash(
            8, "step", self.session_id, self.turn_id, self.step_execution_id, str(self.attempt)
        )

    def attributes(self) -> dict[str, Any]:
        """What every span carries."""
        found: dict[str, Any] = {
            "gen_ai.conversation.id": self.session_id,
            "dex.session.id": self.session_id,
            "dex.turn.id": self.turn_id,
        }
        if self.step_execution_id:
            found["dex.step_execution.id"] = self.step_execution_id
            found["dex.attempt"] = self.attempt
        return found


def _text(value: Json) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        return f"({type(value).__name__})"
    # A lone surrogate cannot be exported; in JSON its escape says the same.
    return text.encode("utf-8", "backslashreplace").decode()


def _hash(size: int, *parts: str) -> int:
    data = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:size], "big") or 1


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """What the application's sampler and span processors raise must change no turn."""
    try:
        yield
    except Exception:
        _LOGGER.warning("a span is incomplete or lost: tracing failed", exc_info=True)


class OpenSpan:
    """A span that is running, and the current one of its task until it ends."""

    def __init__(self, span: Span | None, content: bool) -> None:
        self._span = span
        self._content = content
        self._token: Any = None
        if span is not None:
            from opentelemetry import context, trace

            self._token = context.attach(trace.set_span_in_context(span))

    def describe(
        self, attributes: Mapping[str, Any], content: Mapping[str, Json] | None = None
    ) -> None:
        """Add attributes; ``content`` only if it was asked for."""
        if self._span is None:
            return
        shown = dict(attributes)
        if self._content and content:
            shown |= {key: _text(value) for key, value in content.items()}
        with _harmless():
            for key, value in shown.items():
                if value is not None and value != ():
                    self._span.set_attribute(key, value)

    def rename(self, name: str, *, is_internal: bool = False) -> None:
        """Set the name that is known only at the end."""
        if self._span is None:
            return
        from opentelemetry.trace import SpanKind

        with _harmless():
            self._span.update_name(name)
            if is_internal and hasattr(self._span, "_kind"):
                self._span._kind = SpanKind.INTERNAL

    def drop(self) -> None:
        """Forget it: nothing happened that is worth a span."""
        self._span, token = None, self._token
        if token is not None:
            from opentelemetry import context

            context.detach(token)
            self._token = None

    def end(self, error_type: str = "", message: str = "", *, end_ms: int | None = None) -> None:
        """End it, as failed if there is an error."""
        if self._span is None:
            return
        from opentelemetry import context
        from opentelemetry.trace import Status, StatusCode

        with _harmless():
            if error_type:
                self._span.set_attribute("error.type", error_type)
                self._span.set_status(
                    Status(StatusCode.ERROR, message if self._content else error_type)
                )
            self._span.end(end_ms * 1_000_000 if end_ms is not None else None)
        self._span = None
        if self._token is not None:
            context.detach(self._token)


class _Ids:
    """An id generator that gives the ids that were asked for, once."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def generate_span_id(self) -> int:
        wanted = _next_ids.get()
        return int(wanted[1] if wanted else self._usual.generate_span_id())

    def generate_trace_id(self) -> int:
        wanted = _next_ids.get()
        return int(wanted[0] if wanted else self._usual.generate_trace_id())

    def is_trace_id_random(self) -> bool:
        return True


class SessionTracer:
    """Starts the spans of one Flow's sessions; without options it starts none."""

    def __init__(self, options: TracingOptions | None, agent_name: str) -> None:
        self._content = options is not None and options.record_content
        name = options.provider_name if options is not None else ""
        self._provider = {"gen_ai.provider.name": name} if name else {}
        self._agent_name = agent_name
        self._tracer: Any = None
        self._sampler: Any = None
        if options is None:
            return
        from opentelemetry import trace

        provider = options.tracer_provider or trace.get_tracer_provider()
        self._tracer = provider.get_tracer(_SCOPE)
        self._sampler = getattr(provider, "sampler", None)
        usual = getattr(self._tracer, "id_generator", None)
        if usual is not None and not isinstance(usual, _Ids):
            self._tracer.id_generator = _Ids(usual)

    def chat(self, place: SpanPlace, *, is_compacted: bool) -> OpenSpan:
        """The span of one attempt to ask a model; ``is_compacted`` if it reads a summary."""
        attributes: dict[str, Any] = {"gen_ai.operation.name": "chat", **self._provider}
        if is_compacted:
            attributes["gen_ai.conversation.compacted"] = True
        return self._start("chat", place, place.span_id, attributes, "CLIENT")

    def tool(
        self, place: SpanPlace, name: str, call_id: str, arguments: Json, agent_name: str
    ) -> OpenSpan:
        """The span of one attempt of a tool, called by an agent with these arguments."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "function",
        }
        if agent_name:
            attributes["gen_ai.agent.name"] = agent_name
        span = self._start(f"execute_tool {name}", place, place.span_id, attributes, "INTERNAL")
        span.describe({}, {"gen_ai.tool.call.arguments": arguments})
        return span

    def turn(self, place: SpanPlace, started_ms: int) -> OpenSpan:
        """The span of a turn, started when the turn was.

        The clock of the Worker that opened the turn may be ahead; no span ends before its start.
        """
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self._agent_name,
            **self._provider,
        }
        name = f"invoke_agent {self._agent_name}"
        return self._start(
            name, place, place.turn_span_id, attributes, "INTERNAL", started_ms=started_ms
        )

    def _start(
        self,
        name: str,
        place: SpanPlace,
        span_id: int,
        attributes: Mapping[str, Any],
        kind: str,
        *,
        started_ms: int | None = None,
    ) -> OpenSpan:
        if self._tracer is None:
            return OpenSpan(None, False)
        from opentelemetry import trace

        span = None
        token = _next_ids.set((place.trace_id, span_id))
        try:
            with _harmless():
                span = self._tracer.start_span(
                    name,
                    context=self._parent_of(span_id, place),
                    kind=trace.SpanKind[kind],
                    attributes={**place.attributes(), **attributes},
                    start_time=min(started_ms * 1_000_000, time.time_ns()) if started_ms else None,
                )
        finally:
            _next_ids.reset(token)
        return OpenSpan(span, self._content)

    def _parent_of(self, span_id: int, place: SpanPlace) -> Context:
        """The span of the turn; nothing for that one itself."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        if span_id == place.turn_span_id:
            return Context()
        flags = trace.TraceFlags(
            trace.TraceFlags.SAMPLED if self._is_sampled(place) else trace.TraceFlags.DEFAULT
        )
        above = trace.SpanContext(place.trace_id, place.turn_span_id, True, flags)
        return trace.set_span_in_context(trace.NonRecordingSpan(above), Context())

    def _is_sampled(self, place: SpanPlace) -> bool:
        if self._sampler is None:
            return True
        name = f"invoke_agent {self._agent_name}"
        return bool(self._sampler.should_sample(None, place.trace_id, name).decision.is_sampled())


def end_without_answer(span: OpenSpan, error_type: str, message: str = "") -> None:
    """End that of an attempt without an answer of the model, unless it has ended."""
    span.describe({"gen_ai.response.finish_reasons": ("error",)})
    span.end(error_type, message)


def describe_model_call(span: OpenSpan, metadata: ModelCallMetadata, usage: TokenUsage) -> None:
    """What an attempt learned about its model call."""
    model = metadata.request_model
    span.rename(f"chat {model}" if model else "chat", is_internal=usage.model_calls > 1)
    span.describe(
        {
            "gen_ai.request.model": model,
            "gen_ai.response.model": metadata.response_model,
            "gen_ai.response.finish_reasons": metadata.finish_reasons,
            "gen_ai.response.id": metadata.response_id,
            "gen_ai.provider.name": metadata.provider_name,
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
        }
    )
