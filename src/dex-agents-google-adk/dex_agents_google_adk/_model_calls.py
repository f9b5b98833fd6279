"""The model calls of one ``RunModel`` attempt: which may go out, and what came back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from dex_agents._contract import ModelCallMetadata, TokenUsage
from dex_agents_google_adk._branches import are_related
from dex_agents_google_adk._open_response import AgentKey


@dataclass
class _ModelCall:
    agent_name: str
    answered: bool = False
    request: LlmRequest | None = None
    usage: TokenUsage = field(default_factory=lambda: TokenUsage(model_calls=1))
    response_model: str | None = None
    finish_reason: str | None = None


class ModelCalls:
    """Requests of this attempt and what is known of their answers.

    Args:
        so_far: Model calls of the turn before this attempt.
        maximum: ``RunConfig.max_llm_calls``; 0 or less means no limit.
    """

    def __init__(self, *, so_far: int, maximum: int) -> None:
        self._so_far = so_far
        self._maximum = maximum
        self._calls: list[_ModelCall] = []
        self._in_steps = TokenUsage()
        self._running: dict[AgentKey, _ModelCall] = {}
        self._requests: dict[AgentKey, LlmRequest] = {}
        self._branches: set[str | None] = set()
        self.summary_permit_asked = False

    def has_permit(self, branch: str | None) -> bool:
        """Whether this attempt may still ask the model in ``branch``.

        A call that may depend on another one's answer waits for the next attempt, which begins
        when that answer is stored. Only calls of branches side by side depend on nothing.
        """
        if self.summary_permit_asked:
            return False
        return not any(are_related(branch, used) for used in self._branches)

    def take_summary_permit(self) -> bool:
        """Whether ADK may now ask a model for a summary of older events.

        Whether or not it may, no agent asks its model in this attempt any more: the summary is for
        that model call, and is stored before it.
        """
        may_ask = not self._branches and not self.summary_permit_asked
        self.summary_permit_asked = True
        return may_ask

    def request_built(self, key: AgentKey, request: LlmRequest) -> None:
        """Remember the request of the model call that an agent is about to make."""
        self._requests[key] = request

    def start(self, key: AgentKey) -> None:
        """Count a request that really goes out.

        Raises:
            LlmCallsLimitExceededError: The turn has used up ``RunConfig.max_llm_calls``.
        """
        self._branches.add(key[1])
        total = self._so_far + self._in_steps.model_calls + len(self._calls) + 1
        if 0 < self._maximum < total:
            raise LlmCallsLimitExceededError(
                f"Max number of llm calls limit of `{self._maximum}` exceeded"
            )
        call = _ModelCall(key[0], request=self._requests.get(key))
        self._calls.append(call)
        self._running[key] = call

    def answered(self, key: AgentKey, response: LlmResponse) -> None:
        """Note what a complete answer says about its call; a later one of the same call replaces
        it.
        """
        call = self._running.get(key)
        if call is None or response.partial:
            return
        if response.content is not None and response.content.parts:
            call.answered = True
        if response.model_version:
            call.response_model = response.model_version
        if response.finish_reason is not None:
            call.finish_reason = finish_reason_of(response)
        if (usage := response.usage_metadata) is not None:
            call.usage = usage_of(usage)

    def ran_in_step(self, event: Event) -> None:
        """Count the model call behind an event of a tool's Step, if it is one."""
        if event.usage_metadata is not None:
            self._in_steps += usage_of(event.usage_metadata)

    def __len__(self) -> int:
        """Requests that went out."""
        return len(self._calls)

    def content_came(self, key: AgentKey) -> None:
        """The agent's model call has led to content, perhaps that of a callback."""
        if (call := self._running.get(key)) is not None:
            call.answered = True

    def has_answered(self, key: AgentKey) -> bool:
        """Whether the agent's running model call has given any content."""
        call = self._running.get(key)
        return call is not None and call.answered

    @property
    def has_silent_call(self) -> bool:
        """Whether a request was answered with no content at all."""
        return any(not call.answered for call in self._calls)

    def usage(self) -> TokenUsage:
        """Tokens and requests of this attempt, and of the tools whose results it got."""
        return sum((call.usage for call in self._calls), self._in_steps)

    def metadata(self) -> ModelCallMetadata:
        """What is known about the model call, as the spec's tracing table says."""
        models = {call.request.model if call.request else None for call in self._calls}
        request_model = models.pop() if len(models) == 1 else None
        agent_names = tuple(call.agent_name for call in self._calls)
        if len(self._calls) != 1:
            return ModelCallMetadata(request_model=request_model, agent_names=agent_names)
        call = self._calls[0]
        return ModelCallMetadata(
            request_model=request_model,
            response_model=call.response_model,
            finish_reasons=(call.finish_reason,) if call.finish_reason else (),
            agent_names=agent_names,
        )

    def tools_of(self, key: AgentKey) -> dict[str, BaseTool]:
        """The tools that the agent's last request offered."""
        request = self._requests.get(key)
        return request.tools_dict if request is not None else {}

    def give_up(self, is_given_up: Callable[[str | None], bool]) -> None:
        """Nobody waits for answers in these branches any more."""
        for (_, branch), call in self._running.items():
            call.answered |= is_given_up(branch)


def finish_reason_of(response: LlmResponse) -> str:
    """How a complete answer ended, as ADK's telemetry writes it, or empty."""
    reason = response.finish_reason
    return "" if reason is None else str(getattr(reason, "value", reason)).lower()


def usage_of(usage: types.GenerateContentResponseUsageMetadata) -> TokenUsage:
    """Tokens of one answer, as a request."""
    return TokenUsage(
        input_tokens=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        output_tokens=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
        model_calls=1,
    )
