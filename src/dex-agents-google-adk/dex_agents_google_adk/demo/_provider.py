"""A payment provider as seen from outside the process: one append-only file that survives any kill."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Refund:
    """One refund the provider made."""

    key: str
    order_id: str


class PaymentProvider:
    """Makes one refund for each idempotency key, however often it is asked."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def request_refund(self, order_id: str, key: str) -> Refund:
        """Record that a refund was asked for, and make it unless ``key`` was seen before."""
        self._append({"event": "asked", "order_id": order_id, "key": key, "pid": os.getpid()})
        for refund in self.refunds():
            if refund.key == key:
                return refund
        self._append({"event": "refunded", "order_id": order_id, "key": key, "pid": os.getpid()})
        return Refund(key, order_id)

    def answered(self, key: str) -> None:
        """Record that the caller lived long enough to get the answer."""
        self._append({"event": "answered", "key": key, "pid": os.getpid()})

    def entries(self) -> list[dict[str, Any]]:
        """Everything in the file, oldest first."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def refunds(self) -> list[Refund]:
        """The refunds that were made."""
        return [
            Refund(entry["key"], entry["order_id"])
            for entry in self.entries()
            if entry["event"] == "refunded"
        ]

    def _append(self, entry: dict[str, Any]) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (json.dumps(entry) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
