"""A model that needs no key: it plays the support agent's part by looking at the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types


class ScriptedSupportModel(BaseLlm):
    """Looks up the orders, asks for the refund of the last one, then reports."""

    model: str = "scripted-support-model"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer by what the request holds; streams its words when asked to."""
        text, call = _next_move(llm_request)
        if stream:
            for word in text.split(" "):
                await asyncio.sleep(0.03)
                yield LlmResponse(
                    content=types.Content(role="model", parts=[types.Part(text=word + " ")]),
                    partial=True,
                )
        parts = [types.Part(text=text)]
        if call is not None:
            parts.append(types.Part(function_call=call))
        yield LlmResponse(
            content=types.Content(role="model", parts=parts),
            finish_reason=types.FinishReason.STOP,
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=120, candidates_token_count=len(text.split())
            ),
        )


def _next_move(request: LlmRequest) -> tuple[str, types.FunctionCall | None]:
    last = request.contents[-1] if request.contents else None
    parts = (last.parts or []) if last is not None else []
    answer = next((part.function_response for part in parts if part.function_response), None)
    if answer is None:
        return (
            "Let me look at your orders.",
            types.FunctionCall(name="search_orders", args={"customer_id": "9"}),
        )
    if answer.name == "search_orders":
        return (
            "Your last order is number 7. I will ask for its refund.",
            types.FunctionCall(name="refund_order", args={"order_id": "7"}),
        )
    response = answer.response or {}
    if "error" in response:
        return f"The refund did not go through: {response['error']}", None
    return f"Done: {response.get('result', response)}.", None
