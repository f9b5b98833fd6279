"""The kill matrix: a Worker is killed at every durable boundary of a turn, for every effect.

``UPDATE_KILL_MATRIX=1`` writes what came out into the guide instead of comparing.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from core.crash_agent import build_flow_of_folder
from core.kill_matrix import COLUMNS, ROWS, Outcome, render, run_cell, start_worker
from dex_agents.testing import private_engine, session_client

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "kill-matrix.md"
_TABLE = re.compile(r"^\| A Worker is killed.*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


async def _column(
    server_address: str, folder: Path, column: str
) -> dict[tuple[str, str], Outcome | None]:
    folder.mkdir()
    flow = build_flow_of_folder(folder)
    async with session_client(flow, server_address=server_address) as sessions:
        worker = await start_worker(server_address, folder, column)
        try:
            # One after the other: a kill must hit no other cell.
            return {
                (row.key, column): await run_cell(sessions, folder, row, column) for row in ROWS
            }
        finally:
            worker.kill()
            await worker.wait()


async def test_what_runs_how_often_is_as_the_guide_says(tmp_path: Path) -> None:
    async with private_engine(tmp_path / "engine.db") as engine:
        columns = await asyncio.gather(
            *(
                _column(engine.address, tmp_path / f"c{number}", column)
                for number, column in enumerate(COLUMNS)
            )
        )
    outcomes = {cell: outcome for column in columns for cell, outcome in column.items()}
    for (_, column), outcome in outcomes.items():
        if outcome is not None:
            most = 3 if column in ("read", "idempotent write") else 1
            assert outcome.executions <= most, f"{column}: {outcome}"
            assert outcome.model_calls <= 3, f"{column}: {outcome}"
            # What did not run, or may have run without a trace, is never called done.
            assert outcome.record != "succeeded" or outcome.executions, f"{column}: {outcome}"
    table = render(outcomes).rstrip()
    text = GUIDE.read_text()
    if os.environ.get("UPDATE_KILL_MATRIX"):
        GUIDE.write_text(_TABLE.sub(lambda _: table, text))
        return
    shown = _TABLE.search(text)
    assert shown is not None and shown.group(0) == table
