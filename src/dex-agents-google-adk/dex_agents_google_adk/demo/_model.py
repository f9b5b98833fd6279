"""A model that needs no key: it plays the support agent's part by looking at the request."""

from __future__ import annotations

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents_google_adk.testing import ScriptedModel, tool_call, tool_results

_WORD_DELAY_S = 0.03


def scripted_support_model() -> ScriptedModel:
    """Looks up the orders, asks for the refund of the last one, then reports."""
    return ScriptedModel(_answer, model="scripted-support-model", word_delay_s=_WORD_DELAY_S)


def _answer(request: LlmRequest) -> LlmResponse:
    text, *calls = _next_move(request)
    return LlmResponse(
        content=types.Content(role="model", parts=[types.Part(text=text), *calls]),
        finish_reason=types.FinishReason.STOP,
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=120, candidates_token_count=len(text.split())
        ),
    )


def _next_move(request: LlmRequest) -> tuple[str] | tuple[str, types.Part]:
    results = tool_results(request)
    if not results:
        return "Let me look at your orders.", tool_call("search_orders", {"customer_id": "9"})
    result = results[0]
    if result.name == "search_orders":
        return (
            "Your last order is number 7. I will ask for its refund.",
            tool_call("refund_order", {"order_id": "7"}),
        )
    response = result.response or {}
    if "error" in response:
        return (f"The refund did not go through: {response['error']}",)
    return (f"Done: {response.get('result', response)}.",)
