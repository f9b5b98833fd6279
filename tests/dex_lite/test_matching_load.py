"""How the limit for Steps of a Worker is learned."""

from __future__ import annotations

import asyncio

from dex_lite._worker_load import Ticket, WorkerLoad


class Probes:
    def __init__(self) -> None:
        self.came = asyncio.Event()

    def __call__(self) -> None:
        self.came.set()


def fill(load: WorkerLoad, count: int) -> list[Ticket]:
    return [load.begin(is_step=True) for _ in range(count)]


def refuse(load: WorkerLoad, ticket: Ticket) -> int | None:
    load.end(ticket)
    return load.step_refused(ticket)


async def test_limit_is_what_was_running_at_the_refusal() -> None:
    load = WorkerLoad(Probes())
    tickets = fill(load, 5)
    assert load.takes_steps()
    refuse(load, tickets[2])  # the order of arrival is not that of sending
    assert load.limit == 4
    assert not load.takes_steps()
    load.end(tickets[0])
    assert load.takes_steps()
    load.stop()


async def test_lowest_of_several_refusals_counts_but_never_less_than_one() -> None:
    load = WorkerLoad(Probes())
    tickets = fill(load, 4)
    for expected in (3, 2, 1):
        refuse(load, tickets.pop())
        assert load.limit == expected
    assert refuse(load, tickets.pop()) == 1
    assert load.limit == 1
    assert load.takes_steps()
    load.stop()


async def test_probe_after_ended_tasks_raises_the_limit_or_waits_longer() -> None:
    load = WorkerLoad(Probes())
    tickets = fill(load, 3)
    refuse(load, tickets.pop())
    assert load.limit == 2
    for _ in range(2):
        assert not load.takes_steps()
        load.end(tickets.pop())
        tickets.append(load.begin(is_step=True))
        assert not tickets[-1].is_probe
    assert load.takes_steps()
    tickets.append(load.begin(is_step=True))
    assert tickets[-1].is_probe
    assert not load.takes_steps()
    load.probe_accepted()
    assert load.limit == 3
    assert load.takes_steps()
    probe = load.begin(is_step=True)
    assert probe.is_probe
    refuse(load, probe)
    assert load.limit == 3
    for _ in range(2):
        assert not load.takes_steps()
        load.end(tickets.pop())
        tickets.append(load.begin(is_step=True))
    assert load.takes_steps()
    load.stop()


async def test_probe_after_some_time() -> None:
    probes = Probes()
    load = WorkerLoad(probes)
    refuse(load, fill(load, 2)[0])
    assert not load.takes_steps()
    async with asyncio.timeout(10):
        await probes.came.wait()
    assert load.takes_steps()


async def test_rpcs_sent_later_do_not_raise_the_limit() -> None:
    load = WorkerLoad(Probes())
    before = load.begin(is_step=False)
    fill(load, 1)
    refused = load.begin(is_step=True)
    later = load.begin(is_step=False)
    refuse(load, refused)
    assert load.limit == 2
    load.end(before)
    load.end(later)
    assert not load.begin(is_step=False).is_probe
    load.stop()


async def test_farewell_refusal_is_taken_back() -> None:
    load = WorkerLoad(Probes())
    before = refuse(load, fill(load, 2)[0])
    load.restore(before)
    assert load.limit is None
    assert load.takes_steps()
