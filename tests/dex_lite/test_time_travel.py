"""Time travel through the real SDK and the command line."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from dex import (
    AsyncContext,
    Attribute,
    AttributeIndex,
    Channel,
    Context,
    DexServiceError,
    Flow,
    FlowNotFoundError,
    FlowStatus,
    IndexType,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    SubFlow,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    Wait,
    go_to,
    graceful_complete,
    rpc,
)

from dex_lite._check import check
from dex_lite_samples import App, serve
from support.cli import command

trail = Attribute("trail", str, AttributeIndex(IndexType.KEYWORD))
note = Attribute("note", str)
words = Channel("words", str)

BEGINNING = TimeTravelOptions(TimeTravelType.BEGINNING)


class Calls(list[str]):
    """What handlers were called, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self._is_new = asyncio.Event()

    def append(self, call: str) -> None:
        super().append(call)
        self._is_new.set()

    async def until(self, call: str) -> None:
        async with asyncio.timeout(30):
            while call not in self:
                self._is_new.clear()
                await self._is_new.wait()


class Pack(Step[str]):
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        self.calls.append(context.step_execution_id)
        trail.set(context, "packed")
        return go_to(Ask, input)


class Ask(Step[str]):
    """Waits for a word, then passes it on."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        self.calls.append(f"{context.step_execution_id} wait")
        return Wait.any_of(words.for_one())

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        self.calls.append(context.step_execution_id)
        (word,) = words.results(context)
        trail.set(context, f"{trail.get(context)} {word}")
        return go_to(Ship, word) if word == "ship" else go_to(Ask, input)


class Ship(Step[str]):
    """Ends the Flow; hangs while it is told to."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.hangs = asyncio.Event()

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        self.calls.append(context.step_execution_id)
        if not self.may_end.is_set():
            self.hangs.set()
            await self.may_end.wait()
        return graceful_complete(f"{trail.get(context)} | {note.get(context)}")


class Parcel(Flow[str]):
    def __init__(self) -> None:
        self.calls = Calls()
        self.ship = Ship(self.calls)

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Pack(self.calls)).other_steps(Ask(self.calls), self.ship)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(trail, note, words)

    @rpc
    async def say(self, context: Context, word: str) -> None:
        words.publish(context, word)

    @rpc
    async def jot(self, context: Context, text: str) -> None:
        note.set(context, f"{note.get(context) or ''}{text}")


async def _done(app: App, flow: Parcel, flow_id: str = "f") -> str:
    """A whole run: pack, ask twice, ship."""
    await app.client.start_flow(flow, flow_id, "x")
    await app.call(flow.jot, flow_id, "a")
    await app.call(flow.say, flow_id, "stop")
    await flow.calls.until("Ask-2 wait")
    await app.call(flow.say, flow_id, "ship")
    output = (await app.client.wait_for_flow(flow_id)).single_output(str)
    flow.calls.clear()
    return output


async def _output(app: App, flow_id: str = "f") -> str:
    result = await app.client.wait_for_flow(flow_id)
    assert result.status is FlowStatus.COMPLETED
    return result.single_output(str)


def _to_step(
    execution_id: str, method: TimeTravelStepMethod, *, skips: bool = False
) -> TimeTravelOptions:
    return TimeTravelOptions(
        TimeTravelType.STEP_EXECUTION_ID,
        step_execution_id=execution_id,
        step_method=method,
        skip_writes_reapply=skips,
    )


async def test_every_target_with_the_clients_writes_applied_again(tmp_path: Path) -> None:
    flow = Parcel()
    async with serve(tmp_path, flow) as app:
        before = await _done(app, flow)
        assert before == "packed stop ship | a"
        first = (await app.client.describe_flow("f")).run_id
        for attempt, (options, calls) in enumerate(
            (
                (
                    BEGINNING,
                    ["Pack-1", "Ask-1 wait", "Ask-1", "Ask-2 wait", "Ask-2", "Ship-1"],
                ),
                (
                    TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type="Ask"),
                    ["Ask-2 wait", "Ask-2", "Ship-1"],
                ),
                (
                    _to_step("Ask-1", TimeTravelStepMethod.WAIT_FOR),
                    ["Ask-1 wait", "Ask-1", "Ask-2 wait", "Ask-2", "Ship-1"],
                ),
                (
                    # The word that the wait took stays taken.
                    _to_step("Ask-1", TimeTravelStepMethod.EXECUTE),
                    ["Ask-1", "Ask-2 wait", "Ask-2", "Ship-1"],
                ),
                (_to_step("Ship-1", TimeTravelStepMethod.EXECUTE), ["Ship-1"]),
            ),
            2,
        ):
            run_id = await app.client.time_travel("f", options)
            assert await _output(app) == before
            assert flow.calls == calls
            flow.calls.clear()
            summary = await app.client.describe_flow("f")
            assert (summary.run_id, summary.status) == (run_id, FlowStatus.COMPLETED)
            rows = (await command("flow", "list", "--json", address=app.address)).json
            assert len(rows) == attempt
            assert first in {row["run_id"] for row in rows}
    _check_is_clean(tmp_path)


