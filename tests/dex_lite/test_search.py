"""Attribute indexes and SearchFlows through the real SDK."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    AttributeIndex,
    AttributeMap,
    Channel,
    Context,
    DexServiceError,
    Flow,
    FlowStatus,
    IndexType,
    PersistenceSchema,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    Wait,
    graceful_complete,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

import dex_lite
from dex_lite import EngineOptions
from dex_lite._check import check
from dex_lite._schema import FORMAT
from dex_lite_samples import App, serve
from support.cli import command
from support.old_files import write_old_file

city = Attribute("city", str, AttributeIndex(IndexType.KEYWORD))
notes = Attribute("notes", str, AttributeIndex(IndexType.FULL_TEXT))
tags = Attribute("tags", list[str], AttributeIndex(IndexType.KEYWORD_ARRAY))
amount = Attribute("amount", int, AttributeIndex(IndexType.INT, "order-amount"))
weight = Attribute("weight", float, AttributeIndex(IndexType.DOUBLE))
urgent = Attribute("urgent", bool, AttributeIndex(IndexType.BOOL))
due = Attribute("due", datetime, AttributeIndex(IndexType.DATETIME))
stock = AttributeMap("stock", int, AttributeIndex(IndexType.INT, "in_stock"))
plain = Attribute("plain", str)
go = Channel("go", str)
ALL = (city, notes, tags, amount, weight, urgent, due, stock, plain, go)


class WaitForGo(Step[None]):
    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        return Wait.any_of(go.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return graceful_complete(go.results(context)[0])


class Order(Flow[None]):
    """Waits to be ended; its Attributes are written by RPC."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(WaitForGo())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(*ALL)

    @rpc
    async def end(self, context: Context, text: str) -> None:
        go.publish(context, text)

    @rpc
    async def move(self, context: Context, text: str) -> None:
        if text:
            city.set(context, text)
        else:
            city.delete(context)

    @rpc
    async def fill(self, context: Context, counts: dict[str, int]) -> None:
        for item, count in counts.items():
            stock.set(context, item, count)


order = Order()
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def _start(app: App, flow_id: str, *values: tuple[Attribute[Any], Any]) -> None:
    options = StartFlowOptions()
    for attribute, value in values:
        options = options.with_attribute(attribute, value)
    await app.client.start_flow(order, flow_id, None, options)


async def _found(app: App, query: str) -> list[str]:
    page = await app.client.search_flows(query, 0)
    assert not page.next_page_token
    return sorted(entry.flow_id for entry in page.flows)


async def _refused(app: App, query: str, token: str = "", size: int = 10) -> str:
    with pytest.raises(DexServiceError) as caught:
        await app.client.search_flows(query, size, token)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT, caught.value
    return str(caught.value)


