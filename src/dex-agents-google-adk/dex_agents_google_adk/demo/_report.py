"""What the demo prints at its end, and the invariants it checks."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from dex_agents import AgentSessionClient, AgentSnapshot
from dex_agents.testing import read_step_history
from dex_agents_google_adk.demo._provider import PaymentProvider


async def print_report(
    console: Console,
    sessions: AgentSessionClient,
    address: str,
    session_id: str,
    provider: PaymentProvider,
) -> None:
    """Print the Step history and what the payment provider saw."""
    steps = Table(title="Steps of the session", title_justify="left")
    for column in ("Step", "method", "attempts", "duration", "outcome"):
        steps.add_column(column, justify="right" if column in ("attempts", "duration") else "left")
    for row in await read_step_history(address, session_id):
        steps.add_row(
            row.step_execution_id,
            "waits" if row.method == "wait_for" else "runs",
            str(row.attempts),
            f"{row.duration_s * 1000:,.0f} ms",
            row.outcome,
        )
    console.print(steps)
    ledger = Table(title="What the payment provider saw", title_justify="left")
    for column in ("event", "order", "key", "Worker"):
        ledger.add_column(column)
    for entry in provider.entries():
        ledger.add_row(entry["event"], entry.get("order_id", ""), entry["key"], str(entry["pid"]))
    console.print(ledger)


def broken_invariants(snapshot: AgentSnapshot, provider: PaymentProvider) -> list[str]:
    """What must hold after any demo and does not."""
    broken = []
    for key, count in Counter(refund.key for refund in provider.refunds()).items():
        if count > 1:
            broken.append(f"{count} refunds under the key {key}")
    for order, count in Counter(refund.order_id for refund in provider.refunds()).items():
        if count > 1:
            broken.append(f"order {order} was refunded {count} times")
    asked = Counter(entry["key"] for entry in provider.entries() if entry["event"] == "asked")
    broken += [f"the refund {key} was asked for {n} times" for key, n in asked.items() if n > 3]
    if snapshot.status != "idle":
        broken.append(f"the session is {snapshot.status}, not idle")
    if snapshot.last_turn is None:
        broken.append("no turn has ended")
    elif snapshot.last_turn.error:
        broken.append(f"the last turn failed: {snapshot.last_turn.error}")
    return broken
