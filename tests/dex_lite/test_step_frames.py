"""Steps as a Worker sees them on the wire: what a task carries, and what its frames do to the Flow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import MethodOptions, RetryPolicy
from dex_lite._wire.limits import Limits
from dex_lite._wire.options import BadRequest, step_options
from dex_lite._wire.results import ResultReader
from dex_lite_samples import shift_clock
from support.frame_flow import (
    NULL,
    SKIP,
    Frames,
    PlayedWorker,
    Task,
    close,
    deletion,
    frames,
    go,
    message,
    on_channels,
    on_timers,
    step,
    text,
    wait,
    write,
)

ONCE = pb.RetryPolicy(maximum_attempts=1)
SOON = pb.RetryPolicy(initial_interval_seconds=1, maximum_interval_seconds=1)


def _execute(**options: Any) -> pb.StepOptions:
    return pb.StepOptions(skip_wait_for=True, **options)


def _keys(request: Any) -> list[str]:
    return sorted(kv.key for kv in request.attributes)


# What a task carries


async def test_context_input_and_deadline(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        before = int(time.time())
        run_id = await engine.start(options=_execute(execute_timeout_seconds=100))
        task = await worker.task()
        context = task.request.context
        assert (task.request.flow_type, task.request.step_type) == ("Flow", "S")
        assert (context.flow_id, context.run_id, context.run_attempt) == ("f", run_id, 1)
        assert (task.step, context.from_step_execution_id) == ("S-1", "__start__")
        assert context.attempt == 1
        assert before <= context.flow_started_timestamp <= context.first_attempt_timestamp
        assert context.first_attempt_timestamp <= time.time()
        assert not context.HasField("recovery_error")
        assert not context.HasField("last_heartbeat_value")
        assert task.request.step_input == NULL  # also where nobody gave one
        assert before + 99 < task.deadline.seconds < time.time() + 101


async def test_execution_ids_and_sources(tmp_path: Path) -> None:
    """Numbered by type in the order of the decision; what the Worker says of sources is ignored."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=4)
        await engine.start()
        faked = step(
            "A",
            from_step_execution_id_internal_only="nobody-7",
            recovery_error_internal_only=pb.RecoveryErrorInfo(detail="faked"),
        )
        await (await worker.task()).execute(go(faked, "B", "A"))
        tasks = await worker.tasks(3)
        assert sorted(tasks) == ["A-1", "A-2", "B-1"]
        assert {t.request.context.from_step_execution_id for t in tasks.values()} == {"S-1"}
        assert not tasks["A-1"].request.context.HasField("recovery_error")
        call = engine.invoke("more")
        rpc = await worker.task()
        assert rpc.request.context.attempt == 0
        assert (rpc.step, rpc.request.context.from_step_execution_id) == ("", "")
        assert rpc.request.context.flow_started_timestamp > 0
        await tasks["B-1"].execute(close("dead end"))
        await rpc.rpc(step_decision=go("A", "S"))
        await call
        more = await worker.tasks(2)
        assert sorted(more) == ["A-3", "S-2"]
        assert {t.request.context.from_step_execution_id for t in more.values()} == {"__rpc/more"}


