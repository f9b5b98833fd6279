"""Agents for the crash explorer: a sound one, and some with a planted bug each.

Their runner answers from the request alone and needs no framework, so that a run is short.
"""

from __future__ import annotations

from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from dex_agents import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    AgentMessage,
    AgentSessionFlow,
    AgentSessionOptions,
    DeferredToolExecution,
    MessageRole,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    TokenUsage,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionResult,
    TracingOptions,
    TurnCompleted,
)
from dex_agents.testing import Ledger

SPANS_FILE = "spans.jsonl"
ONE_CALL = TokenUsage(3, 2, 1)


class _Runner:
    """Looks something up and pays for it, then says what came of it."""

    pay_effect = ToolEffect.NON_IDEMPOTENT_WRITE
    pay_needs_approval = True

    def __init__(self, data_dir: Path) -> None:
        self.ledger = Ledger(data_dir / "ledger.jsonl")

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        """First both calls, then the answer."""
        text = request.user_message["text"]
        outputs = [str(record.output or record.status) for record in request.records]
        self.ledger.record("asked", text=self.question(text), outputs=outputs)
        if request.run_state is None:
            look = RequestedToolCall("c1", "look", {"for": text}, ToolEffect.READ, False)
            pay = RequestedToolCall(
                "c2", "pay", {"for": text}, self.pay_effect, self.pay_needs_approval
            )
            return ToolCallsRequested([look, pay], {}, usage=ONE_CALL)
        unknown = [record for record in request.records if record.status == "outcome_unknown"]
        said = OUTCOME_UNKNOWN_TOOL_RESULT if unknown else ", ".join(outputs)
        return TurnCompleted(
            [
                AgentMessage(MessageRole.USER, request.user_message, text),
                AgentMessage(MessageRole.ASSISTANT, {"text": said}, said),
            ],
            said,
            ONE_CALL,
        )

    def question(self, text: str) -> str:
        """What the model is asked."""
        return text

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Note the execution."""
        self.ledger.record(call.tool_name, order=call.arguments["for"], key=call.idempotency_key)
        return ToolExecutionResult(f"{call.tool_name} {call.arguments['for']}")

    def build_user_message(self, text: str) -> AgentMessage:
        """A message of the user."""
        return AgentMessage(MessageRole.USER, {"text": text}, text)


class _PaysTwice(_Runner):
    """Says of a payment that it only reads."""

    pay_effect = ToolEffect.READ
    pay_needs_approval = False


class _Forgets(_Runner):
    """Keeps in memory what a session must not lose with its process."""

    pay_needs_approval = False
    seen = 0

    def question(self, text: str) -> str:
        """Another one when the process is new."""
        type(self).seen += 1
        return f"{text}, my {type(self).seen}. model call" if self.seen > 1 else text


def sound(data_dir: Path) -> AgentSessionFlow:
    """Nothing is wrong with it."""
    return AgentSessionFlow(_Runner(data_dir), flow_type="Explored")


def traced(data_dir: Path) -> AgentSessionFlow:
    """The same, with its spans as a JSON text a line in a file."""
    file = (data_dir / SPANS_FILE).open("a", buffering=1)
    exporter = ConsoleSpanExporter(out=file, formatter=lambda span: f"{span.to_json(None)}\n")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    options = AgentSessionOptions(tracing=TracingOptions(provider))
    return AgentSessionFlow(_Runner(data_dir), flow_type="Explored", options=options)


def pays_twice(data_dir: Path) -> AgentSessionFlow:
    """See :class:`_PaysTwice`."""
    return AgentSessionFlow(_PaysTwice(data_dir), flow_type="Explored")


def forgets(data_dir: Path) -> AgentSessionFlow:
    """See :class:`_Forgets`."""
    return AgentSessionFlow(_Forgets(data_dir), flow_type="Explored")
