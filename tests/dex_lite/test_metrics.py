"""Metrics: what happened is counted, on a port of their own, without a registry in common."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import builtins
import socket
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from dex import (
    AsyncContext,
    Flow,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    graceful_complete,
)
from prometheus_client.parser import text_string_to_metric_families

import dex_lite
from dex_lite_samples import App, Mailbox


class Flaky(Step[int]):
    """Fails once."""

    def get_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1)))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        if context.attempt == 1:
            raise ValueError("no")
        return graceful_complete(input)


class FlakyFlow(Flow[int]):
    """One Step that fails once."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Flaky())


async def _samples(address: str | None) -> dict[str, float]:
    """Values by name and labels."""
    url = f"http://{address}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read().decode())
    return {
        sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_work_is_counted(tmp_path: Path) -> None:
    mailbox, flaky = Mailbox(), FlakyFlow()
    async with dex_lite.open_engine(tmp_path / "engine.db", metrics_port=0) as engine:
        app = App(engine.address, tmp_path, [mailbox, flaky])
        try:
            await app.client.start_flow(flaky, "x", 1)
            found = await _samples(engine.metrics_address)
            assert found["dex_lite_queue_depth"] == 1
            assert found["dex_lite_worker_streams"] == 0
            await app.start_worker()
            await app.client.wait_for_flow("x")
            await app.client.start_flow(mailbox, "m", 0)
            await app.call(mailbox.send, "m", "a")
            done = "dex_lite_steps_completed_total wait_for"
            while (found := await _samples(engine.metrics_address)).get(done, 0) < 2:
                pass
        finally:
            await app.close()
    assert found["dex_lite_open_flows"] == 1
    assert found["dex_lite_open_steps"] == 1
    assert found["dex_lite_open_waits"] == 1
    assert found["dex_lite_queue_depth"] == 0
    assert found["dex_lite_workers"] == 1
    assert found["dex_lite_worker_streams"] >= 1
    assert found["dex_lite_steps_failed_total execute HANDLER_ERROR"] == 1
    assert found["dex_lite_steps_completed_total execute"] == 2
    assert found["dex_lite_steps_completed_total wait_for"] == 2
    assert found["dex_lite_steps_dispatched_total execute"] == 3
    assert found["dex_lite_calls_total OK StartFlow"] == 2
    assert found["dex_lite_call_seconds_count InvokeRPC"] == 1
    assert found["dex_lite_commits_total"] == found["dex_lite_commit_seconds_count"] > 3
    assert found["dex_lite_writes_total"] >= found["dex_lite_commits_total"]
    assert found["dex_lite_data_file_bytes data"] > 4096


async def test_refused_calls_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a-token-0123456789\n")
    async with dex_lite.open_engine(
        tmp_path / "engine.db", token_file=tmp_path / "tokens", metrics_port=0
    ) as engine:
        app = App(engine.address, tmp_path, [Mailbox()])
        with pytest.raises(Exception, match="needs a token"):
            await app.client.wait_for_flow("m")
        await app.close()
        # A call is counted just after its answer has left.
        refused = "dex_lite_calls_total UNAUTHENTICATED WaitForFlow"
        while (await _samples(engine.metrics_address)).get(refused, 0) < 1:
            pass


async def test_metrics_that_others_reach_need_a_token(tmp_path: Path) -> None:
    tokens, token = tmp_path / "tokens", "a-token-0123456789"
    tokens.write_text(f"{token}\n")
    async with dex_lite.open_engine(
        tmp_path / "engine.db", token_file=tokens, metrics_host="0.0.0.0", metrics_port=0
    ) as engine:
        assert engine.metrics_address is not None
        url = f"http://127.0.0.1:{engine.metrics_address.rpartition(':')[2]}/metrics"

        async def answer(authorization: str | None) -> tuple[int, bool]:
            headers = {} if authorization is None else {"Authorization": authorization}
            async with httpx.AsyncClient() as http:
                found = await http.get(url, headers=headers)
            return found.status_code, "dex_lite_open_flows" in found.text

        for given, expected in (
            (f"Bearer {token}", (200, True)),
            (None, (401, False)),
            ("Bearer another-token-0123", (401, False)),
            (f"Basic {token}", (401, False)),
        ):
            assert await answer(given) == expected
        tokens.unlink()
        assert await answer("Bearer another-token-0123") == (503, False)


async def test_two_engines_do_not_share_counts(tmp_path: Path) -> None:
    async with (
        dex_lite.open_engine(tmp_path / "a.db", metrics_port=0) as one,
        dex_lite.open_engine(tmp_path / "b.db", metrics_port=0) as other,
    ):
        mailbox = Mailbox()
        app = App(one.address, tmp_path, [mailbox])
        await app.client.start_flow(mailbox, "m", 0)
        await app.close()
        assert (await _samples(one.metrics_address))["dex_lite_open_flows"] == 1
        assert (await _samples(other.metrics_address))["dex_lite_open_flows"] == 0


async def test_a_taken_metrics_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(dex_lite.PortInUseError, match=str(port)):
            async with dex_lite.open_engine(tmp_path / "engine.db", metrics_port=port):
                pytest.fail("it serves")


async def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(dex_lite.ExtraMissingError, match=r"dex-lite\[metrics\]"):
        async with dex_lite.open_engine(tmp_path / "engine.db", metrics_port=0):
            pytest.fail("it serves")