async def test_numbers_of_steps_that_never_ran_are_used_up(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start()
        await (await worker.task()).execute(go("X", "A", "A"))
        await (await worker.task()).execute(go("A", cancel_step_types=["A"]))
        assert (await worker.task()).step == "A-3"
        for number in (1, 2):
            await engine.step_ended("A", number)  # cancelled counts as ended


async def _filled(engine: Frames, worker: PlayedWorker, options: pb.StepOptions) -> Task:
    """A task of a Flow with Attributes, maps and Channels."""
    await engine.start()
    await (await worker.task()).execute(
        go(step("T", options)),
        upsert_attributes=[write(k, k) for k in ("plain", "m/a", "m/b", "n/a", "mm/a")],
        publish_to_channel=[
            message("c", "1", "own id"),
            message("d", "1"),
            message("c", "2"),
            message("q/a", "1"),
            message("q/b", "1"),
        ],
    )
    return await worker.task()


async def test_snapshot_without_selection(tmp_path: Path) -> None:
    """Plain Attributes and the sizes of all Channels, no map entries and no messages."""
    async with frames(tmp_path) as engine:
        request = (await _filled(engine, await engine.worker(), SKIP)).request
        assert _keys(request) == ["plain"]
        assert {name: info.size for name, info in request.channel_infos.items()} == {
            "c": 2,
            "d": 1,
            "q/a": 1,
            "q/b": 1,
        }
        assert not request.loaded_channel_messages
        assert not request.loaded_attribute_map_instances


@pytest.mark.parametrize("method", ["execute", "wait_for"])
async def test_snapshot_with_selection(tmp_path: Path, method: str) -> None:
    """Whole maps by ``Map/``, single entries by name; the selection is told back."""
    selectors: dict[str, Sequence[str]] = {
        "load_attribute_map_instances": ["m/", "n/none", "n/a"],
        "load_channel_names": ["c", "empty"],
        "load_channel_map_instances": ["q/"],
    }
    options = pb.StepOptions(skip_wait_for=method == "execute")
    for name, found in selectors.items():
        getattr(options, f"{method}_{name}").extend(found)
    async with frames(tmp_path) as engine:
        task = await _filled(engine, await engine.worker(), options)
        assert task.kind == method
        request = task.request
        assert _keys(request) == ["m/a", "m/b", "n/a", "plain"]
        loaded = request.loaded_channel_messages
        assert sorted(loaded) == ["c", "empty", "q/a", "q/b"]
        assert not loaded["empty"].messages
        first, second = loaded["c"].messages
        assert [m.value.string_value for m in (first, second)] == ["1", "2"]
        # Ids are the engine's, and sort as the messages do.
        assert "own id" not in (first.message_id, second.message_id)
        assert first.message_id < second.message_id
        for name, found in selectors.items():
            told = name.replace("load_", "loaded_")
            assert list(getattr(request, told)) == list(found)


async def test_retries_of_a_method_see_the_snapshot_of_its_first_attempt(tmp_path: Path) -> None:
    options = _execute(execute_retry_policy=SOON)
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        await engine.start(options=options)
        task = await worker.task()
        await engine.stub.SetAttributes(
            pb.SetAttributesRequest(flow_id="f", request_id="r", attributes=[write("k", "new")])
        )
        await engine.publish(message("c", "1"))
        await task.error("once more")
        again = await worker.task()
        assert again.request.context.attempt == 2
        assert not again.request.attributes and not again.request.channel_infos
        await again.execute(go("T"))
        later = (await worker.task()).request
        assert (_keys(later), later.channel_infos["c"].size) == (["k"], 1)


async def test_wait_for_then_execute(tmp_path: Path) -> None:
    """Locals go on to Execute, whose snapshot is the one after the wait took its messages."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=pb.StepOptions(), step_input=text("input"))
        first = await worker.task()
        assert (first.kind, first.request.step_input) == ("wait_for", text("input"))
        await first.wait_for(
            on_channels("c"),
            upsert_attributes=[write("k", "v")],
            publish_to_channel=[message("c", "1"), message("c", "2")],
            upsert_step_exe_locals=[pb.KV(key="local", value=text("kept"))],
        )
        second = await worker.task()
        assert second.kind == "execute"
        request = second.request
        assert (request.step_input, second.step, request.context.attempt) == (
            text("input"),
            "S-1",
            1,
        )
        assert [(kv.key, kv.value) for kv in request.step_exe_locals] == [("local", text("kept"))]
        assert _keys(request) == ["k"]
        assert request.channel_infos["c"].size == 1
        (result,) = request.condition_results.channel_results
        assert (result.channel_name, list(result.values)) == ("c", [text("1")])


async def test_wait_for_without_a_condition_goes_on(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=pb.StepOptions())
        await (await worker.task()).wait_for()
        task = await worker.task()
        assert task.kind == "execute"
        assert not task.request.HasField("condition_results")


# How a wait ended


async def test_condition_results(tmp_path: Path) -> None:
    """Every condition in its place; values only of the winner."""
    condition = wait(
        "any",
        timer_conditions=[
            pb.TimerCondition(duration_seconds=3_600, condition_id="hour"),
            pb.TimerCondition(duration_seconds=7_200),
        ],
        channel_conditions=[
            pb.ChannelCondition(channel_name="a", condition_id="first"),
            pb.ChannelCondition(channel_name="b", at_least=2),
            pb.ChannelCondition(channel_name="a"),
        ],
        sub_flow_conditions=[
            pb.SubFlowCondition(sub_flow_type="Child", start_step_type="S", condition_id="child")
        ],
    )
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=pb.StepOptions())
        await (await worker.task()).wait_for(condition)
        await engine.publish(*(message("b", str(number)) for number in range(3)))
        results = (await worker.task()).request.condition_results
        assert [(t.condition_id, t.condition_status) for t in results.timer_results] == [
            ("hour", pb.CONDITION_STATUS_WAITING),
            ("", pb.CONDITION_STATUS_WAITING),
        ]
        assert [
            (c.condition_id, c.channel_name, c.condition_status, [v.string_value for v in c.values])
            for c in results.channel_results
        ] == [
            ("first", "a", pb.CONDITION_STATUS_WAITING, []),
            ("", "b", pb.CONDITION_STATUS_COMPLETED, ["0", "1", "2"]),
            ("", "a", pb.CONDITION_STATUS_WAITING, []),
        ]
        (child,) = results.sub_flow_results
        assert child.flow_status == pb.FLOW_STATUS_RUNNING


async def test_a_failed_wait_for_is_told_to_execute(tmp_path: Path) -> None:
    options = pb.StepOptions(
        wait_for_retry_policy=ONCE,
        wait_for_failure_policy="WAIT_FOR_METHOD_FAILURE_POLICY_PROCEED_ON_FAILURE",
    )
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=options)
        await (await worker.task()).error("no wait", error_type="Bad")
        request = (await worker.task()).request
        assert request.condition_results.wait_for_failed
        assert (request.context.recovery_error.detail, request.context.attempt) == ("no wait", 1)


async def test_timers_are_whole_seconds_and_zero_is_due_at_once(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=pb.StepOptions())
        task = await worker.task()
        before = time.time()
        await task.wait_for(on_timers(0, 1_000))
        while not (waiting := (await engine.state()).active_step_executions[0]).timers:
            pass
        done, pending = waiting.timers
        assert done.status == pb.INTERNAL_TIMER_STATUS_FIRED
        assert pending.status == pb.INTERNAL_TIMER_STATUS_PENDING
        # Never earlier than asked for.
        assert before + 1_000 <= pending.firing_unix_timestamp_seconds <= time.time() + 1_001
        await engine.start(flow_id="g", options=pb.StepOptions())
        await (await worker.task()).wait_for(on_timers(0))
        (timer,) = (await worker.task()).request.condition_results.timer_results
        assert timer.condition_status == pb.CONDITION_STATUS_COMPLETED


async def test_timers_that_came_due_while_down_fire_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start()
        waiting = pb.StepOptions()
        await (await worker.task()).execute(go(*(step(n, waiting) for n in "ABC")))
        for seconds in (300, 100, 200):
            await (await worker.task()).wait_for(on_timers(seconds))
        while sum(bool(s.timers) for s in (await engine.state()).active_step_executions) < 3:
            pass
    shift_clock(monkeypatch, 3_600)
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        order = []
        for _ in range(3):
            task = await worker.task()
            order.append(task.step)
            await task.execute(close("dead end"))
    assert order == ["B-1", "C-1", "A-1"]


# Attempts


async def test_failures_and_what_is_shown_of_them(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=_execute(execute_retry_policy=SOON))
        first = await worker.task()
        await first.error("broken", error_type="Bad", stack_trace="line 1", retry_after_seconds=2)
        while not (shown := (await engine.state()).active_step_executions)[0].HasField(
            "last_failure_info"
        ):
            pass
        failure = shown[0].last_failure_info
        assert failure.attempt == 1
        assert failure.details.original_worker_error_detail == "broken"
        assert failure.details.original_worker_error_type == "Bad"
        assert failure.details.original_worker_error_stack_trace == "line 1"
        failed_at = time.monotonic()
        second = await worker.task()
        # What the Worker asked for, not the second of the policy.
        assert time.monotonic() - failed_at > 1.5
        one, two = first.request.context, second.request.context
        assert (two.attempt, two.first_attempt_timestamp) == (2, one.first_attempt_timestamp)
        assert second.id != first.id
        await first.execute(close("force", "stale"))  # the attempt before
        await second.execute(close("force", "counted"))
        (output,) = (await engine.result()).results
        assert output.completed_step_output == text("counted")


async def test_the_deadline_ends_an_attempt_that_beats_for_ever(tmp_path: Path) -> None:
    options = _execute(execute_timeout_seconds=1, execute_retry_policy=SOON)
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        await engine.start(options=options)
        task = await worker.task()
        while not worker.has_task:
            await task.heartbeat()
        assert await worker.canceled() == task.id
        again = await worker.task()
        assert again.request.context.attempt == 2
        await task.execute(close("force", "late"))
        await again.execute(close("force", "in time"))
        (output,) = (await engine.result()).results
        assert output.completed_step_output == text("in time")


async def test_stream_messages_are_signs_of_progress_and_pongs_are_not(tmp_path: Path) -> None:
    options = _execute(
        heartbeat_timeout_seconds=1,
        execute_retry_policy=ONCE,
        execute_failure_policy="EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP",
        execute_failure_proceed_step_type="Told",
    )
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        await engine.start(options=options)
        task = await worker.task()
        writes_until = time.monotonic() + 2.5
        while time.monotonic() < writes_until:
            await task.write("s", text("x"))
            await engine.state()
        assert not worker.has_task  # alive for more than two timeouts
        silent_since = time.monotonic()
        while not worker.has_task:
            await task.stream.send(pb.PollWorkerTaskRequest(pong=pb.PollWorkerTaskPong()))
            await engine.state()
        assert time.monotonic() - silent_since > 0.5
        told = await worker.task()
        assert told.kind == "wait_for"
        assert told.request.context.recovery_error.error_type == "TIMEOUT_TYPE_HEARTBEAT"
        assert "timeout" in told.request.context.recovery_error.detail


async def test_heartbeat_value_stays_over_stream_messages_and_restarts(tmp_path: Path) -> None:
    """It goes to the next attempt of the same method, and to no other method."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=_execute(execute_retry_policy=SOON))
        task = await worker.task()
        await task.heartbeat(text("half"))
        await task.write("s", text("x"))
        await task.error("once more")
        task = await worker.task()
        assert task.request.context.last_heartbeat_value == text("half")
        first = task.request.context.first_attempt_timestamp
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        context = (task := await worker.task()).request.context
        assert context.last_heartbeat_value == text("half")
        assert (context.attempt, context.first_attempt_timestamp) == (3, first)
        await task.execute(go("T"))
        assert not (await worker.task()).request.context.HasField("last_heartbeat_value")


async def test_nothing_of_a_failed_method_is_applied(tmp_path: Path) -> None:
    """Also nothing of a result that breaks a rule; what its wait took stays taken."""
    options = pb.StepOptions(
        execute_retry_policy=ONCE,
        execute_failure_policy="EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP",
        execute_failure_proceed_step_type="Told",
        execute_failure_proceed_step_options=SKIP,
    )
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start(options=options, step_input=text("input"))
        await (await worker.task()).wait_for(
            on_channels("c"), publish_to_channel=[message("c", "1")]
        )
        await (await worker.task()).execute(
            pb.StepDecision(),
            upsert_attributes=[write("k", "v")],
            publish_to_channel=[message("d", "1")],
        )
        told = await worker.task()
        context = told.request.context
        assert (told.step, context.from_step_execution_id) == ("Told-1", "S-1")
        assert told.request.step_input == text("input")
        assert context.recovery_error.error_type == "INVALID_RESULT"
        assert "next Steps or a close decision" in context.recovery_error.detail
        assert not told.request.attributes and not told.request.channel_infos
        await engine.step_ended("S")  # a failed execution has ended


async def test_a_worker_that_does_not_know_a_step_is_not_asked_again(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        old = await engine.worker(worker_id="old")
        await engine.start(options=_execute(execute_retry_policy=ONCE))
        await (await old.task()).reject("UNKNOWN_STEP")
        new = await engine.worker(worker_id="new")
        task = await new.task()
        assert task.request.context.attempt == 1  # none was used up
        await task.execute(close("force"))
        await engine.result()
        assert not old.has_task


# How a Flow ends


async def test_outputs_of_each_decision(tmp_path: Path) -> None:
    """Those of graceful ends gather in the order of the ends; null and nothing are none."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=5)
        await engine.start()
        await (await worker.task()).execute(go(*"ABCD"))
        tasks = await worker.tasks(4)
        await tasks["C-1"].execute(close("graceful", "c"))
        await engine.step_ended("C")
        await tasks["A-1"].execute(close("graceful", NULL))
        await tasks["B-1"].execute(close("graceful"))
        await engine.step_ended("A")
        await engine.step_ended("B")
        await tasks["D-1"].execute(close("graceful", "d"))
        result = await engine.result()
        assert result.flow_status == pb.FLOW_STATUS_COMPLETED
        assert [
            (o.completed_step_type, o.completed_step_execution_id, o.completed_step_output)
            for o in result.results
        ] == [("C", "C-1", text("c")), ("D", "D-1", text("d"))]


async def test_a_forced_end_cancels_the_others(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=3)
        for how, status in (
            ("force", pb.FLOW_STATUS_COMPLETED),
            ("fail", pb.FLOW_STATUS_FAILED),
        ):
            await engine.start(flow_id=how)
            await (await worker.task()).execute(go("A", "B"))
            tasks = await worker.tasks(2)
            await tasks["A-1"].execute(close(how, "over"))
            assert await worker.canceled() == tasks["B-1"].id
            result = await engine.result(how)
            assert result.flow_status == status
            if how == "fail":
                assert result.error_type == pb.FLOW_ERROR_TYPE_STEP_DECISION_FAILING_FLOW
                assert (result.error_message, len(result.results)) == ("over", 0)
            await tasks["B-1"].execute(close("force", "late"))


async def test_a_canceled_step_leaves_nothing(tmp_path: Path) -> None:
    """Its late heartbeats, Stream messages and result are dropped; siblings only of the same source."""
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=5)
        await engine.start()
        await (await worker.task()).execute(go("Decider", "Sibling", "Parent"))
        tasks = await worker.tasks(3)
        await tasks["Parent-1"].execute(go("Sibling"))
        cousin = await worker.task()
        assert cousin.step == "Sibling-2"
        await tasks["Decider-1"].execute(close("dead end", cancel_sibling_step_types=["Sibling"]))
        canceled = tasks["Sibling-1"]
        assert await worker.canceled() == canceled.id
        await engine.step_ended("Sibling")
        await canceled.write("s", text("late"))
        await canceled.heartbeat(text("late"))
        await canceled.execute(close("force", "late"), upsert_attributes=[write("k", "late")])
        await cousin.write("s", text("in time"))
        await cousin.execute(close("force", "in time"))
        (output,) = (await engine.result()).results
        assert output.completed_step_output == text("in time")
        assert await engine.attributes() == {}
        stored = await engine.stub.ListStreamMessages(
            pb.ListStreamMessagesRequest(
                flow_id="f", flow_type="Flow", stream_name="s", page_size=10
            )
        )
        assert [(m.value, m.source) for m in stored.messages] == [(text("in time"), "#Sibling-2")]


async def test_a_conditional_end_counts_what_an_open_step_took(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=2)
        await engine.start()
        await (await worker.task()).execute(go(step("W", pb.StepOptions()), "E"))
        tasks = await worker.tasks(2)
        await tasks["W-1"].wait_for(on_channels("c"), publish_to_channel=[message("c", "1")])
        taken = await worker.task()
        assert (taken.kind, taken.step) == ("execute", "W-1")

        def ends() -> pb.StepDecision:
            decision = close("empty", "done", next_steps=[step("E")])
            decision.close_decision.conditional_channel_names.append("c")
            return decision

        await tasks["E-1"].execute(ends())
        again = await worker.task()  # the message is in work
        assert again.step == "E-2"
        await taken.execute(close("dead end"))
        await engine.step_ended("W")
        await again.execute(ends())
        result = await engine.result()
        assert [o.completed_step_output for o in result.results] == [text("done")]


# Timeout of a Flow


def _timed(policy: str = "HANDLER", **options: Any) -> dict[str, Any]:
    start = pb.FlowStartOptions()
    if policy == "HANDLER":
        start.timeout_handler_options.CopyFrom(pb.FlowTimeoutHandlerOptions(**options))
    return {
        "flow_timeout_seconds": 1,
        "flow_timeout_policy": f"FLOW_TIMEOUT_POLICY_{policy}",
        "flow_start_options": start,
    }


async def test_a_timeout_handler_has_no_input_and_lets_steps_run(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker(streams=3)
        handler = _timed(method_timeout_seconds=50, load_channel_names=["c"])
        await engine.start(step_input=text("of the Step"), **handler)
        running = await worker.task()
        handled = await worker.task()
        request = handled.request
        assert (handled.kind, request.step_type) == ("execute", "sys:timeout_handler")
        assert (handled.step, request.context.from_step_execution_id) == (
            "sys:timeout_handler-1",
            "__start__",
        )
        assert not request.HasField("step_input")
        assert not request.HasField("condition_results")
        assert list(request.loaded_channel_names) == ["c"]
        assert time.time() + 30 < handled.deadline.seconds < time.time() + 51
        await handled.execute(close("dead end"))
        await running.execute(close("graceful", "went on"))
        (output,) = (await engine.result()).results
        assert output.completed_step_output == text("went on")


async def test_a_timeout_without_a_policy_fails_also_during_the_start_delay(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        options = _timed("UNSPECIFIED")
        options["flow_start_options"].flow_start_delay_seconds = 3_600
        await engine.start(**options)
        result = await engine.result()
        assert result.error_type == pb.FLOW_ERROR_TYPE_FLOW_TIMEOUT
        assert result.flow_status == pb.FLOW_STATUS_FAILED


async def test_a_worker_without_a_handler_refuses_it_and_another_takes_it(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        old = await engine.worker(worker_id="old")
        await engine.start("", **_timed())
        await (await old.task()).reject("UNKNOWN_STEP")
        new = await engine.worker(worker_id="new")
        await (await new.task()).execute(close("force", "handled"))
        assert (await engine.result()).flow_status == pb.FLOW_STATUS_COMPLETED


async def test_a_flow_without_steps_waits_for_rpcs(tmp_path: Path) -> None:
    async with frames(tmp_path) as engine:
        worker = await engine.worker()
        await engine.start("")
        state = await engine.state()
        assert not state.active_step_executions and not state.queued_steps
        call = engine.invoke()
        await (await worker.task()).rpc(step_decision=go("S"))
        await call
        task = await worker.task()
        assert task.request.context.from_step_execution_id == "__rpc/rpc"
        await task.execute(close("graceful"))
        assert (await engine.result()).flow_status == pb.FLOW_STATUS_COMPLETED


# Options


def _parsed(options: pb.StepOptions, *, is_async: bool = False, floor_ms: int = 1_000) -> Any:
    return step_options(options, Limits(), is_async_default=is_async, heartbeat_floor_ms=floor_ms)


def test_defaults_of_methods() -> None:
    parsed = _parsed(pb.StepOptions())
    assert parsed.wait_for == parsed.execute == MethodOptions()
    assert parsed.execute.retry == RetryPolicy(1_000, 2.0, 100_000, 0, 4 * 3_600_000)
    assert (parsed.execute.timeout_ms, parsed.heartbeat_ms) == (2 * 3_600_000, 60_000)


def test_a_heartbeat_timeout_has_a_floor() -> None:
    assert _parsed(pb.StepOptions(heartbeat_timeout_seconds=3), floor_ms=10_000).heartbeat_ms == (
        10_000
    )
    assert _parsed(pb.StepOptions(heartbeat_timeout_seconds=30), floor_ms=10_000).heartbeat_ms == (
        30_000
    )


def test_durability_of_the_step_then_of_the_config_then_sync() -> None:
    plain = pb.StepOptions()
    assert not _parsed(plain).execute.is_async
    assert _parsed(plain, is_async=True).execute.is_async
    sync = pb.StepOptions(execute_durability_override="STEP_DURABILITY_SYNC")
    assert not _parsed(sync, is_async=True).execute.is_async
    assert _parsed(sync, is_async=True).wait_for.is_async
    asynchronous = pb.StepOptions(wait_for_durability_override="STEP_DURABILITY_ASYNC")
    assert _parsed(asynchronous).wait_for.is_async
    assert not _parsed(asynchronous).execute.is_async


def _close(how: str, *channels: str, steps: int = 0, value: pb.Value | None = None) -> Any:
    decision = close(how, value, next_steps=[step("S")] * steps)
    decision.close_decision.conditional_channel_names.extend(channels)
    return {"step_decision": decision}


BAD_RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "dead end with an output": (_close("dead end", value=text("x")), "must not have an output"),
    "Channels repeat": (_close("empty", "c", "c", steps=1), "repeat 'c'"),
    "no Channel name": (_close("empty", "", steps=1), "needs Channels"),
    "a Channel of a map": (_close("empty", "m/a", steps=1), "must not contain '/'"),
    "reserved Step": ({"step_decision": go("sys:timeout_handler")}, "must not contain ':'"),
    "negative option": (
        {"step_decision": go(step("S", pb.StepOptions(execute_timeout_seconds=-1)))},
        "must not be negative",
    ),
    "cancelled types repeat": (
        {"step_decision": go("S", cancel_step_types=["A", "A"])},
        "repeat 'A'",
    ),
    "cancelled siblings repeat": (
        {"step_decision": go("S", cancel_sibling_step_types=["A", "A"])},
        "repeat 'A'",
    ),
    "Attribute twice": (
        {"step_decision": go("S"), "upsert_attributes": [write("k", "1"), write("k", "2")]},
        "repeat 'k'",
    ),
    "Attribute without a value": (
        {"step_decision": go("S"), "upsert_attributes": [pb.AttributeWrite(key="k")]},
        "'k' has no value",
    ),
    "index of another type": (
        {
            "step_decision": go("S"),
            "upsert_attributes": [
                pb.AttributeWrite(
                    key="k",
                    value=text("x"),
                    index_config=pb.IndexConfig(enable=True, type="INDEX_TYPE_INT"),
                )
            ],
        },
        "has type KEYWORD",
    ),
    "deletion without an id": (
        {"step_decision": go("S"), "delete_from_channel": [deletion("c", "")]},
        "needs a Channel name and a message id",
    ),
    "blob": (
        {
            "step_decision": go("S"),
            "publish_to_channel": [
                pb.ChannelMessage(
                    channel_name="c", value=pb.Value(internal_blob_id_for_obj_value="b")
                )
            ],
        },
        "a blob",
    ),
    "local twice": (
        {
            "step_decision": go("S"),
            "upsert_step_exe_locals": [pb.KV(key="k", value=NULL)] * 2,
        },
        "repeat 'k'",
    ),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_results_that_break_a_rule(name: str) -> None:
    fields, told = BAD_RESULTS[name]
    reader = ResultReader(Limits(), 1_000, {"k": pb.INDEX_TYPE_KEYWORD})
    with pytest.raises(BadRequest, match=told):
        reader.execute(pb.InvokeExecuteMethodResponse(**fields), is_async_default=False)


def test_a_step_type_that_no_worker_has_told_of_is_taken() -> None:
    reader = ResultReader(Limits(), 1_000, {})
    decision = pb.InvokeExecuteMethodResponse(step_decision=go("Unheard"))
    (movement,) = reader.execute(decision, is_async_default=False).next_steps
    assert movement.step_type == "Unheard"
