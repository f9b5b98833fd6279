"""What is measured around every call of a client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from dex_lite._meter import Meter

_Handler = Any  # a grpc.RpcMethodHandler; grpc has no types


class CallMeter(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Counts calls and their durations. Worker streams last, so they are not calls here."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

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
            try:
                return await inner(request, context)
            except BaseException:
                found = context.code()
                # A handler that was cancelled has no code: nobody waits for its answer any more.
                code = found.name if isinstance(found, grpc.StatusCode) else "CANCELLED"
                raise
            finally:
                self._meter.called(method, code, time.perf_counter() - started)

        return call
