"""Helpers for tests of sessions: an engine and Workers to kill, a ledger, Step history."""

from __future__ import annotations

from dex_agents.testing._client import session_client
from dex_agents.testing._compare import CrashReport, CrashRow
from dex_agents.testing._engine import PrivateEngine, private_engine
from dex_agents.testing._explore import explore_crashes
from dex_agents.testing._failpoints import failpoint_env, is_failpoint_reached
from dex_agents.testing._history import StepRow, read_step_history, read_step_shape, step_shape
from dex_agents.testing._ledger import Ledger
from dex_agents.testing._script import (
    Approve,
    PlayedSession,
    Reject,
    Reply,
    UserAnswer,
    approve_all,
    play_session,
)
from dex_agents.testing._worker_process import WorkerProcess

__all__ = [
    "CrashReport",
    "CrashRow",
    "explore_crashes",
    "Approve",
    "PlayedSession",
    "Reject",
    "Reply",
    "UserAnswer",
    "approve_all",
    "play_session",
    "Ledger",
    "PrivateEngine",
    "StepRow",
    "WorkerProcess",
    "failpoint_env",
    "is_failpoint_reached",
    "private_engine",
    "read_step_history",
    "read_step_shape",
    "session_client",
    "step_shape",
]