async def test_every_type_and_operator(tmp_path: Path) -> None:
    async with serve(tmp_path, order) as app:
        await _start(
            app,
            "a",
            (city, "Bern"),
            (notes, "Fragile: handle with CARE"),
            (tags, ["new", "vip"]),
            (weight, 1.5),
            (urgent, True),
            (due, NOON),
        )
        await _start(
            app,
            "b",
            (city, "Basel"),
            (notes, "no care needed"),
            (tags, ["old"]),
            (weight, -2.0),
            (urgent, False),
            (due, NOON.astimezone(timezone(timedelta(hours=5))) + timedelta(hours=1)),
        )
        await _start(app, "c", (plain, "Bern"))
        await app.call(order.fill, "a", {"apples": 3, "pears": 40})
        await app.call(order.end, "c", "x")
        await app.client.wait_for_flow("c")
        for query, wanted in {
            "": "abc",
            "city = 'Bern'": "a",
            "city != 'Bern'": "b",
            "NOT city = 'Bern'": "bc",
            "city IN ('Bern', 'Basel', 'Chur')": "ab",
            "city NOT IN ('Bern', 'Chur')": "b",
            "city STARTS_WITH 'B'": "ab",
            "city not starts_with 'Be'": "b",
            "city > 'Basel'": "a",
            "city BETWEEN 'Ba' AND 'Bb'": "b",
            "city IS NULL": "c",
            "city is not null": "ab",
            "city = 'bern'": "",
            "notes = 'care'": "ab",
            "notes = 'handle care'": "a",
            "notes != 'fragile'": "b",
            "tags = 'vip'": "a",
            "tags IN ('old', 'new')": "ab",
            "tags != 'vip'": "b",
            "tags STARTS_WITH 'n'": "a",
            "weight >= 1.5": "a",
            "weight < 0": "b",
            "weight BETWEEN -2 AND 2": "ab",
            "urgent = TRUE": "a",
            "urgent IN (true, false)": "ab",
            "due = '2026-03-01T13:00:00+01:00'": "a",
            "due > '2026-03-01T12:00:00Z'": "b",
            "in_stock = 40": "a",
            "in_stock < 10 AND in_stock > 10": "a",
            "in_stock != 3": "",
            "`in_stock` IS NULL": "bc",
            "FlowId = 'a'": "a",
            "WorkflowId STARTS_WITH 'b'": "b",
            "FlowType = 'Order'": "abc",
            "WorkflowType != 'Order'": "",
            "ExecutionStatus = 'Running'": "ab",
            "ExecutionStatus != 'running'": "c",
            "ExecutionStatus IN ('Completed', 'Failed')": "c",
            "StartTime > '2026-01-01'": "abc",
            "StartTime > '2999-01-01'": "",
            "CloseTime IS NULL": "ab",
            "CloseTime > '2026-01-01'": "c",
            "NOT CloseTime > '2026-01-01'": "ab",
            "ActiveStepTypes = 'WaitForGo'": "ab",
            "ActiveStepTypes != 'Other'": "ab",
            "ActiveStepTypes STARTS_WITH 'Wait' AND NOT (city = 'Bern' OR city = 'Chur')": "b",
            "ActiveStepTypes IS NULL": "c",
        }.items():
            assert (query, await _found(app, query)) == (query, list(wanted))


async def test_an_entry_shows_its_indexes(tmp_path: Path) -> None:
    async with serve(tmp_path, order) as app:
        await _start(app, "a", (city, "Bern"), (tags, ["x"]), (plain, "secret"))
        await app.call(order.fill, "a", {"apples": 3, "pears": 40})
        await app.call(order.end, "a", "x")
        await app.client.wait_for_flow("a")
        summary = await app.client.describe_flow("a")
        (entry,) = (await app.client.search_flows("in_stock = 3", 5)).flows
        assert (entry.flow_id, entry.run_id, entry.flow_type) == ("a", summary.run_id, "Order")
        assert entry.status is FlowStatus.COMPLETED
        assert entry.started_at == summary.started_at
        assert entry.closed_at is not None
        shown = {name: value.data for name, value in entry.indexed_attributes.items()}
        assert shown == {"city": "Bern", "tags": '["x"]', "in_stock": "[3, 40]"}
        rows = (
            await command("flow", "list", "--query", "city = 'Bern'", "--json", address=app.address)
        ).json
        assert rows[0]["attributes"]["city"] == "Bern"


async def test_the_index_follows_every_write_and_a_restart(tmp_path: Path) -> None:
    async with serve(tmp_path, order) as app:
        await _start(app, "a", (city, "Bern"))
        await app.call(order.move, "a", "Basel")
        assert await _found(app, "city = 'Bern'") == []
        assert await _found(app, "city = 'Basel'") == ["a"]
        await _start(app, "b", (city, "Chur"))
        await app.call(order.move, "b", "")
        assert await _found(app, "city IS NULL") == ["b"]
    async with serve(tmp_path, order) as app:
        assert await _found(app, "city = 'Basel'") == ["a"]
        assert await _found(app, "city IS NULL") == ["b"]
        await app.call(order.move, "b", "Basel")
        assert await _found(app, "city = 'Basel'") == ["a", "b"]
    _check_is_clean(tmp_path / "engine.db")


def _check_is_clean(path: Path) -> None:
    assert [fault for result in check(str(path)) for fault in result.faults] == []


async def _pages(app: App, query: str, size: int) -> list[list[str]]:
    pages, token = [], ""
    while True:
        page = await app.client.search_flows(query, size, token)
        pages.append([entry.flow_id for entry in page.flows])
        token = page.next_page_token
        if not token:
            return pages


