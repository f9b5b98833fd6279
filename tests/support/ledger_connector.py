"""A connector to a ledger in a file: the provider, its client and its operations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from dex_agents.connectors import (
    ConnectionReference,
    ConnectorCall,
    ConnectorOutcome,
    ConnectorResult,
    OperationKind,
    RetrySafety,
)
from dex_agents.testing import Ledger

CONNECTOR_ID = "ledger"
REFERENCE = ConnectionReference(CONNECTOR_ID, "books")
QUERY, MUTATION = OperationKind.QUERY, OperationKind.MUTATION
SAFE, UNCERTAIN = RetrySafety.SAFE, RetrySafety.UNCERTAIN
AMOUNT: dict[str, Any] = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "minimum": 1}},
    "required": ["amount"],
}


class Books:
    """The provider: it takes each Call ID of a safe transfer once, every other entry each time."""

    def __init__(self, folder: Path) -> None:
        self.arrivals = Ledger(folder / "arrivals.jsonl")
        self.entries = Ledger(folder / "entries.jsonl")
        self.answers = folder / "answers.json"

    def answer(self, operation: str) -> str:
        """How the provider answers an operation, as the test has said."""
        if not self.answers.exists():
            return "completed"
        return str(json.loads(self.answers.read_text()).get(operation, "completed"))

    def balance(self) -> int:
        """The sum of all entries."""
        return sum(entry["amount"] for entry in self.entries.entries())

    def enter(self, operation: str, call: ConnectorCall, *, is_known_by_id: bool) -> None:
        """Make an entry."""
        if is_known_by_id and self.entries.count(operation, call_id=call.call_id):
            return
        self.entries.record(operation, call_id=call.call_id, amount=call.arguments["amount"])


@dataclass(frozen=True)
class Operation:
    """One operation of the connector; a ``ConnectorOperation``."""

    books: Books
    operation_id: str
    kind: OperationKind
    run: Callable[[Books, ConnectorCall], Any]
    retry: RetrySafety = UNCERTAIN
    is_exposed: bool = True
    timeout: timedelta | None = None
    maximum_attempts: int | None = None
    connector_id: str = CONNECTOR_ID
    description: str = "Works on the books."

    @property
    def input_schema(self) -> Mapping[str, Any]:
        return AMOUNT if self.kind is MUTATION else {"type": "object"}

    async def execute(self, call: ConnectorCall) -> ConnectorResult:
        answer = self.books.answer(self.operation_id)
        if answer == "unreachable":
            raise ConnectionError("no route")
        if answer == "exits":
            raise SystemExit(3)
        await call.dispatch()
        self.books.arrivals.record(
            self.operation_id,
            call_id=call.call_id,
            attempt=call.attempt,
            may_have_left=call.may_have_left,
            connection=call.connection.name,
            **call.arguments,
        )
        if answer == "broken":
            raise ConnectionError("lost in the middle")
        if answer == "once" and call.attempt == 1:
            return ConnectorResult(ConnectorOutcome.RETRY, message="busy", retry_after_s=1)
        if answer in ("completed", "once"):
            return ConnectorResult(ConnectorOutcome.COMPLETED, self.run(self.books, call))
        return ConnectorResult(ConnectorOutcome(answer), message=f"the ledger says {answer}")


def _balance(books: Books, call: ConnectorCall) -> Any:
    return {"balance": books.balance()}


def _transfer(books: Books, call: ConnectorCall) -> Any:
    books.enter("transfer", call, is_known_by_id=True)
    return {"call_id": call.call_id}


def _pay(books: Books, call: ConnectorCall) -> Any:
    books.enter("pay", call, is_known_by_id=False)
    return {"paid": call.arguments["amount"]}


def operations(books: Books) -> dict[str, Operation]:
    """All operations by id: a query, a safe mutation, one that is not, one nobody reviewed."""
    found = [
        Operation(books, "balance", QUERY, _balance),
        Operation(books, "transfer", MUTATION, _transfer, SAFE),
        Operation(books, "pay", MUTATION, _pay),
        Operation(books, "wipe", MUTATION, _pay, is_exposed=False),
    ]
    return {operation.operation_id: operation for operation in found}
