"""A thread of its own for each blocking tool function.

ADK shares a pool of threads. A function that hangs keeps its thread for ever, also when its call was
given up long ago, and in the end no other session's tools run. And what a Future cannot carry, such
as a ``StopIteration``, makes ADK wait for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from google.adk.utils import _sync_runner

from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning

_BINDING = "_use_sync_callable_runner"
_NOT_CARRIED = (StopIteration, KeyboardInterrupt, GeneratorExit)


@contextlib.contextmanager
def own_threads() -> Iterator[None]:
    """Run the blocking functions that ADK calls inside the block in threads of their own."""
    bind = getattr(_sync_runner, _BINDING, None)
    if bind is None:
        warnings.warn(
            "ADK's way to run blocking functions has changed; a tool that hangs keeps one of the "
            "tool threads that all sessions share",
            AdkWorkaroundWarning,
            stacklevel=3,
        )
        yield
        return
    with bind(_run):
        yield


async def _run(target: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def call() -> Any:
        with getattr(_sync_runner, _BINDING)(None):
            return target(**arguments)

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(call)
        except _NOT_CARRIED as caught:
            error = RuntimeError(f"{type(caught).__name__}: {caught}")
            error.__cause__ = caught
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="dex-agents-tool", daemon=True).start()
    return await future
