"""Every rule of `dex-lite check` about runs speaks when it is broken, in its own words, and no other one then does.

A real data file is damaged so that one rule is broken. Some rules no facts can break, because those of the ledger come
first or folding cannot give such a state; they stand against faults of the machine. There the state that a real file
gives is damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dex_lite._machine.decide import SKIPS_KEPT
from dex_lite._machine.facts import (
    AttemptBegun,
    AttemptFailed,
    AttemptGivenBack,
    AttributesWritten,
    CompletionAsked,
    ExecuteEntered,
    HeartbeatKept,
    LocksTaken,
    MessagesDeleted,
    MessagesPublished,
    MethodCompleted,
    MethodFailed,
    RetryFell,
    RunClosed,
    RunStarted,
    SkipKept,
    StepEnded,
    StepScheduled,
    SubFlowEnded,
    TimerFired,
    WaitBegun,
    WaitWon,
)
from dex_lite._machine.fold import RPC_ANSWERS_KEPT, fold
from dex_lite._machine.invariants import faults
from dex_lite._machine.ledger import Ledger
from dex_lite._machine.model import (
    TIMEOUT_HANDLER_STEP,
    Attempt,
    Consumed,
    Failure,
    FlowEnd,
    KeptSkip,
    Message,
    Movement,
    RetryPolicy,
    RpcAnswer,
    RunState,
)
from support.damage import DataFile, Edit, Facts, append, change, make_file

NULL = b"@\x00"
FAILURE = Failure("a fault", "E", attempt=1)
_kept: list[bytes] = []


@pytest.fixture
async def file(tmp_path: Path) -> DataFile:
    if not _kept:
        _kept.append(await make_file(tmp_path))
    return DataFile(tmp_path / "damaged.db", _kept[0])


def begun(execution_id: str) -> AttemptBegun:
    return AttemptBegun(execution_id, "token", "w", 1)


def scheduled(execution_id: str, step_type: str = "") -> StepScheduled:
    step_type = step_type or execution_id.rpartition("-")[0]
    return StepScheduled(execution_id, "__start__", Movement(step_type, NULL), 1)


def completed(execution_id: str, method: str) -> MethodCompleted:
    step_type = execution_id.rpartition("-")[0]
    return MethodCompleted(execution_id, "__start__", step_type, method, 1, 1, 1)  # type: ignore[arg-type]


def wait_again(timers_due: tuple[int, ...]) -> Edit:
    """The wait of W-1, as another fact."""

    def edit(facts: Facts) -> Facts:
        (found,) = [fact for fact in facts if isinstance(fact, WaitBegun)]
        return [*facts, replace(found, timers_due=timers_due)]

    return edit


def oldest(channel: str, *values: bytes) -> WaitWon:
    return WaitWon("W-1", (Consumed(0, channel, values),))


# The facts of a run, one after the other. The name of the run is left out in front of the text.
LEDGER: dict[str, tuple[str, Edit, str]] = {
    "after the end": (
        "done",
        append(CompletionAsked()),
        "a CompletionAsked comes after the end of the run",
    ),
    "unknown Step": (
        "parked",
        append(begun("P-2")),
        "a AttemptBegun is of Step P-2, which is not open",
    ),
    "scheduled again": (
        "parked",
        append(scheduled("P-1")),
        "Step P-1: it is scheduled out of turn",
    ),
    "scheduled ahead": (
        "parked",
        append(scheduled("P-3")),
        "Step P-3: it is scheduled out of turn",
    ),
    "locks while waiting": (
        "waits",
        append(LocksTaken("W-1")),
        "Step W-1: it takes locks and does not want any now",
    ),
    "locks twice": (
        "locks",
        append(LocksTaken("Keep-1")),
        "Step Keep-1: it takes locks and does not want any now",
    ),
    "locks of another": (
        "locks",
        append(LocksTaken("Want-1")),
        "Step Want-1: it locks Attribute 'k', which another Step has locked",
    ),
    "begun without locks": (
        "locks",
        append(begun("Want-1")),
        "Step Want-1: an attempt begins that may not begin now",
    ),
    "begun while waiting": (
        "waits",
        append(begun("W-1")),
        "Step W-1: an attempt begins that may not begin now",
    ),
    "begun before its time": (
        "again",
        append(begun("S-1")),
        "Step S-1: an attempt begins that may not begin now",
    ),
    "one attempt too many": (
        "parked",
        append(begun("P-1"), AttemptFailed("P-1", FAILURE), begun("P-1")),
        "Step P-1: attempt 2 of wait_for is made, and 1 are permitted",
    ),
    "one attempt too many without a beginning": (
        "parked",
        append(
            begun("P-1"),
            AttemptFailed("P-1", FAILURE),
            AttemptFailed("P-1", FAILURE, is_counted_twice=True),
        ),
        "Step P-1: attempt 2 of wait_for is made, and 1 are permitted",
    ),
    "failed without an attempt": (
        "parked",
        append(AttemptFailed("P-1", FAILURE)),
        "Step P-1: a AttemptFailed is of an attempt, and none runs",
    ),
    "given back without an attempt": (
        "parked",
        append(AttemptGivenBack("P-1")),
        "Step P-1: a AttemptGivenBack is of an attempt, and none runs",
    ),
    "heartbeat without an attempt": (
        "parked",
        append(HeartbeatKept("P-1")),
        "Step P-1: a HeartbeatKept is of an attempt, and none runs",
    ),
    "completed without an attempt": (
        "parked",
        append(completed("P-1", "wait_for")),
        "Step P-1: a MethodCompleted is of an attempt, and none runs",
    ),
    "completed in another method": (
        "parked",
        append(begun("P-1"), completed("P-1", "execute")),
        "Step P-1: execute ends, and is not at work",
    ),
    "failed in another method": (
        "parked",
        append(MethodFailed("P-1", "__start__", "P", "execute", 1, 1, 1, FAILURE)),
        "Step P-1: execute ends, and is not at work",
    ),
    "retry without a plan": (
        "parked",
        append(RetryFell("P-1")),
        "Step P-1: a retry is due that was not planned",
    ),
    "execute twice": (
        "parked",
        append(ExecuteEntered("P-1"), ExecuteEntered("P-1")),
        "Step P-1: it goes on to its Execute for the second time",
    ),
    "wait twice": ("waits", wait_again((1, 1)), "Step W-1: it begins to wait for the second time"),
    "other timers": (
        "waits",
        change(WaitBegun, timers_due=(1,)),
        "Step W-1: it waits for 2 timers, 1 are set",
    ),
    "timer of no wait": (
        "parked",
        append(TimerFired("P-1", 0)),
        "Step P-1: timer 0 fires, and nothing waits for it",
    ),
    "timer beyond the wait": (
        "waits",
        append(TimerFired("W-1", 2)),
        "Step W-1: timer 2 fires, and nothing waits for it",
    ),
    "timer twice": (
        "waits",
        append(TimerFired("W-1", 1), TimerFired("W-1", 1)),
        "Step W-1: timer 1 fires twice",
    ),
    "SubFlow of no wait": (
        "waits",
        append(SubFlowEnded("W-1", 0, FlowEnd(2))),
        "Step W-1: SubFlow 0 ends, and nothing waits for it",
    ),
    "SubFlow twice": (
        "parent",
        append(SubFlowEnded("Parent-1", 0, FlowEnd(2)), SubFlowEnded("Parent-1", 0, FlowEnd(2))),
        "Step Parent-1: SubFlow 0 ends twice",
    ),
    "won without a wait": (
        "parked",
        append(WaitWon("P-1")),
        "Step P-1: a wait is won that had not begun, or twice",
    ),
    "not the oldest": (
        "waits",
        append(oldest("d", b"\x1a\x012")),
        "Step W-1: it consumes messages that are not the oldest of Channel 'd'",
    ),
    "more than there are": (
        "waits",
        append(oldest("c", b"\x1a\x011", b"\x1a\x011")),
        "Step W-1: it consumes messages that are not the oldest of Channel 'c'",
    ),
    "published again": (
        "parked",
        append(MessagesPublished((("c", "2", NULL), ("c", "2", NULL)))),
        "message 2 is published again, or out of turn, to 'c'",
    ),
    "deleted from nowhere": (
        "waits",
        append(MessagesDeleted((("d", "unknown"),))),
        "message unknown is deleted, and Channel 'd' does not hold it",
    ),
}


@pytest.mark.parametrize("name", LEDGER)
def test_a_fact_that_cannot_follow(file: DataFile, name: str) -> None:
    flow_id, edit, told = LEDGER[name]
    file.edit(edit, flow_id)
    (fault,) = file.faults()
    number, _, text = fault.partition(": ")
    assert number.endswith(f" of {file.named(flow_id)}") and text == told


# What the facts of a run give.
STATES: dict[str, tuple[str, Edit, str]] = {
    "error type": (
        "done",
        change(RunClosed, error_type=1),
        "status 2 does not go with error type 1",
    ),
    "hard-delete Attribute": (
        "secret",
        append(AttributesWritten((("secret", None),))),
        "hard-delete Attribute 'secret' is no Attribute",
    ),
    "not completed": (
        "parked",
        append(StepEnded("P-1", "completed"), CompletionAsked()),
        "no Step is left, and it has not completed",
    ),
    "timeout": (
        "parked",
        append(scheduled(f"{TIMEOUT_HANDLER_STEP}-1")),
        "a timeout is waited for that the Flow does not have, or twice",
    ),
    "too many skips": (
        "parked",
        append(*[SkipKept(KeptSkip("P-1", str(n))) for n in range(SKIPS_KEPT + 1)]),
        f"{SKIPS_KEPT + 1} skips of timers are kept",
    ),
    "skip of a wait": (
        "waits",
        append(SkipKept(KeptSkip("W-1", "t"))),
        "a skip of a timer of Step W-1 outlives the beginning of its wait",
    ),
    "skip of a Step that has ended": (
        "locks",
        append(SkipKept(KeptSkip("S-1", "t"))),
        "a skip of a timer of Step S-1 outlives the beginning of its wait",
    ),
    "name of a Step": (
        "parked",
        append(scheduled("Q-1", "R")),
        "Step Q-1: it is named 'Q-1' and of type 'R'",
    ),
    "needless locks": (
        "parked",
        append(LocksTaken("P-1")),
        "Step P-1: it holds locks that it does not need",
    ),
    "met by a timer": (
        "waits",
        append(TimerFired("W-1", 1)),
        "Step W-1: its wait is met, and it has not gone on",
    ),
    "met by messages": (
        "waits",
        append(MessagesPublished((("c", "9", NULL),))),
        "Step W-1: its wait is met, and it has not gone on",
    ),
    "met by a SubFlow": (
        "parent",
        append(SubFlowEnded("Parent-1", 0, FlowEnd(2))),
        "Step Parent-1: its wait is met, and it has not gone on",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_cannot_be(file: DataFile, name: str) -> None:
    flow_id, edit, told = STATES[name]
    file.edit(edit, flow_id)
    assert file.faults() == [f"{file.named(flow_id)}: {told}"]


# Runs that have to fit together.


def other_start(**changed: object) -> Edit:
    def edit(facts: Facts) -> Facts:
        started = facts[0]
        assert isinstance(started, RunStarted)
        return [replace(started, **changed), *facts[1:]]

    return edit


def policy(**changed: int) -> RetryPolicy:
    return RetryPolicy(initial_ms=3_600_000, maximum_ms=3_600_000, **changed)


def test_a_completed_run_is_followed_by_none(file: DataFile) -> None:
    after = file.run_id("again")
    file.edit(change(RunClosed, next_run_id=after), "done")
    assert file.faults() == [f"{file.named('done')}: status 2 is followed by another run"]


@pytest.mark.parametrize(
    ("place", "edit", "row", "told"),
    [
        (1, {"first_run_id": "{after}"}, True, "run {after} follows it, and is of another Flow or chain"),
        (1, {"run_attempt": 3}, True, "it is attempt 1, and attempt 3 follows, run {after}"),
        (0, {"retry": None}, False, "run {after} tries it again, and the Flow has no retry policy"),
        (0, {"retry": policy(maximum_attempts=1)}, False, "run {after} tries it again, and no attempt was left"),
        (1, {"attributes": (("a", NULL),)}, False, "run {after} tries it again, and began in another way"),
    ],
)  # fmt: skip
def test_a_retry_that_does_not_follow(
    file: DataFile, place: int, edit: dict[str, object], row: bool, told: str
) -> None:
    after = file.run_id("again")
    changed = {k: v.format(after=after) if isinstance(v, str) else v for k, v in edit.items()}
    file.edit(other_start(**changed), "again", place)
    if row:
        ((name, value),) = changed.items()
        file.sql(f"UPDATE runs SET {name} = ? WHERE run_id = ?", value, after)
    assert file.faults() == [f"{file.named('again', 0)}: {told.format(after=after)}"]


def test_a_run_that_is_followed_by_one_that_is_gone(file: DataFile) -> None:
    file.edit(change(RunClosed, next_run_id="gone"), "again", 0)
    assert file.faults() == [f"{file.named('again', 0)} is followed by run gone, which is missing"]


def test_a_wait_for_a_sub_flow_that_does_not_know_of_it(file: DataFile) -> None:
    sub_flow = "SubFlow:parent-Parent-1-0"
    file.edit(other_start(parents=()), sub_flow)
    told = f"waits for SubFlow {sub_flow!r}, which does not know of it"
    assert file.faults() == [f"{file.named('parent')} {told}"]


# What facts cannot give: the state is damaged itself.


def state_of(facts: Facts) -> RunState:
    state: RunState | None = None
    for fact in facts:
        state = fold(state, fact)
    assert state is not None
    return state


def _answers(state: RunState) -> None:
    state.rpc_answers = {str(n): RpcAnswer("", NULL) for n in range(RPC_ANSWERS_KEPT + 1)}


def _deletions(state: RunState) -> None:
    state.deletions_done = {str(n): True for n in range(RPC_ANSWERS_KEPT + 1)}


def _leftover(state: RunState) -> None:
    state.channels["c"] = [Message("1", NULL)]


def _empty_channel(state: RunState) -> None:
    state.channels["e"] = []


def _wrong_order(state: RunState) -> None:
    state.channels["d"].reverse()


def _unknown_number(state: RunState) -> None:
    state.counters["P"] = 0


def _attempts(state: RunState) -> None:
    state.steps["P-1"].attempts_used = 2


def _early_attempt(state: RunState) -> None:
    step = state.steps["P-1"]
    step.attempt, step.attempts_used, step.retry_at_ms = Attempt("t", "w", 1), 1, 1


def _unlocked_attempt(state: RunState) -> None:
    step = state.steps["Want-1"]
    step.attempt, step.attempts_used = Attempt("t", "w", 1), 1


def _uncounted_attempt(state: RunState) -> None:
    state.steps["P-1"].attempt = Attempt("t", "w", 1)


def _no_condition(state: RunState) -> None:
    state.steps["W-1"].condition = None


def _no_timers(state: RunState) -> None:
    state.steps["W-1"].timers = []


def _no_sub_flows(state: RunState) -> None:
    state.steps["Parent-1"].sub_flow_ends = []


def _two_holders(state: RunState) -> None:
    state.steps["Want-1"].has_locks = True


def _no_holder(state: RunState) -> None:
    state.steps["Keep-1"].has_locks = False


def _nothing(state: RunState) -> None:
    pass


@pytest.mark.parametrize(
    ("flow_id", "damage", "rpc_locks", "told"),
    [
        ("parked", _answers, None, f"{RPC_ANSWERS_KEPT + 1} RPC answers are kept"),
        ("parked", _deletions, None, f"{RPC_ANSWERS_KEPT + 1} answered deletions are kept"),
        ("done", _leftover, None, "a closed run has Steps, messages or skips of timers"),
        ("waits", _empty_channel, None, "Channel 'e' is kept without messages"),
        (
            "waits",
            _wrong_order,
            None,
            "messages of Channel 'd' are not in the order in which they were published",
        ),
        ("parked", _unknown_number, None, "Step P-1: its number is none of the 0 that were given"),
        ("parked", _attempts, None, "Step P-1: 2 attempts were made, and 1 are permitted"),
        ("parked", _early_attempt, None, "Step P-1: an attempt runs while it waits"),
        ("locks", _unlocked_attempt, None, "Step Want-1: an attempt runs without its locks"),
        ("parked", _uncounted_attempt, None, "Step P-1: an attempt runs that is not counted"),
        ("waits", _no_condition, None, "Step W-1: it waits for nothing"),
        (
            "waits",
            _no_timers,
            None,
            "Step W-1: its timers or SubFlows are not those of its condition",
        ),
        (
            "parent",
            _no_sub_flows,
            None,
            "Step Parent-1: its timers or SubFlows are not those of its condition",
        ),
        ("locks", _two_holders, None, "Attribute 'k' is locked by Keep-1 and Want-1"),
        ("locks", _nothing, frozenset({"k"}), "Attribute 'k' is locked by Keep-1 and an RPC"),
        ("locks", _no_holder, frozenset(), "Step Keep-1 waits for locks that are free"),
    ],
)
def test_a_state_that_no_facts_give(
    file: DataFile,
    flow_id: str,
    damage: Callable[[RunState], None],
    rpc_locks: frozenset[str] | None,
    told: str,
) -> None:
    state = state_of(file.facts(file.run_key(flow_id)))
    assert list(faults(state, rpc_locks and frozenset())) == []
    damage(state)
    assert list(faults(state, rpc_locks)) == [told]


def _one_message_less(state: RunState) -> None:
    del state.channels["c"]


def _one_attempt_more(state: RunState) -> None:
    state.steps["Keep-1"].attempts_used += 1


@pytest.mark.parametrize(
    ("flow_id", "damage", "told"),
    [
        (
            "waits",
            _one_message_less,
            "Channel 'c' holds 0 messages; by what was published, consumed and deleted it should hold 1",
        ),
        ("locks", _one_attempt_more, "Step Keep-1 counts 1 attempts, and 0 were made"),
    ],
)
def test_a_state_that_is_not_the_sum_of_the_facts(
    file: DataFile, flow_id: str, damage: Callable[[RunState], None], told: str
) -> None:
    ledger, state = _followed(file, flow_id)
    assert list(ledger.imbalance(state)) == []
    damage(state)
    assert list(ledger.imbalance(state)) == [told]


def test_messages_that_were_counted_wrongly(file: DataFile) -> None:
    ledger, state = _followed(file, "waits")
    ledger.published += 1
    assert list(ledger.imbalance(state)) == [
        "4 messages were published; 0 consumed, 0 deleted, 0 dropped at the end, 3 wait"
    ]


def test_a_run_begins_once(file: DataFile) -> None:
    facts = file.facts(file.run_key("parked"))
    for before, fact in ((None, facts[1]), (state_of(facts), facts[0])):
        told = f"a {type(fact).__name__} is not what a run begins or goes on with"
        assert list(Ledger().follow(before, fact)) == [told]


def _followed(file: DataFile, flow_id: str) -> tuple[Ledger, RunState]:
    ledger = Ledger()
    state: RunState | None = None
    for fact in file.facts(file.run_key(flow_id)):
        assert list(ledger.follow(state, fact)) == []
        state = fold(state, fact)
    assert state is not None
    return ledger, state


def test_the_file_is_whole_without_damage(file: DataFile) -> None:
    assert file.faults() == []
