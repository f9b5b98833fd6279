"""Plays a session again and again, with a kill at each place where one may hurt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dex_agents._arguments import (
    check_callable,
    check_file_name,
    check_function_path,
    check_name,
    check_texts,
    folder_of,
    shown,
)
from dex_agents._session.client import AgentSessionClient
from dex_agents._session.flow import AgentSessionFlow
from dex_agents._session.views import PendingInterrupt
from dex_agents._worker_main import build_flows, call_builder
from dex_agents.testing._client import session_client
from dex_agents.testing._compare import CrashReport, Run, compare_runs, read_run, recorded_names
from dex_agents.testing._engine import PrivateEngine, private_engine
from dex_agents.testing._failpoints import is_failpoint_reached
from dex_agents.testing._ledger import Ledger
from dex_agents.testing._script import (
    UserAnswer,
    approve_all,
    check_answering,
    check_messages,
    play_session,
)
from dex_agents.testing._worker_process import WorkerProcess

_LOGGER = logging.getLogger("dex_agents")
_LOG = "failpoints.log"
_MOST_PLACES = 500


async def explore_crashes(
    flow: str | Callable[..., Any],
    messages: Sequence[str],
    *,
    answer: Callable[[PendingInterrupt], UserAnswer] = approve_all,
    ledger: str = "ledger.jsonl",
    repeatable: Collection[str] = (),
    asked: str = "asked",
    ignore: Collection[str] = (),
    kill: Literal["worker", "engine"] = "worker",
    places: Callable[[str], bool] = lambda place: True,
    data_dir: str | os.PathLike[str] | None = None,
    timeout_s: float = 60.0,
) -> CrashReport:
    """Play a session once, then once for every durable boundary with a SIGKILL there, and compare.

    Each run is a session of its own, on a real engine and in a Worker process. The model must answer
    from the request alone, as any process may have to go on with the session. The logger
    ``dex_agents`` has a line at level INFO for each place.

    Args:
        flow: A function at the top level of a module that builds the Flow, or
            ``"module:function"``; called with the data folder as a ``Path`` if it takes an
            argument.
        messages: What the user sends, one turn each.
        answer: What a person answers to an interrupt.
        ledger: Name of the file in the data folder to which the tools write what they did with
            :class:`Ledger`, one entry an execution.
        repeatable: Names of entries that a kill may repeat: those of reads and idempotent writes.
        asked: Name of the entries that hold what a model was asked, if it writes any.
        ignore: Fields of entries that are other ones in every run, such as times.
        kill: Which process dies.
        places: Chooses among the places that the undisturbed session passes, such as
            ``"tool.after_call#2"``.
        data_dir: The data folder; a temporary one by default.
        timeout_s: For each run, in seconds.

    Raises:
        TypeError: An argument is of another type.
        ValueError: One is out of its range, ``messages`` is empty, ``places`` chooses none,
            ``repeatable`` holds a name that no entry has, or ``flow`` builds no or several Flows,
            or cannot be imported by another process.
        RuntimeError: The undisturbed run failed, or the engine cannot be killed.
        TimeoutError: A run took longer than ``timeout_s``; the text names its place.
    """
    if not isinstance(flow, str) and not callable(flow):
        raise TypeError(
            f"flow must be a function or a text like 'module:function', got {type(flow).__name__}"
        )
    if isinstance(flow, str):
        check_function_path("flow", flow)
    check_messages(messages)
    check_answering(answer, timeout_s)
    check_file_name("ledger", ledger)
    check_name("asked", asked)
    for argument, texts in (("repeatable", repeatable), ("ignore", ignore)):
        check_texts(argument, texts)
    check_callable("places", places, "of a place's name that says whether to kill there")
    if kill not in ("worker", "engine"):
        raise ValueError(f"kill must be 'worker' or 'engine', got {shown(kill)}")
    if data_dir is not None:
        folder_of("data_dir", data_dir)
    name, python_path = _importable(flow)
    with _folder(data_dir) as folder:
        explorer = _Explorer(
            name,
            python_path,
            _build(flow, folder),
            folder,
            messages,
            answer,
            folder / ledger,
            asked,
            ignore,
            timeout_s,
        )
        async with explorer.serve(kill) as (sessions, engine):
            async with explorer.work(engine):
                reference = await explorer.play_undisturbed(sessions)
            _check_repeatable(repeatable, reference, asked)
            passed = explorer.passed(_session_id(0))
            chosen = {n: place for n, place in enumerate(passed, start=1) if places(place)}
            if not chosen:
                raise ValueError(
                    f"places chooses none of the places that the session passes: {', '.join(passed)}"
                )
            action = "kill" if kill == "worker" else f"kill:{engine.pid_file}"
            failpoints = [f"{_failpoint(n, place)}={action}" for n, place in chosen.items()]
            rows = []
            async with explorer.work(engine, failpoints):
                for done, (number, place) in enumerate(chosen.items(), start=1):
                    _LOGGER.info("kill at %s (%d of %d)", place, done, len(chosen))
                    async with _restarting(engine, kill == "engine"):
                        run = await explorer.play_killed(sessions, number, place)
                    rows.append(compare_runs(place, run, reference, repeatable))
            return CrashReport(rows)


def _check_repeatable(repeatable: Collection[str], reference: Run, asked: str) -> None:
    names = recorded_names(reference)
    for name in repeatable:
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            also = f"; {asked!r} is always repeatable" if name == asked else ""
            raise ValueError(
                f"repeatable must hold names of ledger entries that the session makes, got "
                f"{name!r:.80}; it makes: {known}{also}"
            )


def _session_id(number: int) -> str:
    """Of the run that is killed at the place of this number; the first place has number 1."""
    return f"crash-run-{number}"


def _failpoint(number: int, place: str) -> str:
    """The place in that run: by its name, as calls side by side pass theirs in any order."""
    name, _, count = place.partition("#")
    return f"{name}@{_session_id(number)}#{count}"


@contextlib.contextmanager
def _folder(given: str | os.PathLike[str] | None) -> Iterator[Path]:
    if given is not None:
        os.makedirs(given, exist_ok=True)
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="dex-explore-") as made:
        yield Path(made)


def _build(flow: str | Callable[..., Any], folder: Path) -> AgentSessionFlow:
    """The Flow for the client."""
    built = build_flows(flow, folder) if isinstance(flow, str) else call_builder(flow, folder)
    flows = [found for found in built if isinstance(found, AgentSessionFlow)]
    if len(flows) != 1:
        raise ValueError(f"{flow} must build one AgentSessionFlow, it built {len(flows)}")
    return flows[0]


def _importable(flow: str | Callable[..., Any]) -> tuple[str, list[str]]:
    if isinstance(flow, str):
        return flow, []
    module, name = flow.__module__, flow.__qualname__
    if "." in name or "<" in name:
        raise ValueError(f"flow must be a function at the top level of a module, got {name}")
    if module != "__main__":
        return f"{module}:{name}", []
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise ValueError("flow is a function of a program without a file; put it into a module")
    return f"{Path(file).stem}:{name}", [str(Path(file).resolve().parent)]


@dataclass(frozen=True)
class _Explorer:
    flow: str
    python_path: Sequence[str]
    client_flow: AgentSessionFlow
    folder: Path
    messages: Sequence[str]
    answer: Callable[[PendingInterrupt], UserAnswer]
    ledger: Path
    asked: str
    ignore: Collection[str]
    timeout_s: float

    async def play_undisturbed(self, sessions: AgentSessionClient) -> Run:
        """The reference."""
        run = await self._play(sessions, _session_id(0))
        if failed := [error for error in run.errors if error]:
            raise RuntimeError(f"the session fails without any kill: {failed[0]}")
        if (count := len(self.passed(_session_id(0)))) > _MOST_PLACES:
            raise RuntimeError(
                f"the session passes {count} places, at most {_MOST_PLACES} are explored; play a "
                "shorter one"
            )
        return run

    async def play_killed(
        self, sessions: AgentSessionClient, number: int, place: str
    ) -> Run | None:
        """A run with a kill at this place; ``None`` if it does not pass it."""
        try:
            run = await self._play(sessions, _session_id(number))
        except TimeoutError as error:
            raise TimeoutError(f"with a kill at {place}: {error}") from error
        return run if is_failpoint_reached(_failpoint(number, place), self.folder) else None

    def passed(self, session_id: str) -> list[str]:
        """The places that a session has passed so far, each with its count."""
        counts: Counter[str] = Counter()
        found = []
        for line in (self.folder / _LOG).read_text().splitlines():
            place, _, of_session = line.partition(" ")
            if of_session == session_id:
                counts[place] += 1
                found.append(f"{place}#{counts[place]}")
        return found

    async def _play(self, sessions: AgentSessionClient, session_id: str) -> Run:
        ledger = Ledger(self.ledger)
        before = len(ledger.entries())
        played = await play_session(
            sessions, session_id, self.messages, answer=self.answer, timeout_s=self.timeout_s
        )
        entries = ledger.entries()[before:]
        return read_run(session_id, played, entries, asked=self.asked, ignore=self.ignore)

    @contextlib.asynccontextmanager
    async def serve(self, kill: str) -> AsyncIterator[tuple[AgentSessionClient, PrivateEngine]]:
        """Engine and client for all runs."""
        async with contextlib.AsyncExitStack() as stack:
            engine = await stack.enter_async_context(private_engine())
            if kill == "engine" and not engine.can_be_killed:
                raise RuntimeError("the engine named by the environment cannot be killed")
            sessions = await stack.enter_async_context(
                session_client(
                    self.client_flow,
                    server_address=engine.address,
                    cache_dir=self.folder / "client-cache",
                )
            )
            yield sessions, engine

    @contextlib.asynccontextmanager
    async def work(
        self, engine: PrivateEngine, failpoints: Sequence[str] = ()
    ) -> AsyncIterator[None]:
        """A Worker for the block, a new one whenever it is killed."""
        worker = await WorkerProcess.start(
            self.flow,
            server_address=engine.address,
            data_dir=self.folder,
            failpoints=failpoints,
            respawn=True,
            env={"DEX_AGENTS_FAILPOINT_LOG": str(self.folder / _LOG)},
            python_path=self.python_path,
        )
        try:
            yield
        finally:
            await worker.stop()


@contextlib.asynccontextmanager
async def _restarting(engine: PrivateEngine, wanted: bool) -> AsyncIterator[None]:
    """Restart the engine once if it ends within the block."""

    async def restart() -> None:
        await engine.wait()
        await engine.restart()

    if not wanted:
        yield
        return
    task = asyncio.create_task(restart())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
