"""How the limit for Steps of a Worker is learned."""

from __future__ import annotations

import asyncio

from dex_lite._worker_load import WorkerLoad


class Probes:
    def __init__(self) -> None:
        self.came = asyncio.Event()

    def __call__(self) -> None:
        self.came.set()


def fill(load: WorkerLoad, count: int) -> None:
    for _ in range(count):
        load.begin(is_step=True)


async def test_limit_is_what_was_running_at_the_refusal() -> None:
    load = WorkerLoad(Probes())
    fill(load, 5)
    assert load.takes_steps()
    load.end()
    load.step_refused()
    assert load.limit == 4
    assert not load.takes_steps()
    load.end()
    assert load.takes_steps()
    load.stop()


async def test_lowest_of_several_refusals_counts_but_never_less_than_one() -> None:
    load = WorkerLoad(Probes())
    fill(load, 4)
    for expected in (3, 2, 1):
        load.end()
        load.step_refused()
        assert load.limit == expected
    load.end()
    assert load.step_refused() == 1
    assert load.limit == 1
    assert load.takes_steps()
    load.stop()


async def test_probe_after_ended_tasks_raises_the_limit_or_waits_longer() -> None:
    load = WorkerLoad(Probes())
    fill(load, 3)
    load.end()
    load.step_refused()  # limit 2
    for _ in range(2):
        load.end()
        assert not load.begin(is_step=True)
    assert load.takes_steps()
    assert load.begin(is_step=True)  # the probe
    assert not load.takes_steps()
    load.probe_accepted()
    assert load.limit == 3
    assert load.takes_steps()
    assert load.begin(is_step=True)
    load.end()
    load.step_refused()
    assert load.limit == 3
    assert not load.takes_steps()
    load.end()
    load.begin(is_step=True)
    assert not load.takes_steps()  # the second end is still to come
    load.end()
    load.begin(is_step=True)
    assert load.takes_steps()
    load.stop()


async def test_probe_after_some_time() -> None:
    probes = Probes()
    load = WorkerLoad(probes)
    fill(load, 2)
    load.end()
    load.step_refused()
    assert not load.takes_steps()
    async with asyncio.timeout(10):
        await probes.came.wait()
    assert load.takes_steps()


async def test_rpcs_count_but_do_not_probe() -> None:
    load = WorkerLoad(Probes())
    fill(load, 2)
    load.end()
    load.step_refused()
    assert not load.begin(is_step=False)
    assert load.in_flight == 2
    load.stop()


async def test_farewell_refusal_is_taken_back() -> None:
    load = WorkerLoad(Probes())
    fill(load, 2)
    load.end()
    before = load.step_refused()
    load.restore(before)
    assert load.limit is None
    assert load.takes_steps()
