"""``--processes N``: the suite in N forks of the pytest that has collected it.

Most tests wait for other processes a good part of their time, so a run is done sooner with more
processes than cores. Each fork is a main thread of its own, which tests that send signals need, and
takes the next few tests of one module whenever it has none left; it tells the first process how
they ended, which alone prints.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import FDCapture
from _pytest.config import create_terminal_writer

_ITEMS_AT_ONCE = 10


class ForkedSuite:
    """Pytest plugin: runs what was collected in several processes."""

    def __init__(self, processes: int, prepare: Callable[[], object] = lambda: None) -> None:
        self._processes = processes
        self._prepare = prepare  # makes what the forks have in common

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        """Run everything in forks, unless nothing is to be run."""
        if session.config.option.collectonly or session.testsfailed:
            return None
        shares = _shares(session.items)
        folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._prepare()
        connections: list[Connection] = []
        pids = []
        for number in range(min(self._processes, len(shares))):
            mine, theirs = multiprocessing.Pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            if not (pid := os.fork()):
                for other in (mine, *connections):
                    other.close()
                # Two that count the same names in one folder get in each other's way.
                _own_folder(session.config, folder / f"p{number}")
                _run_fork(session, shares, theirs)
            theirs.close()
            pids.append(pid)
            connections.append(mine)
        try:
            _follow(session, len(shares), connections)
        finally:
            for connection in connections:
                connection.close()
            for pid in pids:
                os.waitpid(pid, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True


def _shares(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """A few tests of one module each, in order, so that what a module sets up is set up seldom."""
    shares = []
    for _, of_module in itertools.groupby(items, key=lambda item: item.path):
        tests = list(of_module)
        shares += [
            tests[start : start + _ITEMS_AT_ONCE] for start in range(0, len(tests), _ITEMS_AT_ONCE)
        ]
    return shares


def _follow(session: pytest.Session, number: int, connections: Sequence[Connection]) -> None:
    """Hand out shares and pass on what the forks report, until all have ended or one is enough."""
    hook = session.config.hook
    numbers = iter(range(number))
    running: dict[Connection, str] = dict.fromkeys(connections, "")
    while running and not session.shouldfail:
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            try:
                kind, value = ready.recv()
            except EOFError:
                session.shouldfail = f"a process of the suite has ended: {running.pop(ready)}"
                continue
            if kind == "next":
                ready.send(next(numbers, None))
            elif kind == "report":
                report = hook.pytest_report_from_serializable(config=session.config, data=value)
                hook.pytest_runtest_logreport(report=report)
                if session.shouldfail:
                    break
            elif kind == "start":
                running[ready] = value[0]
                hook.pytest_runtest_logstart(nodeid=value[0], location=value[1])
            elif kind == "finish":
                hook.pytest_runtest_logfinish(nodeid=value[0], location=value[1])
            elif kind == "error":
                session.shouldfail = f"{running[ready]}: {value}"
            else:
                del running[ready]


class _Reports:
    """Pytest plugin of a fork: sends how each test ended."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._connection.send(("start", (nodeid, location)))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._connection.send(("finish", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


def _run_fork(
    session: pytest.Session, shares: Sequence[Sequence[pytest.Item]], connection: Connection
) -> None:
    """Run shares until there are none, and end this process."""
    code = 1
    try:
        _own_output(session.config)
        session.config.pluginmanager.register(_Reports(session.config, connection))
        items = _items(shares, connection)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        connection.send(("end", None))
        code = 0
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the first process is gone
    except BaseException:
        connection.send(("error", traceback.format_exc()))
    finally:
        os._exit(code)


def _items(
    shares: Sequence[Sequence[pytest.Item]], connection: Connection
) -> Iterator[pytest.Item]:
    """The tests of this fork. The next share is taken when the last test of one is about to run."""
    while True:
        connection.send(("next", None))
        number = connection.recv()
        if number is None:
            return
        yield from shares[number]


def _own_folder(config: pytest.Config, folder: Path) -> None:
    """Put folders of tests there."""
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]


class _NoTerminal:
    """Stands for pytest's reporter where others look for how to colour a text."""

    def __init__(self, config: pytest.Config) -> None:
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
        self._tw = create_terminal_writer(config, nowhere)


def _own_output(config: pytest.Config) -> None:
    """Print nothing, and catch what tests print in files that no other process writes."""
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(_NoTerminal(config), "terminalreporter")
    capture = plugins.get_plugin("capturemanager")
    assert capture is not None
    for stream in (capture._global_capturing.out, capture._global_capturing.err):
        # In place: a library may have taken the sys.stderr of its import for good.
        if isinstance(stream, FDCapture):
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), stream.tmpfile.fileno())
