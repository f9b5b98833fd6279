"""`dex-lite flow …` and `stream tail` at a real engine with a real Worker."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from dex import (
    AsyncContext,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    WaitForStepCompletionOptions,
    dead_end,
    force_complete,
    go_to_many,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from grpc import aio

from dex_lite_samples import App, Mailbox, serve
from support.cli import command, spawn, write_stream


class Fork(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return go_to_many(StepMovement.of(Broken, input), StepMovement.of(Aside, input))


class Aside(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return dead_end()


class Broken(Step[str]):
    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
        return StepOptions(execute_retry=policy).on_execute_failure_proceed_to(Mend)

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        raise LookupError(f"no <{input}> & more")


class Mend(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return force_complete({"mended": input})


class Repair(Flow[str]):
    """Forks; one branch fails twice and is recovered."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Fork()).other_steps(Aside(), Broken(), Mend())


stop_waiting = Channel("stop waiting", str)


class Split(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        parts = [StepMovement.of(step, None) for step in (Caller, Waits, Waits, Stuck, Stays)]
        return go_to_many(*parts)


class Caller(Step[None]):
    """Ends its siblings that wait."""

    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        return Wait.until(stop_waiting.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return dead_end().with_canceling_sibling_steps(Waits)


class Waits(Step[None]):
    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(hours=1)))

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        raise AssertionError("nobody lets an hour pass")


class Stays(Waits):
    """Is canceled by nobody."""


class Stuck(Step[None]):
    """Never ends a method, so that the history does not know it."""

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        await asyncio.Event().wait()
        raise AssertionError("woken by nobody")