async def test_pages_and_order(tmp_path: Path) -> None:
    async with serve(tmp_path, order) as app:
        for number in range(10):
            values: list[tuple[Attribute[Any], Any]] = [(weight, float(number % 3))]
            if number % 2:
                values.append((city, f"c{number}"))
            await _start(app, f"f{number}", *values)
        newest_first = [f"f{number}" for number in reversed(range(10))]
        for size in (1, 3, 10):
            pages = await _pages(app, "", size)
            assert [name for page in pages for name in page] == newest_first
            assert max(map(len, pages)) == size
        by_weight = sorted(newest_first, key=lambda name: int(name[1:]) % 3)
        for query, wanted in (
            ("ORDER BY weight", by_weight),
            ("weight >= 0 ORDER BY weight ASC, FlowId", sorted(by_weight, key=_weight_and_name)),
            ("ORDER BY StartTime", newest_first[::-1]),
            # Without a value they come last, both ways.
            ("ORDER BY city", [*_cities(), *newest_first[1::2]]),
            ("ORDER BY city DESC", [*reversed(_cities()), *newest_first[1::2]]),
        ):
            found = [name for page in await _pages(app, query, 4) for name in page]
            assert (query, found) == (query, wanted)
        # Flows that come and go between two pages neither repeat nor hide the others.
        page = await app.client.search_flows("", 4)
        await _start(app, "late")
        rest = await app.client.search_flows("", 100, page.next_page_token)
        assert [entry.flow_id for entry in [*page.flows, *rest.flows]] == newest_first


def _weight_and_name(name: str) -> tuple[int, str]:
    return int(name[1:]) % 3, name


def _cities() -> list[str]:
    return [f"f{number}" for number in (1, 3, 5, 7, 9)]


async def test_large_values_make_short_pages(tmp_path: Path) -> None:
    """An answer stays below what a client can receive, and nothing is left out."""
    async with serve(tmp_path, order) as app:
        for number in range(12):
            await _start(app, f"f{number:02}", (notes, f"w{number} " * 4_000), (city, "x" * 30_000))
        pages = await _pages(app, "notes IS NOT NULL ORDER BY FlowId", 1_000)
        assert [name for page in pages for name in page] == [f"f{n:02}" for n in range(12)]


async def test_bad_queries_name_the_place_and_the_way_out(tmp_path: Path) -> None:
    async with serve(tmp_path, order) as app:
        for query, *told in (
            ("city =", "position 7", "ends too early"),
            ("city = 'Bern", "position 8", "quotes do not end"),
            ("city = Bern", "position 8", "texts are in single quotes"),
            ("city == 'Bern'", "position 7", "CustomerId = 'c-1'"),
            ("city = 'x' AND town = 'y'", "position 16", "no field 'town'", "city, due, in_stock"),
            ("weight = 'x'", "position 10", "weight is a number"),
            ("city = 3", "position 8", "put it in quotes"),
            ("urgent > TRUE", "position 1", "cannot be compared with >", "it takes =, IN"),
            ("notes < 'a'", "cannot be compared with <"),
            ("notes = '...'", "position 9", "by words"),
            ("due = 'tomorrow'", "'2026-01-31T08:00:00Z'"),
            ("ExecutionStatus = 'Done'", "'Terminated'"),
            ("ExecutionStatus > 'Failed'", "cannot be compared"),
            ("order-amount = 9223372036854775808", "64 bits"),
            ("ORDER BY tags", "has no order"),
            ("ORDER BY nothing", "no field 'nothing'"),
        ):
            text = await _refused(app, query)
            assert [part for part in told if part not in text] == [], (query, text)
        assert "negative" in str(await _negative_page(app))
        await _start(app, "a")
        await _start(app, "b")
        token = (await app.client.search_flows("", 1)).next_page_token
        for query, bad in (("ORDER BY FlowId", token), ("", token[:-4]), ("", "nonsense")):
            assert "page token" in await _refused(app, query, bad)