def _check_is_clean(folder: Path) -> None:
    results = check(str(folder / "engine.db"))
    assert [fault for result in results for fault in result.faults] == []


async def test_without_the_clients_writes_the_flow_waits_for_new_ones(tmp_path: Path) -> None:
    flow = Parcel()
    async with serve(tmp_path, flow) as app:
        await _done(app, flow)
        options = _to_step("Ask-2", TimeTravelStepMethod.WAIT_FOR, skips=True)
        await app.client.time_travel("f", options)
        await app.call(flow.jot, "f", "b")
        await app.call(flow.say, "f", "ship")
        # What was written before the point is kept.
        assert await _output(app) == "packed stop ship | ab"
        await app.client.time_travel(
            "f", TimeTravelOptions(BEGINNING.type, skip_writes_reapply=True)
        )
        await app.call(flow.say, "f", "ship")
        assert await _output(app) == "packed ship | None"
    _check_is_clean(tmp_path)


async def test_back_to_a_time(tmp_path: Path) -> None:
    flow = Parcel()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "x")
        await app.call(flow.say, "f", "stop")
        await flow.calls.until("Ask-2 wait")
        between = datetime.now(UTC)
        await app.call(flow.say, "f", "ship")
        before = await _output(app)
        flow.calls.clear()
        options = TimeTravelOptions(TimeTravelType.HISTORY_EVENT_TIME, history_event_time=between)
        await app.client.time_travel("f", options)
        assert await _output(app) == before
        assert flow.calls[-1] == "Ship-1"
        assert "Ask-1" not in flow.calls and "Pack-1" not in flow.calls
        late = TimeTravelOptions(
            TimeTravelType.HISTORY_EVENT_TIME, history_event_time=between + timedelta(days=1)
        )
        assert "no event at or after" in await _refused(app, late)


async def _refused(app: App, options: TimeTravelOptions) -> str:
    with pytest.raises(DexServiceError) as caught:
        await app.client.time_travel("f", options)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value)


async def test_a_running_step_of_the_old_run_is_fenced(tmp_path: Path) -> None:
    """Its result comes too late, and whoever waits for the Flow hears of the new run."""
    flow = Parcel()
    async with serve(tmp_path, flow) as app:
        flow.ship.may_end.clear()
        await app.client.start_flow(flow, "f", "x")
        await app.call(flow.say, "f", "ship")
        await asyncio.wait_for(flow.ship.hangs.wait(), 30)
        old = (await app.client.describe_flow("f")).run_id
        waiting = asyncio.create_task(app.client.wait_for_flow("f"))
        await app.client.time_travel(
            "f", TimeTravelOptions(BEGINNING.type, skip_writes_reapply=True)
        )
        flow.ship.may_end.set()
        await app.call(flow.jot, "f", "new")
        await app.call(flow.say, "f", "ship")
        assert (await waiting).single_output(str) == "packed ship | new"
        rows = (await command("flow", "list", "--json", address=app.address)).json
        statuses = {row["run_id"]: row["status"] for row in rows}
        assert statuses.pop(old) == "terminated"
        assert list(statuses.values()) == ["completed"]
    _check_is_clean(tmp_path)


async def test_a_new_run_survives_a_restart(tmp_path: Path) -> None:
    flow = Parcel()
    async with serve(tmp_path, flow) as app:
        await _done(app, flow)
        options = _to_step("Ask-2", TimeTravelStepMethod.WAIT_FOR, skips=True)
        run_id = await app.client.time_travel("f", options)
    async with serve(tmp_path, flow) as app:
        summary = await app.client.describe_flow("f")
        assert (summary.run_id, summary.status) == (run_id, FlowStatus.RUNNING)
        found = await app.client.search_flows("trail = 'packed stop'", 10)
        assert [entry.run_id for entry in found.flows] == [run_id]
        await app.call(flow.say, "f", "ship")
        assert await _output(app) == "packed stop ship | a"
    _check_is_clean(tmp_path)