class Parting(Flow[None]):
    """Steps are canceled by a sibling and by an RPC."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Split()).other_steps(Caller(), Waits(), Stays(), Stuck())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(stop_waiting)

    @rpc
    async def end_siblings(self, context: Context) -> None:
        stop_waiting.publish(context, "now")

    @rpc
    async def end_stuck(self, context: Context) -> RPCResult[None]:
        return RPCResult(None).with_canceling_steps(Stuck)


repair = Repair()
mailbox = Mailbox()
parting = Parting()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with serve(tmp_path, mailbox, repair, parting) as made:
        yield made


async def repaired(app: App) -> None:
    await app.client.start_flow(repair, "rep", "lamp")
    await app.client.wait_for_flow("rep")


async def waiting(app: App) -> None:
    """A Mailbox that took one message and waits for the next one."""
    await app.client.start_flow(mailbox, "box", 0)
    await app.call(mailbox.send, "box", "hello")
    request = pb.GetFlowStateRequest(flow_id="box")
    async with aio.insecure_channel(app.address) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        while True:
            state = await stub.GetFlowState(request)
            active = state.active_step_executions
            if [(step.step_execution_id, step.phase) for step in active] == [
                ("Listen-2", pb.ACTIVE_STEP_PHASE_WAITING)
            ]:
                return
            await asyncio.sleep(0)


async def test_show_draws_branches_attempts_and_failures(app: App) -> None:
    await repaired(app)
    done = await command("flow", "show", "rep", address=app.address)
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0].startswith("rep  Repair  completed  ")
    assert lines[2] == "start"
    by_step = {
        found[0]: line for line in lines if (found := re.search(r"[✓✗] \w+-\d", line)) is not None
    }
    assert next(iter(by_step)) == "✓ Fork-1"
    assert "(attempt 2) failed  builtins.LookupError: no <lamp> & more" in by_step["✗ Broken-1"]
    # Mend is below Broken, further in than the branch beside it.
    assert by_step["✓ Mend-1"].index("✓") > by_step["✓ Aside-1"].index("✓")
    assert lines[-1] == 'output: {"mended": "lamp"}'


async def test_lines_into_a_pipe_are_whole(app: App) -> None:
    thing = "lamp" * 40
    await app.client.start_flow(repair, "rep", thing)
    await app.client.wait_for_flow("rep")
    done = await command("flow", "show", "rep", address=app.address)
    assert any(f"no <{thing}> & more" in line for line in done.out.splitlines())


async def test_show_as_json(app: App) -> None:
    await repaired(app)
    run = (await command("flow", "show", "rep", "--json", address=app.address)).json
    assert (run["flow_id"], run["flow_type"], run["status"]) == ("rep", "Repair", "completed")
    assert run["close_time"].endswith("Z")
    steps = {step["step_execution_id"]: step for step in run["steps"]}
    assert steps.keys() == {"Fork-1", "Broken-1", "Aside-1", "Mend-1"}
    assert {name: step["state"] for name, step in steps.items()} == {
        "Fork-1": "completed",
        "Broken-1": "failed",
        "Aside-1": "completed",
        "Mend-1": "completed",
    }
    assert steps["Mend-1"]["source"] == "Broken-1"
    (method,) = steps["Broken-1"]["methods"]
    assert (method["name"], method["attempts"], method["outcome"]) == ("execute", 2, "failed")


async def test_show_a_waiting_run(app: App) -> None:
    await waiting(app)
    done = await command("flow", "show", "box", address=app.address)
    first, second = done.out.splitlines()[3:]
    assert "✓ Listen-1  wait_for " in first
    assert " for timer 0 (1 min 0 s) or channel inbox (1), execute " in first
    assert "… Listen-2  " in second
    assert second.endswith("waiting for timer 0 (1 min 0 s) or channel inbox (1)")


async def test_canceled_steps_are_told_from_those_that_wait(app: App) -> None:
    async def by_type() -> dict[str, set[tuple[str, str | None]]]:
        steps = (await command("flow", "show", "p", "--json", address=app.address)).json["steps"]
        told: dict[str, set[tuple[str, str | None]]] = {}
        for step in steps:
            told.setdefault(step["step_type"], set()).add((step["state"], step["canceled_by"]))
        return told

    await app.client.start_flow(parting, "p", None)
    waits = {("waiting", None)}
    while not (waits == (told := await by_type()).get("Waits") == told.get("Stays")):
        pass
    await app.call(parting.end_siblings, "p")
    options = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))
    await app.client.wait_for_step_completion("p", StepExecutionId("Caller"), options)
    await app.call(parting.end_stuck, "p")
    canceled = {
        "Split": {("completed", None)},
        "Caller": {("completed", None)},
        "Waits": {("canceled", "Caller-1")},
        "Stuck": {("canceled", "RPC end_stuck")},
    }
    assert await by_type() == canceled | {"Stays": waits}
    lines = (await command("flow", "show", "p", address=app.address)).out.splitlines()
    assert [line.split("─ ")[1] for line in lines if "Stuck" in line] == [
        "- Stuck  canceled by RPC end_stuck"
    ]
    history = (await command("flow", "history", "p", address=app.address)).out
    assert ", cancels sibling Waits, dead end\n" in history
    assert "  end_stuck, cancels Stuck\n" in history
    chart = (await command("flow", "show", "p", "--graph", "mermaid", address=app.address)).out
    assert chart.count(":::canceled") == 3
    await app.client.stop_flow("p")
    assert await by_type() == canceled | {"Stays": {("dropped", None)}}


async def test_a_flow_that_no_worker_serves(tmp_path: Path) -> None:
    async def shown(app: App) -> tuple[bool, bool, bool, list[str]]:
        told = {}
        for name in (["list"], ["show", "c"], ["state", "c"]):
            told[name[0]] = (await command("flow", *name, "--json", address=app.address)).json
        (row,) = told["list"]
        steps = [step["step_type"] for step in told["show"]["steps"] if step["needs_worker"]]
        assert steps == [s["step_type"] for s in told["state"]["steps"] if s["needs_worker"]]
        return (
            row["needs_worker"],
            told["show"]["needs_worker"],
            told["state"]["needs_worker"],
            steps,
        )

    async with serve(tmp_path, mailbox, with_worker=False) as app:
        await app.client.start_flow(mailbox, "c", 0)
        assert await shown(app) == (True, True, True, ["Listen"])
        for name, line in (
            (["list"], "c        Mailbox  running, waiting for a Worker  "),
            (["show", "c"], "  running  "),
            (["state", "c"], "c  Mailbox  running  waiting for a Worker"),
        ):
            lines = (await command("flow", *name, address=app.address)).out.splitlines()
            assert [each for each in lines if line in each]
        shown_lines = (await command("flow", "show", "c", address=app.address)).out.splitlines()
        assert shown_lines[0].endswith("  waiting for a Worker")
        assert shown_lines[-1].endswith("○ Listen  queued, waiting for a Worker")
        process = await spawn("flow", "watch", "c", address=app.address)
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        assert line == "dex-lite: c is waiting for a Worker that takes Listen\n"
        process.send_signal(signal.SIGINT)
        await process.communicate()
        await app.start_worker()
        await app.call(mailbox.send, "c", "hello")
        assert await shown(app) == (False, False, False, [])


async def test_graphs(app: App, tmp_path: Path) -> None:
    await repaired(app)
    file = tmp_path / "run.svg"
    done = await command(
        "flow", "show", "rep", "--graph", "svg", "--out", file, address=app.address
    )
    assert (done.code, done.out) == (0, "")
    texts = {element.text for element in ElementTree.parse(file).iter() if element.text}
    assert {"rep", "Fork-1", "Broken-1", "Aside-1", "Mend-1", "completed"} <= texts
    assert "builtins.LookupError: no <lamp> & more" in texts
    chart = (await command("flow", "show", "rep", "--graph", "mermaid", address=app.address)).out
    assert chart.startswith("flowchart TD\n")
    assert "no #60;lamp#62; #38; more" in chart
    missing = tmp_path / "none" / "run.svg"
    done = await command(
        "flow", "show", "rep", "--graph", "svg", "--out", missing, address=app.address
    )
    told = f"there is no folder {missing.parent}. Choose another file with --out"
    assert told in done.refusal(1)


async def test_state(app: App) -> None:
    await waiting(app)
    state = (await command("flow", "state", "box", "--json", address=app.address)).json
    assert state["attributes"] == {"count": 1}
    (step,) = state["steps"]
    assert (step["step_execution_id"], step["state"]) == ("Listen-2", "waiting")
    done = await command("flow", "state", "box", address=app.address)
    assert done.out.splitlines()[0] == "box  Mailbox  running"
    assert ["count", "1"] in [line.split() for line in done.out.splitlines()]


async def test_history(app: App) -> None:
    await repaired(app)
    events = (await command("flow", "history", "rep", "--json", address=app.address)).json
    assert events[0]["kind"] == "flow_started_or_continued"
    assert events[-1]["kind"] == "flow_closed"
    (failed,) = [event for event in events if event["kind"] == "step_execute_failed"]
    assert (failed["step_execution_id"], failed["attempt"]) == ("Broken-1", 2)
    assert failed["event"]["context"]["step_type"] == "Broken"
    first = events[2]["event_id"]
    done = await command("flow", "history", "rep", "--first", str(first), address=app.address)
    rows = done.out.splitlines()[1:]
    assert [int(row.split()[0]) for row in rows] == [event["event_id"] for event in events[2:]]


async def test_watch_follows_a_run_to_its_end(app: App) -> None:
    await waiting(app)
    process = await spawn("flow", "watch", "box", "--json", address=app.address)
    assert process.stdout is not None
    kinds = []
    async for line in process.stdout:
        kinds.append(json.loads(line)["kind"])
        if kinds[-1] == "step_wait_for_completed" and kinds.count(kinds[-1]) == 2:
            # The watcher has all there is; what comes now is live.
            await app.call(mailbox.send, "box", "end")
    assert await process.wait() == 0
    assert kinds[-1] == "flow_closed"
    done = await command("flow", "watch", "box", address=app.address)
    assert (done.code, len(done.out.splitlines())) == (0, len(kinds))


async def test_watch_ends_with_ctrl_c(app: App) -> None:
    await waiting(app)
    process = await spawn("flow", "watch", "box", address=app.address)
    assert process.stdout is not None
    while b"Listen-2" not in await process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize(
    ("how", "status"), [("cancel", "canceled"), ("terminate", "terminated"), ("fail", "failed")]
)
async def test_stop(app: App, how: str, status: str) -> None:
    await waiting(app)
    done = await command(
        "flow", "stop", "box", "--as", how, "--reason", "enough", address=app.address
    )
    assert (done.code, done.out) == (0, f"box is {status}\n")
    shown = (await command("flow", "show", "box", "--json", address=app.address)).json
    assert (shown["status"], shown["error"]) == (status, "enough" if how == "fail" else None)
    # The Step that still waited is shown as what it is.
    assert [step["state"] for step in shown["steps"]] == ["completed", "dropped"]
    done = await command("flow", "watch", "box", address=app.address)
    assert done.code == 1


async def test_what_does_not_exist(app: App) -> None:
    await waiting(app)
    await command("flow", "stop", "box", address=app.address)
    line = (await command("flow", "stop", "box", address=app.address)).refusal(1)
    assert "Flow 'box' is closed. `dex-lite flow show` says how it ended." in line
    line = (await command("flow", "show", "box", "--run", "no", address=app.address)).refusal(1)
    assert "Flow 'box' has no run 'no'. " in line
    for arguments in (["show", "no"], ["history", "no"], ["stop", "no"], ["watch", "no"]):
        line = (await command("flow", *arguments, address=app.address)).refusal(1)
        assert "'no' does not exist" in line
        assert "dex-lite flow list" in line


async def test_tail_says_that_there_is_nothing_yet(app: App) -> None:
    await waiting(app)
    tail = ["stream", "tail", "box", "tokens", "--count", "1"]
    process = await spawn(*tail, address=app.address)
    assert process.stderr is not None
    line = (await process.stderr.readline()).decode()
    assert line.startswith(
        "dex-lite: no message in Stream 'tokens' of Flow 'box', Flow type 'Mailbox', yet"
    )
    await write_stream(app.address, "box", "Mailbox", "one")
    out, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert out.decode().endswith('  test  "one"\n')
    done = await command("stream", "tail", "no", "tokens", address=app.address)
    assert "'no' does not exist" in done.refusal(1)


async def test_tail_prints_old_and_new_messages(app: App) -> None:
    await write_stream(app.address, "f", "Chat", "one")
    tail = ["stream", "tail", "f", "tokens", "--flow-type", "Chat"]
    process = await spawn(*tail, "--json", address=app.address)
    assert process.stdout is not None
    first = json.loads(await process.stdout.readline())
    assert (first["value"], first["source"]) == ("one", "test")
    await write_stream(app.address, "f", "Chat", "two")
    second = json.loads(await process.stdout.readline())
    assert second["value"] == "two"
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    done = await command(
        *tail, "--count", "1", "--after", first["resume_token"], address=app.address
    )
    assert done.code == 0
    assert done.out.endswith('  test  "two"\n')
