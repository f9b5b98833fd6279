"""Worker processes with defaults that fit agents."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from dex import PullWorkerOptions, WorkerOptions

from dex_agents._arguments import (
    check_count,
    check_function_path,
    check_name,
    check_server_address,
    path_of,
    shown,
)

_LOGGER = logging.getLogger("dex_agents")
_T = TypeVar("_T")
_FIRST_RESTART_S = 0.5
_LONGEST_RESTART_S = 30.0
_HEALTHY_AFTER_S = 30.0
CANNOT_BUILD_CODE = 78
"""Exit code of a child whose Flows' function does not exist (``EX_CONFIG`` of sysexits.h)."""
_NAMES_FROM_ELSEWHERE = r"import\s*\(?\s*\*|\b(?:__getattr__|__dict__|exec|globals|setattr)\b"
_STOP_WITHIN_S = 40.0  # the SDK drains for 30 s
_LOOK_EVERY_S = 0.1


def agent_worker_options(
    server_address: str,
    *,
    max_concurrent_tasks: int = 64,
    idle_streams_per_queue: int = 16,
    app_worker_id: str | None = None,
) -> WorkerOptions:
    """Options of a pull Worker that serves agents.

    The SDK takes as many tasks as there are cores and keeps one slot free for RPCs: on two cores
    one Step at a time, and a model call of a minute holds up every other session. Agents mostly
    wait, so 64 slots (63 for Steps) fit in one process. Sixteen idle streams let a response with
    many tool calls start them together. The SDK keeps a stream whose task has ended as long as no
    more are idle than that, and closes it otherwise; a task that was just sent to it then has to
    be sent again. Many more cost a lone turn CPU, because the SDK goes through all of them at the
    start and end of every task.

    Args:
        server_address: ``host:port`` of dex-lite or a Dex Server.
        max_concurrent_tasks: Steps and RPCs at once. Leave room for the largest number of tool
            calls in one model response, and one more.
        idle_streams_per_queue: Streams kept open for the next tasks, for each Flow type and for
            the Worker's own queue.
        app_worker_id: Name of the process, new at every start; made up if ``None``.

    Raises:
        TypeError, ValueError: An argument is of another type, a number is too small, the address is
            not ``host:port`` or the name is not a valid one.
    """
    check_server_address(server_address)
    check_count("max_concurrent_tasks", max_concurrent_tasks, 2)
    check_count("idle_streams_per_queue", idle_streams_per_queue, 1)
    if app_worker_id is not None:
        check_name("app_worker_id", app_worker_id)
    return WorkerOptions(
        server_address=server_address,
        pull=PullWorkerOptions(
            max_concurrent_tasks=max_concurrent_tasks,
            idle_streams_per_queue=idle_streams_per_queue,
            app_worker_id=app_worker_id or "",
        ),
    )


