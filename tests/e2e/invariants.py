"""What must hold for a chaos session, however often something was killed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.chaos_agent import CALLS, ledger, requests


def model_requests(data_dir: Path) -> list[list[dict[str, Any]]]:
    """The contents of every request the model got, oldest first."""
    return [entry["contents"] for entry in requests(data_dir).entries()]


def responses_of_last_round(contents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The function responses in the last content of a request, in order."""
    return [
        part["function_response"]
        for part in contents[-1].get("parts", [])
        if "function_response" in part
    ]


def check_executions(data_dir: Path, orders: Sequence[str]) -> dict[str, Counter[str]]:
    """Invariants 3 and 5: executions within each effect's bound; returns executions by tool and order."""
    executed: dict[str, Counter[str]] = {name: Counter() for name in CALLS}
    keys: dict[str, set[str]] = {}
    for entry in ledger(data_dir).entries():
        executed[entry["name"]][entry["order"]] += 1
        if entry["name"] == "put":
            keys.setdefault(entry["order"], set()).add(entry["key"])
    for order in orders:
        assert executed["charge"][order] <= 1, f"charge ran {executed['charge'][order]} times"
        assert executed["notify"][order] <= 1, f"notify ran {executed['notify'][order]} times"
        assert executed["look"][order] <= 3, f"look ran {executed['look'][order]} times"
        assert executed["put"][order] <= 3, f"put ran {executed['put'][order]} times"
        assert len(keys.get(order, set())) <= 1, f"put had several keys: {keys[order]}"
    assert {order for counts in executed.values() for order in counts} <= set(orders)
    return executed


def check_requests(data_dir: Path, executed: dict[str, Counter[str]]) -> None:
    """Invariants 3, 4, 6 and 8, as the model saw them."""
    for contents in model_requests(data_dir):
        for call_content, answer_content in itertools.pairwise(contents):
            calls = [p["function_call"] for p in call_content["parts"] if "function_call" in p]
            if not calls:
                continue
            answers = [p["function_response"] for p in answer_content["parts"]]
            assert [a["name"] for a in answers] == [c["name"] for c in calls]
            for call, answer in zip(calls, answers, strict=True):
                _check_answer(call, answer["response"], executed)


def _check_answer(
    call: dict[str, Any], response: dict[str, Any], executed: dict[str, Counter[str]]
) -> None:
    name, order = call["name"], call["args"]["order"]
    error = response.get("error")
    if error is None:
        value = next(iter(response.values()))
        assert order in value, f"{name}({order}) was answered with {response}"
        assert executed[name][order] >= 1, f"{name}({order}) succeeded without running"
    elif "did not run" in error:
        assert executed[name][order] == 0, f"{name}({order}) ran and was recorded as not run"
    elif name in ("charge", "notify", "put"):
        assert "unknown" in error, f"{name}({order}) ended as {error}"
    else:
        raise AssertionError(f"{name}({order}) failed: {error}")


def check_messages(messages: Sequence[Any], orders: Sequence[str]) -> None:
    """Invariant 1: each acknowledged message in exactly one turn; history equals one clean run a turn."""
    users = [message for message in messages if message.role == "user"]
    assert [message.text for message in users] == list(orders)
    assert len({message.turn_id for message in users}) == len(orders)
    for user in users:
        turn = [message for message in messages if message.turn_id == user.turn_id]
        roles = [str(message.role) for message in turn]
        assert roles == ["user", "assistant", "tool", "assistant"], roles


def check_no_answer_asked_again(data_dir: Path, kills: int) -> None:
    """Invariant 2: the same request comes again only for a call that a kill interrupted."""
    counted = Counter(json.dumps(contents, sort_keys=True) for contents in model_requests(data_dir))
    repeated = sum(count - 1 for count in counted.values())
    assert repeated <= kills, f"{repeated} repeated model requests after {kills} kills"