async def _negative_page(app: App) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(app.address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SearchFlows(pb.SearchFlowsRequest(page_size=-1))
        return caught.value


HOSTILE: dict[str, tuple[str, str]] = {
    "deep nesting": ("NOT (city = 'x' OR " * 300 + "city = 'y'" + ")" * 300, "nested deeper than"),
    "many terms": (" OR ".join(["weight=1"] * 1_200), "at most 200 conditions"),
    "long": (" OR ".join(["city = 'x'"] * 10_000), "at most 16384"),
    "many values": (f"weight IN ({','.join('1' * 5_000)})", "1000 values"),
    "statement": ("city = 'x'; DROP TABLE runs", "position 11"),
    "comment": ("city = 'x' -- AND more", "position 12"),
    "union": ("city = 'x' UNION SELECT * FROM meta", "position 12"),
    "function": ("load_extension('x') = 1", "is not expected here"),
    "huge number": (f"weight = {'9' * 5_000}", "too many digits"),
    "huge exponent": ("weight = 1e999999", "too large"),
}


async def test_hostile_queries_do_no_harm(tmp_path: Path) -> None:
    async with serve(tmp_path, order) as app:
        await _start(app, "a", (city, "x' OR '1'='1"))
        for query, told in HOSTILE.values():
            assert told in await _refused(app, query)
        # Parentheses alone are no depth, and quotes in a text are text.
        assert await _found(app, "(" * 5_000 + "city = 'x'" + ")" * 5_000) == []
        assert await _found(app, "city = 'x'' OR ''1''=''1'") == ["a"]
        assert await _found(app, "city = '%' OR city STARTS_WITH '_'") == []
        assert await _found(app, "city = \"x' OR '1'='1\"") == ["a"]
        assert await _found(app, "city STARTS_WITH ''") == ["a"]
        assert await _found(app, f"city STARTS_WITH '{chr(0x10FFFF)}'") == []
    _check_is_clean(tmp_path / "engine.db")


async def test_a_value_that_does_not_fit_its_index_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, order) as app:
        with pytest.raises(DexServiceError, match=r"at most 32768 are allowed\. Index a short"):
            await _start(app, "a", (city, "x" * 40_000))
        wrong = Attribute("city", int)
        other = Flow2(wrong)
        async with _client(app, tmp_path / "other", other) as client:
            options = StartFlowOptions().with_attribute(wrong, 3)
            await client.start_flow(other, "number", None, options)  # a keyword is made of it
        assert await _found(app, "city = '3'") == ["number"]
        late = Attribute("due", str)
        third = Flow2(late)
        async with _client(app, tmp_path / "third", third) as client:
            options = StartFlowOptions().with_attribute(late, "tomorrow")
            with pytest.raises(DexServiceError, match="does not fit its index of type DATETIME"):
                await client.start_flow(third, "b", None, options)
        assert await _found(app, "") == ["number"]


class Flow2(Flow[None]):
    """Another Flow type with an Attribute of its own."""

    def __init__(self, *attributes: Attribute[Any]) -> None:
        self.attributes: Sequence[Attribute[Any]] = attributes

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(WaitForGo())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(*self.attributes, go)

    @rpc
    async def finish(self, context: Context) -> None:
        go.publish(context, "end")


@asynccontextmanager
async def _client(app: App, folder: Path, flow: Flow[Any]) -> AsyncIterator[AsyncClient]:
    """A client that knows another release of the Flows."""
    other = App(app.address, folder, [flow])
    try:
        yield other.client
    finally:
        await other.close()


async def test_a_new_index_holds_what_was_there_before_it(tmp_path: Path) -> None:
    """An Attribute that gets an index in a later release of the Flow: open and closed Flows are found."""
    before = Flow2(Attribute("region", str))
    async with serve(tmp_path, before) as app:
        for flow_id in ("closed", "open"):
            options = StartFlowOptions().with_attribute(before.attributes[0], "north")
            await app.client.start_flow(before, flow_id, None, options)
        await app.call(before.finish, "closed")
        await app.client.wait_for_flow("closed")
        assert "no field 'region'" in await _refused(app, "region = 'north'")
    after = Flow2(Attribute("region", str, AttributeIndex(IndexType.KEYWORD)))
    async with serve(tmp_path, after) as app:
        assert await _found(app, "region = 'north'") == ["closed", "open"]
    _check_is_clean(tmp_path / "engine.db")


