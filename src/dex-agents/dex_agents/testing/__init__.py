"""Helpers for tests of agent sessions: a private engine, Worker processes that may be killed, a ledger, Step history."""

from __future__ import annotations

from dex_agents.testing._engine import PrivateEngine, private_engine
from dex_agents.testing._history import StepRow, read_step_history, step_shape
from dex_agents.testing._ledger import Ledger
from dex_agents.testing._worker_process import WorkerProcess

__all__ = [
    "Ledger",
    "PrivateEngine",
    "StepRow",
    "WorkerProcess",
    "private_engine",
    "read_step_history",
    "step_shape",
]
