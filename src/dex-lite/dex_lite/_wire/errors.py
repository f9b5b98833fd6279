"""How a failed call looks on the wire."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf import any_pb2
from google.rpc import status_pb2

DETAILS_KEY = "grpc-status-details-bin"

# gRPC begins to drop answers whose metadata has more than 8 KiB, and the caller sees another error then.
# The rest is for its own headers.
_MOST_BYTES = 7_680
_MOST_OF_A_WORKERS_DETAIL, _MOST_OF_A_WORKERS_TYPE = 1_024, 256  # what the SDK sends at most
_GAP = " … "
_PLAIN = bytes(set(range(0x20, 0x7F)) - {ord("%")})


class ServiceError(Exception):
    """A client call that ends with an error; raised anywhere below a servicer method."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        sub_status: pb.ErrorSubStatus = pb.ERROR_SUB_STATUS_UNCATEGORIZED,
        *,
        worker_error: pb.WorkerErrorResponse | None = None,
        dispatch_reason: pb.DispatchTaskErrorReason = (pb.DISPATCH_TASK_ERROR_REASON_UNSPECIFIED),
    ) -> None:
        if worker_error is not None:
            message = _without_middle(message, _MOST_OF_A_WORKERS_DETAIL, _bytes)
        message = shortened(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.sub_status = sub_status
        self.worker_error = worker_error
        self.dispatch_reason = dispatch_reason

    def trailer(self) -> bytes:
        """The encoded ``google.rpc.Status`` that the SDK reads."""
        response = pb.ServiceErrorResponse(
            sub_status=self.sub_status, dispatch_task_error_reason=self.dispatch_reason
        )
        if self.worker_error is None:
            response.detail = self.message
        else:
            # The texts are alternatives: with a worker's error, the status message is its text.
            found = self.worker_error
            detail = _without_middle(found.detail, _MOST_OF_A_WORKERS_DETAIL, _bytes)
            error_type = _without_middle(found.error_type, _MOST_OF_A_WORKERS_TYPE, _bytes)
            left = _MOST_BYTES - _answer_bytes(self.message) - _bytes(detail) - _bytes(error_type)
            response.original_worker_error_detail = detail
            response.original_worker_error_type = error_type
            response.original_worker_error_status = found.grpc_status
            response.original_worker_error_stack_trace = _without_middle(
                found.stack_trace, left, _bytes
            )
        packed = any_pb2.Any()
        packed.Pack(response)
        status = status_pb2.Status(code=self.code.value[0], message=self.message, details=[packed])
        return bytes(status.SerializeToString())


def shortened(message: str) -> str:
    """The message of an error, without its middle if it has more bytes than gRPC carries."""
    return _without_middle(message, _MOST_BYTES, lambda text: _answer_bytes(text) + _bytes(text))


def _without_middle(text: str, most: int, cost: Callable[[str], int]) -> str:
    if cost(text) <= most:
        return text

    def kept(count: int) -> str:
        return text[:count] + _GAP + text[len(text) - count :]

    most_kept = bisect_right(range(len(text) // 2), most, key=lambda count: cost(kept(count)))
    return kept(max(0, most_kept - 1))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _answer_bytes(message: str) -> int:
    """Of a message in a header, where most characters beyond ASCII are escaped, and in the status."""
    encoded = message.encode("utf-8", "replace")
    return 2 * len(encoded) + 2 * len(encoded.translate(None, _PLAIN))


async def refuse(context: Any, error: ServiceError) -> NoReturn:
    """End a call with an error, in the form that the SDK reads."""
    context.set_trailing_metadata(((DETAILS_KEY, error.trailer()),))
    await context.abort(error.code, error.message)
    raise AssertionError("abort returned")


def invalid(message: str) -> ServiceError:
    """The request itself is wrong."""
    return ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message)


def flow_missing(flow_id: str, what: str = "does not exist") -> ServiceError:
    """No such Flow, or not in a state that the call needs."""
    return ServiceError(
        grpc.StatusCode.NOT_FOUND,
        f"Flow {flow_id!r} {what}",
        pb.ERROR_SUB_STATUS_FLOW_NOT_EXISTS,
    )


def message_missing(channel: str, message_id: str) -> ServiceError:
    """A message that was to be deleted is not there."""
    return ServiceError(
        grpc.StatusCode.NOT_FOUND,
        f"Channel {channel!r} has no message {message_id!r}",
        pb.ERROR_SUB_STATUS_CHANNEL_MESSAGE_NOT_FOUND,
    )


def long_poll_over(message: str) -> ServiceError:
    """A wait came to the end of its time; the SDK may ask again."""
    return ServiceError(
        grpc.StatusCode.DEADLINE_EXCEEDED, message, pb.ERROR_SUB_STATUS_LONG_POLL_TIME_OUT
    )


def unavailable(message: str) -> ServiceError:
    """The engine stops or cannot store."""
    return ServiceError(grpc.StatusCode.UNAVAILABLE, message)


def worker_failure(
    message: str,
    *,
    worker_error: pb.WorkerErrorResponse | None = None,
    code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
    dispatch_reason: pb.DispatchTaskErrorReason = (pb.DISPATCH_TASK_ERROR_REASON_UNSPECIFIED),
) -> ServiceError:
    """An RPC's handler failed or could not be reached."""
    return ServiceError(
        code,
        message,
        pb.ERROR_SUB_STATUS_WORKER_API_ERROR,
        worker_error=worker_error,
        dispatch_reason=dispatch_reason,
    )
