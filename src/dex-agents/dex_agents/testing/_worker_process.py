"""A Worker in a process of its own, to be killed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dex_agents._worker_main import READY_LINE
from dex_agents.testing._process import ChildProcess


class WorkerProcess(ChildProcess):
    """A Worker process; ``kill`` is a SIGKILL of its group."""

    @classmethod
    async def start(
        cls,
        flow: str,
        *,
        server_address: str,
        data_dir: Path,
        failpoints: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a Worker and wait until it takes tasks.

        Args:
            flow: ``"module:function"`` that returns the Flow; it gets ``data_dir`` if it takes a parameter.
            failpoints: Names of places in the core at which the process SIGKILLs itself, once over all processes that
                share ``data_dir``.
        """
        data_dir.mkdir(parents=True, exist_ok=True)
        added = dict(env or {})
        if failpoints:
            added["DEX_AGENTS_FAILPOINTS"] = ",".join(f"{name}=kill" for name in failpoints)
            added["DEX_AGENTS_FAILPOINT_DIR"] = str(data_dir)
        child = await cls.spawn(
            "the Worker",
            [
                sys.executable, "-m", "dex_agents._worker_main", flow, server_address,
                str(data_dir / "worker-cache"), str(data_dir),
            ],
            ready=READY_LINE,
            log=data_dir / "worker.log",
            env=added,
        )  # fmt: skip
        assert isinstance(child, cls)
        return child
