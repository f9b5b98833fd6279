"""Worker processes with defaults that fit agents."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from dex import PullWorkerOptions, WorkerOptions

_LOGGER = logging.getLogger("dex_agents")
_FIRST_RESTART_S = 0.5
_LONGEST_RESTART_S = 30.0
_HEALTHY_AFTER_S = 30.0
_STOP_WITHIN_S = 40.0


def agent_worker_options(
    server_address: str,
    *,
    max_concurrent_tasks: int = 64,
    idle_streams_per_queue: int = 4,
    app_worker_id: str | None = None,
) -> WorkerOptions:
    """Worker options for agents.

    The SDK's own default runs one Step at a time on two cores, since it keeps one slot free for RPCs; a model call that
    takes a minute would then hold up every other session. Agents mostly wait, so many Steps fit in one process.

    Args:
        server_address: ``host:port`` of dex-lite or a Dex Server.
        max_concurrent_tasks: Steps and RPCs at once; at least the largest number of calls in one model response, and
            one more.
        idle_streams_per_queue: Streams kept open for the next tasks.
        app_worker_id: Unique name of the process; made up if ``None``.
    """
    pull = PullWorkerOptions(
        max_concurrent_tasks=max_concurrent_tasks, idle_streams_per_queue=idle_streams_per_queue
    )
    if app_worker_id is not None:
        pull = PullWorkerOptions(
            max_concurrent_tasks=max_concurrent_tasks,
            idle_streams_per_queue=idle_streams_per_queue,
            app_worker_id=app_worker_id,
        )
    return WorkerOptions(server_address=server_address, pull=pull)


def run_agent_workers(
    flows: str, *, server_address: str, processes: int = 1, cache_dir: str | None = None
) -> int:
    """Serve Flows from several processes until SIGTERM or SIGINT; then let running Steps end.

    One Python process does about one core's work; a process that dies is started again. Call it from the main thread.

    Args:
        flows: ``"module:function"``; the function returns a Flow or a list of Flows and is called in each process.
        server_address: ``host:port`` of dex-lite or a Dex Server.
        processes: How many.
        cache_dir: Folder for the SDK's blob caches; default ``.dex-cache`` in the working folder.

    Returns:
        The exit code for the program: 0 after a stop that was asked for.

    Raises:
        ValueError: An argument is wrong.
    """
    if ":" not in flows:
        raise ValueError(f"flows must look like 'module:function', got {flows!r}")
    if processes < 1:
        raise ValueError(f"processes must be at least 1, got {processes}")
    return _Supervisor(flows, server_address, processes, cache_dir or ".dex-cache").run()


class _Child:
    """One place for a process; refilled when it dies."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.delay_s = _FIRST_RESTART_S


class _Supervisor:
    def __init__(self, flows: str, server_address: str, processes: int, cache_dir: str) -> None:
        self._flows = flows
        self._server_address = server_address
        self._cache_dir = cache_dir
        self._children = [_Child(number) for number in range(1, processes + 1)]
        self._stop = threading.Event()

    def run(self) -> int:
        before = {s: signal.signal(s, self._signalled) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._stop.is_set():
                for child in self._children:
                    self._look_after(child)
                self._stop.wait(0.1)
            return self._stop_children()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _look_after(self, child: _Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if now >= child.start_at:
                self._start(child)
            return
        code = child.process.poll()
        if code is None:
            return
        if now - child.started_at >= _HEALTHY_AFTER_S:
            child.delay_s = _FIRST_RESTART_S
        _LOGGER.warning(
            "Worker process %d ended with code %d, another one starts in %.1f s",
            child.process.pid,
            code,
            child.delay_s,
        )
        child.process = None
        child.start_at = now + child.delay_s
        child.delay_s = min(child.delay_s * 2, _LONGEST_RESTART_S)

    def _start(self, child: _Child) -> None:
        cache = Path(self._cache_dir) / f"worker-{child.number}"
        child.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dex_agents._worker_main",
                self._flows,
                self._server_address,
                str(cache),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
        )
        child.started_at = time.monotonic()
        _LOGGER.info("Worker process %d starts", child.process.pid)

    def _stop_children(self) -> int:
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _STOP_WITHIN_S
        is_clean = True
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _LOGGER.warning("Worker process %d did not stop in time, killed", process.pid)
                process.kill()
                process.wait()
                is_clean = False
        return 0 if is_clean else 1
