"""A data file with runs in every state, and how a test damages what is stored of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from dex.dexpb import dex_pb2 as pb

from dex_lite._check import check
from dex_lite._journal_sql import NUMBER_BITS
from dex_lite._machine.facts import AnyFact, decode_fact, encode_fact
from support.dex_lite_worker import FLOW
from support.frame_flow import Frames, close, frames, go, message, on_channels, step, wait, write

Facts: TypeAlias = list[AnyFact]
Edit: TypeAlias = Callable[[Facts], Facts]


async def make_file(folder: Path) -> bytes:
    """The content of the data file of an engine that stopped with Flows in many states."""
    async with frames(folder) as engine:
        await _fill(engine)
    return (folder / "engine.db").read_bytes()


async def _fill(engine: Frames) -> None:
    worker = await engine.worker(streams=1)

    await engine.start(flow_id="done")
    await (await worker.task()).execute(close("graceful", "out"))
    await engine.result("done")

    retry = pb.FlowRetryPolicy(initial_interval_seconds=3_600, maximum_attempts=3)
    await engine.start(flow_id="again", flow_start_options=pb.FlowStartOptions(retry_policy=retry))
    await (await worker.task()).execute(close("fail", "broken"))

    # W-1 waits for a timer or for two messages of c; one is there, and so are two of d.
    await engine.start("W", "waits", pb.StepOptions())
    condition = wait(
        "any",
        timer_conditions=[pb.TimerCondition(duration_seconds=3_600)] * 2,
        channel_conditions=[pb.ChannelCondition(channel_name="c", at_least=2)],
    )
    await (await worker.task()).wait_for(condition)
    await engine.publish(message("c", "1"), message("d", "1"), message("d", "2"), flow_id="waits")

    # Parent-1 waits for a SubFlow, in which a Step waits for a message.
    await engine.start("Parent", "parent", pb.StepOptions())
    sub_flow = pb.SubFlowCondition(
        sub_flow_type=FLOW, start_step_type="Child", step_options=pb.StepOptions()
    )
    await (await worker.task()).wait_for(wait(sub_flow_conditions=[sub_flow]))
    await (await worker.task()).wait_for(on_channels("c"))

    # Keep-1 has the lock that Want-1 waits for, and no Worker that knows it.
    locked = pb.StepOptions(skip_wait_for=True, execute_lock_attribute_keys=["k"])
    await engine.start(flow_id="locks")
    await (await worker.task()).execute(go(step("Keep", locked), step("Want", locked)))
    await (await worker.task()).reject("UNKNOWN_STEP")

    # What becomes of this one depends on how quickly the engine stops.
    await engine.start(flow_id="busy")
    await worker.task()

    # Nobody is left to take these.
    secret = write("secret", "s")
    secret.is_hard_delete_on_null = True
    await engine.start(
        flow_id="secret", flow_start_options=pb.FlowStartOptions(attributes=[secret])
    )
    once = pb.RetryPolicy(maximum_attempts=1)
    options = pb.StepOptions(wait_for_retry_policy=once, execute_retry_policy=once)
    await engine.start("P", "parked", options)


class DataFile:
    """A data file that a test damages."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        path.write_bytes(content)

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def run_key(self, flow_id: str, place: int = -1) -> int:
        """The number of a run of the Flow, of the newest one by default."""
        rows = self.sql("SELECT id FROM runs WHERE flow_id = ? ORDER BY id", flow_id)
        key: int = rows[place][0]
        return key

    def run_id(self, flow_id: str, place: int = -1) -> str:
        """The id of a run of the Flow."""
        key = self.run_key(flow_id, place)
        return str(self.sql("SELECT run_id FROM runs WHERE id = ?", key)[0][0])

    def named(self, flow_id: str, place: int = -1) -> str:
        """How the check names a run."""
        return f"run {self.run_id(flow_id, place)} of Flow {flow_id!r}"

    def facts(self, key: int) -> Facts:
        """Everything that is stored of a run."""
        rows = self.sql("SELECT payload FROM facts WHERE id >> ? = ? ORDER BY id", NUMBER_BITS, key)
        return [decode_fact(payload) for (payload,) in rows]

    def edit(self, edit: Edit, flow_id: str, place: int = -1) -> None:
        """Store other facts of a run."""
        key = self.run_key(flow_id, place)
        facts = edit(self.facts(key))
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM facts WHERE id >> ? = ?", (NUMBER_BITS, key))
            connection.executemany(
                "INSERT INTO facts VALUES (?, ?)",
                [
                    ((key << NUMBER_BITS) + number, encode_fact(fact))
                    for number, fact in enumerate(facts, 1)
                ],
            )

    def faults(self) -> list[str]:
        """Everything that `dex-lite check` finds."""
        return [fault for result in check(str(self.path)) for fault in result.faults]


def change(kind: type, place: int = 0, **fields: Any) -> Edit:
    """One fact of a kind says something else."""

    def edit(facts: Facts) -> Facts:
        found = [number for number, fact in enumerate(facts) if isinstance(fact, kind)][place]
        facts[found] = msgspec.structs.replace(facts[found], **fields)
        return facts

    return edit


def append(*more: AnyFact) -> Edit:
    """More comes behind what there is."""
    return lambda facts: [*facts, *more]
