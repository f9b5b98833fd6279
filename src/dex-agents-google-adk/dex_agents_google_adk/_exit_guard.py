"""A ``SystemExit`` of a model, callback or plugin ends its turn, not the Worker process.

ADK runs them in tasks of its own. There asyncio lets a ``SystemExit`` end the whole loop, and with
it every session of the process, before anybody can catch it. So the tasks of an attempt, and they
alone, run a coroutine that turns it into a failure of the turn.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any

from dex_agents._errors import AgentTurnError

_is_guarded: contextvars.ContextVar[bool] = contextvars.ContextVar("is_guarded", default=False)


def guard(context: contextvars.Context) -> None:
    """Guard the tasks that are made in ``context`` on the running loop."""
    context.run(_is_guarded.set, True)
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    if not isinstance(factory, _Factory):
        loop.set_task_factory(_Factory(factory))


class _Factory:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        # The task's own context counts, which need not be the one of its maker.
        context = options.get("context")
        is_guarded = _is_guarded.get() if context is None else context.get(_is_guarded, False)
        work = _Guarded(work) if is_guarded else work
        if self._inner is None:
            return asyncio.Task(work, loop=loop, **options)
        task: asyncio.Task[Any] = self._inner(loop, work, **options)
        return task


class _Guarded(Coroutine[Any, Any, Any]):
    """The same coroutine, to asyncio; not one around it, which would leave it unawaited when its
    task is cancelled before it starts.
    """

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._inner.__await__())

    def send(self, value: Any) -> Any:
        """As of a coroutine."""
        try:
            return self._inner.send(value)
        except SystemExit as error:
            raise _failure(error) from error

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        """As of a coroutine."""
        error: Any = kind if value is None else value
        try:
            return self._inner.throw(error)
        except SystemExit as exit_error:
            raise _failure(exit_error) from exit_error

    def close(self) -> None:
        """As of a coroutine."""
        self._inner.close()


def _failure(error: SystemExit) -> AgentTurnError:
    return AgentTurnError(
        f"a model, callback or plugin asked the process to exit (SystemExit: {error.code}); "
        "the turn ends instead"
    )
