"""The support agent of the README, with tools that leave traces outside the process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.tools.tool_context import ToolContext

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents_google_adk import adk_agent_session_flow, idempotency_key_for_tool_call
from dex_agents_google_adk.demo._model import scripted_support_model
from dex_agents_google_adk.demo._provider import PaymentProvider

FLOW_TYPE = "SupportAgent"
GEMINI_MODEL = "gemini-2.5-flash"
ANSWER_DELAY_S = 3.0
"""How long the provider's answer travels; the Worker is killed in that time."""


def uses_gemini() -> bool:
    """Whether a Gemini key is set."""
    return bool(os.environ.get("GOOGLE_API_KEY"))


def provider_file(data_dir: Path) -> Path:
    """The payment provider's file."""
    return data_dir / "payments.jsonl"


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The Flow that both the Worker and the client process build."""
    provider = PaymentProvider(provider_file(data_dir))

    def search_orders(customer_id: str) -> list[dict[str, str]]:
        """List a customer's orders."""
        return [{"order_id": "7", "status": "delivered", "customer_id": customer_id}]

    async def refund_order(order_id: str, tool_context: ToolContext) -> str:
        """Refund one order."""
        key = idempotency_key_for_tool_call(tool_context)
        provider.request_refund(order_id, key)
        await asyncio.sleep(ANSWER_DELAY_S)
        provider.answered(key)
        return f"order {order_id} refunded"

    def send_email(to: str, body: str) -> str:
        """Send an email to the customer."""
        return f"sent to {to}"

    model: str | BaseLlm = GEMINI_MODEL if uses_gemini() else scripted_support_model()
    tools: list[Any] = [search_orders, refund_order, send_email]
    agent = LlmAgent(
        name="support",
        model=model,
        instruction=(
            "Help customers with their orders. The customer is number 9. "
            "To refund, look up the orders first, then refund the one meant."
        ),
        tools=tools,
    )
    return adk_agent_session_flow(
        agent,
        flow_type=FLOW_TYPE,
        tool_policies={
            "search_orders": ToolPolicy(ToolEffect.READ),
            "refund_order": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
        },
    )
