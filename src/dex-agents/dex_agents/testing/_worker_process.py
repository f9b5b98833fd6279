"""A Worker in a process of its own, to be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Self

from dex_agents._arguments import (
    check_function_path,
    check_server_address,
    check_text_mapping,
    folder_of,
    path_of,
    shown,
)
from dex_agents._worker_main import READY_LINE
from dex_agents.testing._failpoints import failpoint_env
from dex_agents.testing._process import ChildProcess


class WorkerProcess(ChildProcess):
    """A Worker process; ``kill`` is a SIGKILL of its group, ``stop`` lets running Steps end.

    It stops by itself when the process that started it is gone.
    """

    @classmethod
    async def start(
        cls,
        flow: str,
        *,
        server_address: str,
        data_dir: str | os.PathLike[str],
        failpoints: Sequence[str] = (),
        respawn: bool = False,
        env: Mapping[str, str] | None = None,
        python_path: Sequence[str | os.PathLike[str]] = (),
    ) -> Self:
        """Start a Worker and wait until it takes tasks.

        Args:
            flow: ``"module:function"`` that returns a Flow or a list of Flows; called with
                ``data_dir`` as a ``Path`` if it takes an argument.
            server_address: ``host:port`` of the engine.
            data_dir: Where its log, its cache and the marks of failpoints lie; it is created.
            failpoints: Places of the core at which the process SIGKILLs itself, each once over
                all processes that share ``data_dir``.
            respawn: Start a new Worker at once whenever a SIGKILL of its own, as at a failpoint,
                ends it. The module of ``flow`` is imported once and the Workers are forks, so it
                must start no threads and connect to nothing when it is imported.
            env: More environment variables.
            python_path: Folders to import from, before those of this process.

        Raises:
            TypeError, ValueError: An argument is none.
            RuntimeError: It is not ready within a minute; the text has the end of its log.
        """
        check_function_path("flow", flow)
        check_server_address(server_address)
        folder = folder_of("data_dir", data_dir)
        given_env = failpoint_env(failpoints, folder)
        if not isinstance(respawn, bool):
            raise TypeError(f"respawn must be True or False, got {shown(respawn)}")
        if env is not None:
            check_text_mapping("env", env)
            for name in env:
                if not name or "=" in name:
                    raise ValueError(
                        f"env must have names of variables, which have no '=', got {shown(name)}"
                    )
        if isinstance(python_path, str | bytes) or not isinstance(python_path, Sequence):
            raise TypeError(f"python_path must be a list of folders, got {shown(python_path)}")
        for place in python_path:
            path_of("a folder of python_path", place)
        os.makedirs(folder, exist_ok=True)
        return await cls.spawn(
            "the Worker",
            [
                sys.executable,
                "-m",
                "dex_agents.testing._respawn" if respawn else "dex_agents._worker_main",
                flow,
                server_address,
                str(folder / "worker-cache"),
                str(folder),
                "--stop-with-stdin",
            ],
            ready=READY_LINE,
            log=folder / "worker.log",
            env={**given_env, **(env or {})},
            python_path=python_path,
        )
