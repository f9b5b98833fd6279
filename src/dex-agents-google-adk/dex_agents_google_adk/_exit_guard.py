"""A ``SystemExit`` of a model, callback, plugin or tool ends its turn or call, not the Worker process.

ADK runs them in tasks of its own, and tools make some. There asyncio lets a ``SystemExit`` end the
whole loop, and with it every session of the process, before anybody can catch it. So the tasks of an
attempt, and they alone, run a coroutine that turns it into a failure of the attempt. The same holds
for a ``KeyboardInterrupt`` that they raise; one of somebody's Ctrl-C goes through.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn, TypeAlias, TypeVar

from dex_agents._errors import AgentTurnError
from dex_agents._keyboard import is_from_keyboard

_T = TypeVar("_T")
_Failure: TypeAlias = Callable[[str], Exception]
_failure: contextvars.ContextVar[_Failure | None] = contextvars.ContextVar("failure", default=None)


def guard_turn(context: contextvars.Context) -> None:
    """Guard the tasks that are made in ``context`` on the running loop: an exit fails the turn."""
    context.run(_failure.set, _failure_of_turn)
    _guard_loop()


async def guard_tool(work: Awaitable[_T]) -> _T:
    """Await the work and guard the tasks that it makes: an exit is an ordinary failure of a tool."""
    token = _failure.set(_failure_of_tool)
    _guard_loop()
    try:
        return await work
    finally:
        _failure.reset(token)


def _guard_loop() -> None:
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
        failure = _failure.get() if context is None else context.get(_failure)
        work = work if failure is None else _Guarded(work, failure)
        if self._inner is None:
            return asyncio.Task(work, loop=loop, **options)
        task: asyncio.Task[Any] = self._inner(loop, work, **options)
        return task


class _Guarded(Coroutine[Any, Any, Any]):
    """The same coroutine, to asyncio; not one around it, which would leave it unawaited when its
    task is cancelled before it starts.
    """

    def __init__(self, inner: Coroutine[Any, Any, Any], failure: _Failure) -> None:
        self._inner = inner
        self._failure = failure

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._inner.__await__())

    def send(self, value: Any) -> Any:
        """As of a coroutine."""
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            self._fail(error)

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
        except (SystemExit, KeyboardInterrupt) as exit_error:
            self._fail(exit_error)

    def close(self) -> None:
        """As of a coroutine."""
        self._inner.close()

    def _fail(self, error: SystemExit | KeyboardInterrupt) -> NoReturn:
        if is_from_keyboard(error):
            raise error
        raise self._failure(f"{type(error).__name__}: {error}") from error


def _failure_of_turn(exit_text: str) -> AgentTurnError:
    return AgentTurnError(
        f"a model, callback or plugin asked the process to exit ({exit_text}); the turn ends instead"
    )


def _failure_of_tool(exit_text: str) -> RuntimeError:
    return RuntimeError(f"it asked the process to exit ({exit_text})")