async def test_a_deleted_run_leaves_its_indexes(tmp_path: Path) -> None:
    """Also when it is deleted while a new index is being filled with what was there before it."""
    before = Flow2(Attribute("region", str))
    async with serve(tmp_path, before) as app:
        for number in range(60):
            options = StartFlowOptions().with_attribute(before.attributes[0], "north")
            await app.client.start_flow(before, f"f{number}", None, options)
            if number:
                await app.call(before.finish, f"f{number}")
                await app.client.wait_for_flow(f"f{number}")
    after = Flow2(Attribute("region", str, AttributeIndex(IndexType.KEYWORD)))
    async with serve(tmp_path, after, options=EngineOptions(retention_s=0)) as app:
        found = [""]
        async with asyncio.timeout(30):
            while found != ["f0"]:
                found = await _found(app, "region = 'north'")
    _check_is_clean(tmp_path / "engine.db")


async def test_an_index_keeps_its_type(tmp_path: Path) -> None:
    async with serve(tmp_path, Flow2(Attribute("size", str, AttributeIndex(IndexType.KEYWORD)))):
        pass
    other = Flow2(Attribute("size", int, AttributeIndex(IndexType.INT)))
    with pytest.raises(RuntimeError, match="cannot synchronize Attribute indexes") as caught:
        async with serve(tmp_path, other):
            pass
    assert "has type KEYWORD, and cannot become INT" in str(caught.value.__cause__)
    reserved = Flow2(Attribute("a", str, AttributeIndex(IndexType.KEYWORD, "FlowId")))
    with pytest.raises(RuntimeError) as caught:
        async with serve(tmp_path, reserved):
            pass
    assert "Give it another index key" in str(caught.value.__cause__)


@pytest.mark.parametrize("old", [1, 2])
async def test_a_file_of_an_older_format_is_found_by_searches(tmp_path: Path, old: int) -> None:
    path = tmp_path / "engine.db"
    write_old_file(path, old)
    _check_is_clean(path)  # an older file is good as it is
    async with serve(tmp_path, order, with_worker=False) as app:
        assert await _found(app, "city = 'Bern'") == ["closed"]
        assert await _found(app, "amount = 7 AND ExecutionStatus = 'Completed'") == ["closed"]
        assert await _found(app, "city STARTS_WITH 'B'") == ["closed", "open"]
        assert await _found(app, "ActiveStepTypes = 'Listen'") == ["open"]
    _check_is_clean(path)
    async with dex_lite.open_engine(path):
        pass
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    assert connection.execute("SELECT value FROM meta WHERE key = 'indexes_filled'").fetchone() == (
        1,
    )


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DELETE FROM index_terms", "does not hold what Attribute 'city' is"),
        (
            "DELETE FROM indexed_attributes",
            "'city' is in an index, and should not be|does not hold",
        ),
        ("UPDATE index_terms SET term = 'Basel'", "index 'city' does not hold"),
        ("UPDATE indexed_attributes SET value = x'00'", "index 'city' does not hold"),
        ("INSERT INTO index_terms VALUES ('city', 'Chur', 1, 'other')", "'other' is in an index"),
        ("INSERT INTO index_terms VALUES ('city', 'Chur', 9, 'city')", "run number 9"),
        ("UPDATE meta SET value = 7 WHERE key = 'indexes_filled'", "indexes_filled is 7"),
    ],
)
async def test_check_finds_an_index_that_differs_from_the_facts(
    tmp_path: Path, damage: str, told: str
) -> None:
    async with serve(tmp_path, order) as app:
        await _start(app, "a", (city, "Bern"))
    path = tmp_path / "engine.db"
    _check_is_clean(path)
    connection = sqlite3.connect(path)
    assert connection.execute(damage).rowcount > 0
    connection.commit()
    connection.close()
    faults = [fault for result in check(str(path)) for fault in result.faults]
    assert any(part in fault for fault in faults for part in told.split("|")), faults
