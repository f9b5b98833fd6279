"""Connector operations as tools, with a ledger whose entries say what really happened."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from adk.connector_agent import build_flow, flow_of
from dex_agents import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    AgentSessionClient,
    AgentSessionFlow,
    DeferredToolExecution,
    ToolEffect,
    ToolExecutionError,
    ToolNotStartedError,
    ToolPolicy,
    ToolSource,
)
from dex_agents.connectors import (
    ConnectionReference,
    ConnectorOperation,
    ConnectorToolSource,
    connector_call_id,
    connector_tool,
)
from dex_agents.testing import (
    PrivateEngine,
    WorkerProcess,
    is_failpoint_reached,
    private_engine,
    read_step_history,
    session_client,
    step_shape,
)
from support.ledger_connector import CONNECTOR_ID, REFERENCE, Books, operations
from support.serving import serve

TURN_S = 90.0
LONG = pytest.mark.long
UNKNOWN = {"error": OUTCOME_UNKNOWN_TOOL_RESULT}
SKIPPED = (
    "The tool call failed: The tool did not run: an earlier write of the same response did not "
    "succeed, so this one was skipped"
)


def script(*responses: list[tuple[str, dict[str, Any]]]) -> str:
    return json.dumps(responses)


def pays(*amounts: int, tool: str = "pay") -> list[tuple[str, dict[str, Any]]]:
    return [(tool, {"amount": amount}) for amount in amounts]


class Place:
    """A folder with books, an engine and a client."""

    def __init__(self, folder: Path, engine: PrivateEngine, sessions: AgentSessionClient) -> None:
        self.folder, self.engine, self.sessions = folder, engine, sessions
        self.books = Books(folder)
        self.asked: list[str] = []

    def answer(self, **answers: str) -> None:
        """Say how the provider answers."""
        self.books.answers.write_text(json.dumps(answers))

    async def results(
        self, text: str, decide: Callable[[str], bool] = lambda _: True, turn: int = 1
    ) -> Any:
        """What each call of the first response gave, in order; approvals are answered."""
        if turn == 1:
            await self.sessions.start_session("s", text)
        else:
            await self.sessions.send_user_message("s", text)
        return await self.finish(decide, turn)

    async def finish(self, decide: Callable[[str], bool] = lambda _: True, turn: int = 1) -> Any:
        while True:
            snapshot = await self.sessions.wait_until_settled(
                "s", turns_done=turn, timeout_s=TURN_S
            )
            if not snapshot.pending_interrupts:
                break
            for pending in snapshot.pending_interrupts:
                self.asked.append(pending.tool_name)
                await self.sessions.resolve_interrupt(
                    "s", pending.interrupt_id, approved=decide(pending.tool_name)
                )
        assert snapshot.last_turn is not None
        assert not snapshot.last_turn.error, snapshot.last_turn.error
        return [response for _, response in json.loads(snapshot.last_turn.final_text)]

    async def shape(self) -> list[str]:
        return step_shape(await read_step_history(self.engine.address, "s"))

    def entries(self) -> list[tuple[str, int]]:
        return [(entry["name"], entry["amount"]) for entry in self.books.entries.entries()]

    def arrivals(self, name: str) -> list[tuple[int, bool]]:
        found = [entry for entry in self.books.arrivals.entries() if entry["name"] == name]
        assert len({entry["call_id"] for entry in found}) <= 1
        return [(entry["attempt"], entry["may_have_left"]) for entry in found]


@contextlib.asynccontextmanager
async def place_of(
    folder: Path, flow: AgentSessionFlow, *, is_served: bool = True
) -> AsyncIterator[Place]:
    async with private_engine(folder / "engine.db") as engine, contextlib.AsyncExitStack() as stack:
        if is_served:
            sessions = await stack.enter_async_context(serve(engine.address, flow, folder))
        else:
            client = session_client(flow, server_address=engine.address)
            sessions = await stack.enter_async_context(client)
        yield Place(folder, engine, sessions)


async def test_a_query_and_an_approved_mutation_run_once_in_their_steps(tmp_path: Path) -> None:
    async with place_of(tmp_path, flow_of(tmp_path)) as place:
        results = await place.results(script([("balance", {}), *pays(5)]))
        assert results == [{"balance": 0}, {"paid": 5}]
        assert place.asked == ["pay"]
        shape = await place.shape()
        assert [shape.count(n) for n in ("CallTool", "CallSingleAttemptTool")] == [1, 1]
        assert shape.count("AwaitToolApproval") == 1
        assert place.entries() == [("pay", 5)]
        (arrival,) = [e for e in place.books.arrivals.entries() if e["name"] == "pay"]
        assert arrival["connection"] == "books"


@pytest.mark.parametrize("asks", [True, False])
async def test_a_policy_changes_the_approval_only(tmp_path: Path, asks: bool) -> None:
    policy = ToolPolicy(ToolEffect.READ, requires_approval=asks)
    flow = flow_of(tmp_path, policies={"pay": policy, "balance": policy})
    async with place_of(tmp_path, flow) as place:
        place.answer(pay="broken")
        results = await place.results(script([("balance", {}), *pays(5)]))
        assert place.asked == (["balance", "pay"] if asks else [])
        # Whatever effect the policy names, the mutation is not made twice.
        assert results == [{"balance": 0}, UNKNOWN]
        assert len(place.books.arrivals.entries()) == 2
        shape = await place.shape()
        assert [shape.count(n) for n in ("CallTool", "CallSingleAttemptTool")] == [1, 1]


async def test_a_safe_mutation_is_repeated_with_its_call_id(tmp_path: Path) -> None:
    async with place_of(tmp_path, flow_of(tmp_path)) as place:
        place.answer(transfer="once")
        (result,) = await place.results(script(pays(7, tool="transfer")))
        assert place.arrivals("transfer") == [(1, False), (2, True)]
        assert place.entries() == [("transfer", 7)]
        rows = await read_step_history(place.engine.address, "s")
        step = next(row.step_execution_id for row in rows if row.step_type == "CallTool")
        assert result == {"call_id": connector_call_id("s", step, CONNECTOR_ID, "transfer")}
        place.answer()
        (second,) = await place.results(script(pays(1, tool="transfer")), turn=2)
        assert second["call_id"] != result["call_id"]


@pytest.mark.parametrize(
    ("answer", "expected", "arrived"),
    [
        ("uncertain", UNKNOWN, 1),
        pytest.param("broken", UNKNOWN, 1, marks=LONG),
        ("rejected", {"error": "The tool call failed: the ledger says rejected"}, 1),
        pytest.param(
            "retry", {"error": "The tool call failed: the ledger says retry"}, 1, marks=LONG
        ),
        pytest.param(
            "defect", {"error": "The tool call failed: the ledger says defect"}, 1, marks=LONG
        ),
        (
            "unreachable",
            {
                "error": "The tool call failed: The tool did not run: pay did not reach its "
                "provider: ConnectionError: no route"
            },
            0,
        ),
        (
            "exits",
            {
                "error": "The tool call failed: The tool did not run: pay did not reach its "
                "provider: SystemExit: 3"
            },
            0,
        ),
    ],
)
async def test_how_a_mutation_ends_and_what_is_skipped(
    tmp_path: Path, answer: str, expected: Any, arrived: int
) -> None:
    async with place_of(tmp_path, flow_of(tmp_path)) as place:
        place.answer(pay=answer)
        calls = [*pays(1, tool="transfer"), *pays(2), *pays(3, tool="transfer"), ("balance", {})]
        results = await place.results(script(calls))
        assert results[1:3] == [expected, {"error": SKIPPED}]
        assert place.entries() == [("transfer", 1)]
        assert len(place.arrivals("pay")) == arrived
        assert place.asked == ["transfer", "pay"]


async def test_two_writes_in_the_models_order(tmp_path: Path) -> None:
    async with place_of(tmp_path, flow_of(tmp_path)) as place:
        await place.results(script([*pays(3), *pays(1, tool="transfer"), *pays(2)]))
        assert place.entries() == [("pay", 3), ("transfer", 1), ("pay", 2)]


async def test_a_rejected_write_skips_the_later_one(tmp_path: Path) -> None:
    async with place_of(tmp_path, flow_of(tmp_path)) as place:
        results = await place.results(script(pays(3, 4)), decide=lambda _: False)
        assert results[0] == {"error": "The user rejected this tool call, so it was not run."}
        assert results[1] == {"error": SKIPPED}
        assert (place.entries(), place.asked) == ([], ["pay"])


@contextlib.asynccontextmanager
async def workers_of(
    place: Place, folder: Path
) -> AsyncIterator[Callable[..., Awaitable[WorkerProcess]]]:
    """Starts Worker processes by the name of what builds their Flow, and failpoints."""
    workers: list[WorkerProcess] = []

    async def start(name: str, *failpoints: str) -> WorkerProcess:
        worker = await WorkerProcess.start(
            f"adk.connector_agent:{name}",
            server_address=place.engine.address,
            data_dir=folder,
            failpoints=failpoints,
        )
        workers.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in workers:
            worker.kill()
            await worker.wait()


@pytest.mark.parametrize(
    ("tool", "failpoint", "entries", "expected"),
    [
        ("transfer", "connector.dispatched", 1, "call_id"),
        pytest.param("transfer", "connector.completed", 1, "call_id", marks=LONG),
        pytest.param("pay", "connector.dispatched", 0, "error", marks=LONG),
        ("pay", "connector.completed", 1, "error"),
    ],
)
async def test_a_worker_that_is_killed_around_the_request(
    tmp_path: Path, tool: str, failpoint: str, entries: int, expected: str
) -> None:
    async with place_of(tmp_path, build_flow(tmp_path), is_served=False) as place:
        async with workers_of(place, tmp_path) as start:
            first = await start("build_flow", failpoint)
            await place.sessions.start_session("s", script(pays(9, tool=tool)))
            snapshot = await place.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
            (pending,) = snapshot.pending_interrupts
            await place.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
            await first.wait()
            assert is_failpoint_reached(failpoint, tmp_path)
            await start("build_flow")
            (result,) = await place.finish()
        assert place.entries() == [(tool, 9)] * entries
        assert expected in result
        if tool == "pay":
            assert result == UNKNOWN
            assert len(place.arrivals("pay")) == entries
        else:
            # The attempt that was killed left its fence: it outlived the process.
            assert place.arrivals("transfer")[-1] == (2, True)


@pytest.mark.parametrize(
    ("tools", "entered", "arrived", "skipped"),
    [
        # The safe one that was killed is repeated and entered once, and the others follow it.
        (("transfer", "pay", "transfer"), [1, 2, 3], [1, 1, 2, 3], 0),
        # The other one may have been entered, so nothing may follow it.
        (("pay", "transfer", "pay"), [1], [1], 2),
    ],
)
async def test_ordered_writes_over_a_kill(
    tmp_path: Path,
    tools: Sequence[str],
    entered: list[int],
    arrived: list[int],
    skipped: int,
) -> None:
    """The Worker dies when the first write has been made and before that is stored."""
    async with place_of(tmp_path, build_flow(tmp_path), is_served=False) as place:
        async with workers_of(place, tmp_path) as start:
            first = await start("build_freely_flow", "connector.completed")
            calls = [(tool, {"amount": number}) for number, tool in enumerate(tools, start=1)]
            await place.sessions.start_session("s", script(calls))
            await first.wait()
            await start("build_freely_flow")
            results = await place.finish()
        assert [amount for _, amount in place.entries()] == entered
        made = [entry["amount"] for entry in place.books.arrivals.entries() if "amount" in entry]
        assert made == arrived
        assert results.count({"error": SKIPPED}) == skipped
        assert (results[0] == UNKNOWN) is bool(skipped)


@pytest.mark.long
async def test_a_release_that_withdraws_a_tool_in_mid_turn(tmp_path: Path) -> None:
    async with place_of(tmp_path, build_flow(tmp_path), is_served=False) as place:
        async with workers_of(place, tmp_path) as start:
            first = await start("build_flow", "resume.before")
            await place.sessions.start_session(
                "s", script(pays(1, tool="transfer"), [*pays(2, tool="transfer"), ("balance", {})])
            )
            snapshot = await place.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
            (pending,) = snapshot.pending_interrupts
            await place.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
            await first.wait()
            await start("build_smaller_flow")
            results = await place.finish()
        assert results == [
            {"error": "transfer did not run: its tool source does not offer this tool now."},
            {"balance": 1},
        ]
        assert place.entries() == [("transfer", 1)]


async def test_arguments_that_do_not_fit_reach_nobody(tmp_path: Path) -> None:
    async with place_of(tmp_path, flow_of(tmp_path)) as place:
        results = await place.results(script([("pay", {"amount": 0}), ("balance", {})]))
        assert results[0] == {
            "error": "The tool call failed: pay was not called: amount: 0 is less than the minimum "
            "of 1"
        }
        assert place.asked == []


def test_the_source(tmp_path: Path) -> None:
    known = operations(Books(tmp_path))
    assert all(isinstance(operation, ConnectorOperation) for operation in known.values())
    pay = replace(known["pay"], timeout=timedelta(seconds=9), maximum_attempts=4)
    transfer = replace(known["transfer"], timeout=timedelta(seconds=9), maximum_attempts=4)
    source: ToolSource = ConnectorToolSource(
        [
            connector_tool(pay, REFERENCE, name="pay_bill"),
            connector_tool(transfer, REFERENCE),
            connector_tool(known["balance"], REFERENCE),
        ]
    )
    assert isinstance(source, ToolSource)
    assert source.declared_tool_names == ("pay_bill", "transfer", "balance")
    effects = {
        name: source.build_tool_call(name, {"amount": 1}).effect
        for name in source.declared_tool_names
    }
    assert effects == {
        "pay_bill": ToolEffect.NON_IDEMPOTENT_WRITE,
        "transfer": ToolEffect.IDEMPOTENT_WRITE,
        "balance": ToolEffect.READ,
    }
    options = {name: source.tool_call_step_options(name) for name in source.declared_tool_names}
    assert (options["pay_bill"].timeout, options["pay_bill"].maximum_attempts) == (
        timedelta(seconds=9),
        None,
    )
    assert options["transfer"].maximum_attempts == 4


def test_what_is_refused(tmp_path: Path) -> None:
    known = operations(Books(tmp_path))
    with pytest.raises(ValueError, match="'wipe' of connector 'ledger' is not exposed to agents"):
        connector_tool(known["wipe"], REFERENCE)
    with pytest.raises(ValueError, match="cannot use the connection 'x' of connector 'stripe'"):
        connector_tool(known["pay"], ConnectionReference("stripe", "x"))
    wrong: Any = object()
    with pytest.raises(TypeError, match="must be a ConnectorOperation, got object"):
        connector_tool(wrong, REFERENCE)
    with pytest.raises(TypeError, match="must be a ConnectionReference, got object"):
        connector_tool(known["pay"], wrong)
    with pytest.raises(ValueError, match="two connector tools have the name 'pay'"):
        ConnectorToolSource([connector_tool(known["pay"], REFERENCE)] * 2)
    with pytest.raises(TypeError, match="must hold what"):
        ConnectorToolSource([wrong])
    with pytest.raises(ValueError, match=r"ToolCallStepOptions\.timeout"):
        connector_tool(replace(known["pay"], timeout=timedelta(0)), REFERENCE)


def test_call_ids() -> None:
    one = connector_call_id("s", "CallTool-1", "ledger", "pay")
    assert one == connector_call_id("s", "CallTool-1", "ledger", "pay")
    others = {
        connector_call_id("s", "CallTool-2", "ledger", "pay"),
        connector_call_id("t", "CallTool-1", "ledger", "pay"),
        connector_call_id("s", "CallTool-1", "ledger2", "pay"),
        connector_call_id("s", "CallTool-1", "ledger", "2pay"),
    }
    assert len({one, *others}) == 5


async def test_outside_a_step_nothing_runs(tmp_path: Path) -> None:
    source = ConnectorToolSource([connector_tool(operations(Books(tmp_path))["pay"], REFERENCE)])
    call = DeferredToolExecution(
        "s", "t1", "c", "pay", {"amount": 1}, ToolEffect.NON_IDEMPOTENT_WRITE, "", "x", 1, "k"
    )
    with pytest.raises(ToolNotStartedError, match="only run in a Step"):
        await source.execute_deferred_tool_call(call)
    with pytest.raises(ToolExecutionError, match="'amount' is a required property"):
        source.build_tool_call("pay", {})
    assert Books(tmp_path).arrivals.entries() == []
