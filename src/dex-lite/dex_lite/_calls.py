"""How calls of clients are served, and what is measured around each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from dex_lite._meter import Meter
from dex_lite._wire.errors import ServiceError, refuse

_Handler = Any  # a grpc.RpcMethodHandler; grpc has no types


def _too_many(limit: int) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"at most {limit} calls of clients may be open at a time, those that wait included. Wait in "
        "fewer places, or start the engine with a larger Limits(calls=...)",
    )


class ByName:
    """Where generated code puts the methods of a service, to be looked up by name when they are called.

    Methods that are registered with a ``grpc.aio.Server`` instead are waited for one by one: each call of one
    of them sets up and takes down a wait for all of them.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        """Methods that are looked up by name."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, _Handler]
    ) -> None:
        """The same methods again, registered: left out."""


class CallMeter(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Counts calls and their durations, and refuses too many at a time.

    Worker streams last, so they are not calls here.
    """

    def __init__(self, meter: Meter, most_calls: int) -> None:
        self._meter = meter
        self._most_calls = most_calls
        self._open = 0

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[_Handler]], details: Any
    ) -> _Handler:
        """One call."""
        handler = await continuation(details)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._measured(details.method.rpartition("/")[2], handler.unary_unary),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _measured(self, method: str, inner: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def call(request: Any, context: Any) -> Any:
            started = time.perf_counter()
            code = "OK"
            self._open += 1
            try:
                if self._open > self._most_calls:
                    await refuse(context, _too_many(self._most_calls))
                return await inner(request, context)
            except BaseException:
                found = context.code()
                # A handler that was cancelled has no code: nobody waits for its answer any more.
                code = found.name if isinstance(found, grpc.StatusCode) else "CANCELLED"
                raise
            finally:
                self._open -= 1
                self._meter.called(method, code, time.perf_counter() - started)

        return call
