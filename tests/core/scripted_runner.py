"""A runner without a framework: the model is a list of answers, tools are async functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dex_agents import (
    AgentMessage,
    DeferredToolExecution,
    MessageRole,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    TokenUsage,
    ToolCallRecord,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionResult,
    ToolNotStartedError,
    TurnCompleted,
)

Tool = Callable[[DeferredToolExecution], Awaitable[Any]]
ONE_CALL = TokenUsage(3, 2, 1)


@dataclass
class Call:
    """One tool call of a scripted answer."""

    tool: str
    effect: ToolEffect = ToolEffect.READ
    approval: bool = False
    call_id: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


Answer = str | Sequence[Call] | BaseException


class ScriptedRunner:
    """Answers the n-th model call of a session with the n-th entry of the script."""

    def __init__(self, script: Sequence[Answer], tools: dict[str, Tool] | None = None) -> None:
        self.script = list(script)
        self.tools = tools or {}
        self.requests: list[RunModelRequest] = []
        self.executions: list[DeferredToolExecution] = []
        self.before_answer: Callable[[RunModelRequest], Awaitable[None]] | None = None
        self.takes_steering = True
        self._step: dict[str, int] = {}

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        self.requests.append(request)
        if self.before_answer is not None:
            await self.before_answer(request)
        position = self._step.get(request.session_id, 0)
        self._step[request.session_id] = position + 1
        answer = self.script[position]
        if isinstance(answer, BaseException):
            raise answer
        items = list(request.run_state or [request.user_message])
        items += [_result(record) for record in request.records]
        took = self.takes_steering and bool(request.steering)
        items += request.steering if took else []
        if isinstance(answer, str):
            request.events.emit("text_delta", text=answer)
            items.append({"role": "assistant", "text": answer})
            return TurnCompleted(
                [_message(item) for item in items], answer, ONE_CALL, took_steering=took
            )
        calls = [
            RequestedToolCall(
                call_id=call.call_id or f"c{position}-{index}",
                tool_name=call.tool,
                arguments=call.arguments,
                effect=call.effect,
                requires_approval=call.approval,
            )
            for index, call in enumerate(answer)
        ]
        items.append({"role": "assistant", "text": "", "calls": [c.call_id for c in calls]})
        return ToolCallsRequested(calls, items, {"shared": position}, ONE_CALL, took_steering=took)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        tool = self.tools.get(call.tool_name)
        if tool is None:
            raise ToolNotStartedError(f"there is no tool {call.tool_name}")
        self.executions.append(call)
        return ToolExecutionResult(await tool(call))

    def build_user_message(self, text: str) -> AgentMessage:
        return AgentMessage(MessageRole.USER, {"role": "user", "text": text}, text)

    def count(self, tool: str) -> int:
        """How often a tool was entered."""
        return sum(call.tool_name == tool for call in self.executions)

    def records(self, position: int) -> Sequence[ToolCallRecord]:
        """The records that a model call got."""
        return self.requests[position].records


def _result(record: ToolCallRecord) -> dict[str, Any]:
    return {"role": "tool", "text": str(record.status), "call": record.call_id}


def _message(item: dict[str, Any]) -> AgentMessage:
    return AgentMessage(MessageRole(item["role"]), item, item["text"])