def run_with_uvloop(work: Coroutine[Any, Any, _T]) -> _T:
    """``asyncio.run``, on uvloop where it is installed: a Worker's loop is most of its work."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(work)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def run_agent_workers(
    flows: str,
    *,
    server_address: str,
    processes: int = 1,
    cache_dir: str | os.PathLike[str] | None = None,
) -> int:
    """Serve Flows until SIGTERM or SIGINT, then let running Steps end.

    For the ``__main__`` of a program, in its main thread. One Python process does about one core's
    work, so Steps run in child processes, also if there is only one. A child that dies is started
    again, later each time it dies young. A second signal ends the children at once. Progress goes
    to the logger ``dex_agents``, and to stderr unless the program has set up logging itself.

    Args:
        flows: ``"module:function"``. Every child calls the function, which returns a Flow or a
            list of Flows.
        server_address: ``host:port`` of dex-lite or a Dex Server.
        processes: How many.
        cache_dir: Folder for the SDK's caches; ``.dex-cache`` in the working folder if ``None``.

    Returns:
        The program's exit code: 0 if all Steps could end, 1 if children had to be killed, or there
        is no such module or function, or it has a mistake that no new start changes: an error of
        Python, a ``ValueError`` or ``TypeError`` such as those of a wrong argument, or a result
        that is no Flow. The log says which. Other errors are tried again.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    if not isinstance(flows, str):
        raise TypeError(
            f"flows must be a text like 'module:function', got {shown(flows)}; each Worker process "
            "imports it"
        )
    check_function_path("flows", flows)
    module, _, function = flows.partition(":")
    check_server_address(server_address)
    check_count("processes", processes, 1)
    caches = path_of("cache_dir", ".dex-cache" if cache_dir is None else cache_dir)
    logging.basicConfig(
        level=os.environ.get("DEX_AGENTS_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    if missing := _missing(module, function):
        _LOGGER.error("%s", missing)
        return 1
    return _Supervisor(flows, server_address, processes, caches).run()


def _missing(module: str, function: str) -> str:
    """What is surely not there, before a child takes seconds to import it; empty if nothing is."""
    why = ""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        found, why = None, f" ({error})"
    if found is None:
        return (
            f"there is no module {module!r} on the path of this program{why}; flows names the module "
            "and function that build the Flows"
        )
    source = getattr(found.loader, "get_source", lambda name: None)(module)
    if source is None or re.search(rf"\b{re.escape(function)}\b|{_NAMES_FROM_ELSEWHERE}", source):
        return ""  # a child sees, when it has imported the module
    return f"module {module!r} has no function {function!r}; flows names one that builds the Flows"


class _Place:
    """One process of the wanted number; filled again when it dies."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.delay_s = _FIRST_RESTART_S

    def schedule_restart(self, now: float) -> float:
        """Empty the place; how long it stays so."""
        if self.process is not None and now - self.started_at >= _HEALTHY_AFTER_S:
            self.delay_s = _FIRST_RESTART_S
        delay_s = self.delay_s
        self.process = None
        self.start_at = now + delay_s
        self.delay_s = min(delay_s * 2, _LONGEST_RESTART_S)
        return delay_s


class _Supervisor:
    def __init__(self, flows: str, server_address: str, processes: int, cache_dir: Path) -> None:
        self._flows = flows
        self._server_address = server_address
        self._cache_dir = cache_dir
        self._places = [_Place(number) for number in range(1, processes + 1)]
        self._is_hopeless = False
        self._has_served = False  # so what cannot be built now is in the middle of a deploy
        # A plain int: a handler that takes the lock of an Event can meet the main thread inside.
        self._signals = 0

    def run(self) -> int:
        before = {s: signal.signal(s, self._signalled) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            try:
                while not self._signals and not self._is_hopeless:
                    for place in self._places:
                        self._look_after(place)
                    time.sleep(_LOOK_EVERY_S)
            finally:
                is_clean = self._stop_all()
            return 0 if is_clean and not self._is_hopeless else 1
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _look_after(self, place: _Place) -> None:
        now = time.monotonic()
        process = place.process
        if process is None:
            if now >= place.start_at:
                self._start(place, now)
        elif (code := process.poll()) is not None:
            _close_stdin(process)
            if code == CANNOT_BUILD_CODE and not self._has_served:
                place.process = None
                self._is_hopeless = True
                return
            delay_s = place.schedule_restart(now)
            _LOGGER.warning(
                "Worker process %d ended with code %d, a new one starts in %.1f s",
                process.pid,
                code,
                delay_s,
            )
        elif now - place.started_at >= _HEALTHY_AFTER_S:
            self._has_served = True

    def _start(self, place: _Place, now: float) -> None:
        command = [sys.executable, "-m", "dex_agents._worker_main", "--stop-with-stdin"]
        command += [self._flows, self._server_address]
        command.append(str(self._cache_dir / f"worker-{place.number}"))
        try:
            place.process = subprocess.Popen(
                command,
                # Nothing is ever written: its end tells the child that this process is gone.
                stdin=subprocess.PIPE,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                },
                # Ctrl-C reaches this process only, which passes one SIGTERM on.
                start_new_session=True,
            )
        except OSError as error:
            delay_s = place.schedule_restart(now)
            _LOGGER.warning("No Worker process: %s; next try in %.1f s", error, delay_s)
            return
        place.started_at = now
        _LOGGER.info("Worker process %d of place %d starts", place.process.pid, place.number)

    def _stop_all(self) -> bool:
        running = [place.process for place in self._places if place.process is not None]
        _LOGGER.info("Stopping %d Worker process(es)", len(running))
        for process in running:
            process.terminate()
        signals = self._signals
        deadline = time.monotonic() + _STOP_WITHIN_S
        while any(process.poll() is None for process in running):
            if time.monotonic() > deadline or self._signals > signals:
                break
            time.sleep(_LOOK_EVERY_S)
        is_clean = True
        for process in running:
            if process.poll() is None:
                _LOGGER.warning("Worker process %d still runs and is killed", process.pid)
                process.kill()
                process.wait()
                is_clean = False
            _close_stdin(process)
        return is_clean


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
