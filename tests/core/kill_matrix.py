"""Every place at which a Worker can be killed in a turn, by the effect of the turn's tool call.

``docs/guide/kill-matrix.md`` shows what each cell leads to; ``render`` writes it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from core.crash_agent import ledger
from dex_agents import AgentSessionClient, SessionUnavailableError
from dex_agents.testing import WorkerProcess, is_failpoint_reached

_T = TypeVar("_T")
TURN_S = 60.0
NEVER = "-"

COLUMNS = {
    "read": "read",
    "idempotent write": "idempotent_write",
    "non-idempotent write": "non_idempotent_write",
    "non-idempotent write, approved": "non_idempotent_write approve",
    "unclassified, approved": "unclassified approve",
}
"""The message of the turn, whose words say what its tool call is like."""


@dataclass(frozen=True)
class Row:
    """One place, and how a Worker is killed there: failpoints by name."""

    text: str
    kills: Mapping[str, str]

    @property
    def key(self) -> str:
        """Part of the sessions' ids."""
        return "+".join(f"{name}{how}" for name, how in self.kills.items()).translate(_PLAIN)


_PLAIN = str.maketrans({"*": "x", "#": "n", "=": "-"})
ROWS = (
    Row("the Step that opens the turn, before its commit", {"message.before_commit": ""}),
    Row("the first model call, before it is made", {"model.before_call": ""}),
    Row("the first model call, before its commit", {"model.after_call": ""}),
    Row("the approval opens", {"approval.open": ""}),
    Row("the command that approves, before its commit", {"answer.before_commit": ""}),
    Row("the approval is taken in, before its commit", {"approval.before_commit": ""}),
    Row("before the tool is entered", {"tool.before_call": ""}),
    Row("the tool has returned, before its commit", {"tool.after_call": ""}),
    Row("the same in each of its attempts", {"tool.after_call": "=kill*3"}),
    Row(
        "the same, and again before the outcome's commit",
        {"tool.after_call": "=kill*3", "outcome.before_commit": ""},
    ),
    Row("the turn resumes", {"resume.before": ""}),
    Row("the second model call, before it is made", {"model.before_call": "#2"}),
    Row("the second model call, before the turn's last commit", {"model.after_call": "#2"}),
    Row("the command that sends the next message, before its commit", {"send.before_commit": ""}),
)


@dataclass(frozen=True)
class Outcome:
    """What a session shows after the kill."""

    model_calls: int
    executions: int
    record: str

    def __str__(self) -> str:
        return f"{self.executions}, {self.record.replace('_', ' ')}"


def is_reached(row: Row, message: str) -> bool:
    """Whether a turn with this message gets to the place at all."""
    needs_approval = any(name.startswith(("approval.", "answer.")) for name in row.kills)
    return "approve" in message or not needs_approval


def session_of(row: Row, column: str) -> str:
    """The session of a cell."""
    return f"{row.key}-{column.replace(' ', '_').replace(',', '')}"


async def start_worker(server_address: str, folder: Path, column: str) -> WorkerProcess:
    """A Worker for a column, killed once in each of its cells."""
    places = [
        f"{name}@{session_of(row, column)}{how}" for row in ROWS for name, how in row.kills.items()
    ]
    return await WorkerProcess.start(
        "core.crash_agent:build_flow_of_folder",
        server_address=server_address,
        data_dir=folder,
        failpoints=places,
        respawn=True,
    )


async def run_cell(
    sessions: AgentSessionClient, folder: Path, row: Row, column: str
) -> Outcome | None:
    """Two turns of a session; the Worker is killed in the first, or between them."""
    message = COLUMNS[column]
    if not is_reached(row, message):
        return None
    session_id = session_of(row, column)
    deadline = time.monotonic() + TURN_S

    async def until(call: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await call()
            except SessionUnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    await until(lambda: sessions.start_session(session_id, message))
    while True:
        snapshot = await until(
            lambda: sessions.wait_until_settled(session_id, turns_done=1, timeout_s=TURN_S)
        )
        if snapshot.turns_done:
            break
        for asked in snapshot.pending_interrupts:
            interrupt_id = asked.interrupt_id
            await until(
                functools.partial(
                    sessions.resolve_interrupt,
                    session_id,
                    interrupt_id,
                    approved=True,
                    answer_id=interrupt_id,
                )
            )
    await until(lambda: sessions.send_user_message(session_id, "read", message_id="next"))
    await sessions.wait_for_turn(session_id, 2, timeout_s=TURN_S)
    page = await sessions.list_messages(session_id)
    assert [m.text for m in page.messages if m.role == "user"] == [message, "read"]
    assert snapshot.last_turn is not None and snapshot.last_turn.error == ""
    for name, how in row.kills.items():
        place = f"{name}@{session_id}{how if how.startswith('#') else ''}"
        assert is_failpoint_reached(place, folder), f"nothing was killed at {place}"
    entries = ledger(folder)
    return Outcome(
        model_calls=entries.count("asked", session=session_id, turn="t1"),
        executions=entries.count("paid", key=f"{session_id}/t1/c"),
        record=snapshot.last_turn.final_text,
    )


def render(outcomes: Mapping[tuple[str, str], Outcome | None]) -> str:
    """The table, in Markdown."""
    head = ["A Worker is killed: ", "model calls", *COLUMNS]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in ROWS:
        cells = [outcomes[row.key, column] for column in COLUMNS]
        calls = {cell.model_calls for cell in cells if cell is not None}
        assert len(calls) == 1, f"{row.text}: model calls depend on the effect: {cells}"
        lines.append(_line([row.text, str(calls.pop()), *(str(cell or NEVER) for cell in cells)]))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.strip() for cell in cells)} |"