async def test_targets_that_are_not_there_change_nothing(tmp_path: Path) -> None:
    flow = Parcel()
    async with serve(tmp_path, flow) as app:
        with pytest.raises(FlowNotFoundError):
            await app.client.time_travel("f", BEGINNING)
        await app.client.start_flow(flow, "f", "x")
        run_id = (await app.client.describe_flow("f")).run_id
        for options, told in (
            (
                TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type="Ship"),
                "no Step of type 'Ship' of Flow 'f' has begun",
            ),
            (
                _to_step("Ask-1", TimeTravelStepMethod.EXECUTE),
                "the Execute of Step 'Ask-1' of Flow 'f' has not begun; `dex-lite flow show f`",
            ),
            (_to_step("Ask-9", TimeTravelStepMethod.WAIT_FOR), "Step 'Ask-9' of Flow 'f'"),
        ):
            assert told in await _refused(app, options)
        assert (await app.client.describe_flow("f")).run_id == run_id


class Both(Step[str]):
    """Waits for two parcels."""

    def __init__(self, child: Parcel) -> None:
        self.child = child

    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        return Wait.all_of(SubFlow.run(self.child, "x"), SubFlow.run(self.child, "y"))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        results = [SubFlow.get_condition_results(context, index) for index in range(2)]
        told = [result.single_output(str) for result in results]
        return graceful_complete(f"{told} {note.get(context)}")


class Parcels(Flow[str]):
    def __init__(self, child: Parcel) -> None:
        self.step = Both(child)

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(self.step)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(note)

    @rpc
    async def jot(self, context: Context, text: str) -> None:
        note.set(context, text)


async def test_a_wait_for_sub_flows_goes_on_in_the_new_run(tmp_path: Path) -> None:
    """Also for one that ended after the point, and so was told to the old run only."""
    child = Parcel()
    parents = Parcels(child)
    first, second = "SubFlow:f-Both-1-0", "SubFlow:f-Both-1-1"
    async with serve(tmp_path, child, parents) as app:
        await app.client.start_flow(parents, "f", "x")
        await child.calls.until("Ask-1 wait")
        await app.call(parents.jot, "f", "early")
        await app.call(child.say, first, "ship")
        await app.client.wait_for_flow(first)
        events = (await command("flow", "history", "f", "--json", address=app.address)).json
        (jotted,) = (
            event["time"] for event in events if event["kind"] == "rpc_execution_completed"
        )
        await app.client.time_travel(
            "f",
            TimeTravelOptions(
                TimeTravelType.HISTORY_EVENT_TIME,
                history_event_time=datetime.fromisoformat(jotted),
                skip_writes_reapply=True,
            ),
        )
        await app.call(child.say, second, "ship")
        told = ["packed ship | None"] * 2
        assert await _output(app) == f"{told} None"
    _check_is_clean(tmp_path)


async def test_the_command_line(tmp_path: Path) -> None:
    flow = Parcel()
    async with serve(tmp_path, flow) as app:
        before = await _done(app, flow)
        first = (await app.client.describe_flow("f")).run_id
        done = (
            await command(
                *("flow", "reset", "f", "--step", "Ask-1", "--method", "execute", "--json"),
                *("--reason", "wrong parcel"),
                address=app.address,
            )
        ).json
        assert done["run_attempt"] == 2
        assert await _output(app) == before
        for arguments in (
            ("--beginning",),
            ("--step-type", "Ship"),
            ("--time", "2026-01-01T00:00:00Z"),
        ):
            assert (await command("flow", "reset", "f", *arguments, address=app.address)).code == 0
            assert await _output(app) == before
        # The run of the first attempt has targets of its own.
        done = (
            await command(
                *("flow", "reset", "f", "--beginning", "--run-attempt", "1", "--json"),
                address=app.address,
            )
        ).json
        assert done["run_attempt"] == 6
        assert await _output(app) == before
        events = (
            await command(
                "flow", "history", "f", "--run", done["run_id"], "--json", address=app.address
            )
        ).json
        (fork,) = [event for event in events if "time_travel_fork" in str(event)]
        assert first in str(fork)
        line = (
            await command("flow", "reset", "f", "--step-type", "None", address=app.address)
        ).refusal(1)
        assert "no Step of type 'None'" in line
        line = (
            await command(
                "flow", "reset", "f", "--beginning", "--run-attempt", "77", address=app.address
            )
        ).refusal(1)
        assert "no such run with attempt 77" in line
