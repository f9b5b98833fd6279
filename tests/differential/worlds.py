"""Both sides' worlds: what the models answer, and what was asked, called back and executed.

A session's world must outlive its Worker, so it is a file. Its model answers by how often an agent
was asked before, which the file tells also after a kill: an attempt of ``RunModel`` begins where
the Steps before it have ended, whatever earlier attempts of the same Step had asked.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents._contract import Json
from dex_agents.testing import Ledger
from dex_agents_google_adk import idempotency_key_for_tool_call
from differential import kit
from support.tree_oracle import Scripts, TreeWorld

_run: ContextVar[str] = ContextVar("run", default="")


def numbered(step: Any, prefix: str) -> Any:
    """A scripted answer whose calls have ids of their own."""
    if isinstance(step, types.Part):
        return numbered([step], prefix)
    if not isinstance(step, list) or not all(isinstance(part, types.Part) for part in step):
        return step
    parts = [part.model_copy(deep=True) for part in step]
    for index, part in enumerate(parts):
        if part.function_call is not None and part.function_call.id is None:
            part.function_call.id = f"{prefix}-{index}"
    return parts


class SideWorld(TreeWorld):
    """Of one side.

    Args:
        has_ids: Whether every call gets an id that both sides know.
    """

    is_plain = False

    def __init__(self, scripts: Scripts, *, has_ids: bool) -> None:
        super().__init__(scripts, cyclic=True)
        self.has_ids = has_ids

    def step_at(self, agent: str, index: int) -> Any:
        """See :class:`TreeWorld`."""
        step = super().step_at(agent, index)
        return numbered(step, f"{agent}-{index}") if self.has_ids else step


class PlainWorld(SideWorld):
    """Of plain ADK: in memory.

    Args:
        replaced: See :func:`kit.plain_tool`.
    """

    is_plain = True

    def __init__(
        self, scripts: Scripts, *, has_ids: bool, replaced: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(scripts, has_ids=has_ids)
        self._replaced = replaced or {}

    def make_tools(self, agent: str) -> list[BaseTool]:
        """See :class:`TreeWorld`."""
        kinds = kit.kinds_of(agent, self.scripts)
        return [kit.plain_tool(kind, agent, self.ran_in, self._replaced) for kind in kinds]


class SessionWorld(SideWorld):
    """Of a session: a file that no kill can touch."""

    def __init__(self, scripts: Scripts, path: Path, *, has_ids: bool) -> None:
        super().__init__(scripts, has_ids=has_ids)
        self._ledger = Ledger(path)
        self._entries = self._ledger.entries()
        self._calls: dict[str, Counter[str]] = {}

    def attempt_begins(self, step_execution_id: str) -> None:
        """An attempt of ``RunModel`` begins in this context."""
        run = uuid.uuid4().hex
        _run.set(run)
        before = Observed.of(self._entries, except_step=step_execution_id)
        self._calls[run] = Counter(agent for agent, _ in before.asked)
        self._record("run", run=run, step=step_execution_id)

    def next_step(self, agent: str, request: Json) -> Any:
        """See :class:`TreeWorld`."""
        calls = self._calls[_run.get()]
        index = calls[agent]
        calls[agent] += 1
        self._record("asked", run=_run.get(), agent=agent, request=request)
        return self.step_at(agent, index)

    def log(self, entry: str) -> None:
        """See :class:`World`."""
        self._record("callback", run=_run.get(), entry=entry)

    def make_tools(self, agent: str) -> list[BaseTool]:
        """See :class:`TreeWorld`."""
        kinds = kit.kinds_of(agent, self.scripts)
        return [kit.session_tool(kind, agent, self.ran_in) for kind in kinds]

    def ran_in(self, context: ToolContext, name: str, **arguments: Any) -> int:
        """See :class:`World`."""
        key = idempotency_key_for_tool_call(context)
        self._record("ran", tool=name, arguments=arguments, key=key)
        return sum(entry["name"] == "ran" and entry["key"] == key for entry in self._entries)

    def _record(self, name: str, **fields: Any) -> None:
        # One Worker at a time has a session, so it need not read again what it has written.
        self._ledger.record(name, **fields)
        self._entries.append({"name": name, **fields})


@dataclass
class Observed:
    """What a session's world saw, without what the attempts did that were thrown away.

    Attributes:
        asked: Agents and requests, in order.
        executed: How often each call ran, by tool, arguments as JSON and idempotency key.
    """

    asked: list[tuple[str, Json]] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)
    executed: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, entries: Iterable[dict[str, Any]], except_step: str = "") -> Observed:
        """What a ledger's entries say; ``except_step`` leaves one Step execution out."""
        steps: dict[str, list[_Run]] = {}
        runs: dict[str, _Run] = {}
        seen = cls()
        for entry in entries:
            if entry["name"] == "ran":
                arguments = json.dumps(entry["arguments"])
                seen.executed[entry["tool"], arguments, entry["key"]] += 1
            elif entry["name"] == "run":
                runs[entry["run"]] = _Run()
                steps.setdefault(entry["step"], []).append(runs[entry["run"]])
            elif entry["name"] == "asked":
                runs[entry["run"]].asked.append((entry["agent"], entry["request"]))
            elif entry["run"] in runs:
                runs[entry["run"]].callbacks.append(entry["entry"])
        for step, attempts in steps.items():
            if step != except_step:
                seen.asked += _asked_in_step(attempts)
                seen.callbacks += attempts[-1].callbacks
        return seen


@dataclass
class _Run:
    asked: list[tuple[str, Json]] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)


def _asked_in_step(attempts: Sequence[_Run]) -> list[tuple[str, Json]]:
    """The last attempt's requests, and those of agents whose answers it had from an earlier one."""
    found = list(attempts[-1].asked)
    for attempt in reversed(attempts[:-1]):
        known = {agent for agent, _ in found}
        found += [(agent, request) for agent, request in attempt.asked if agent not in known]
    return found
