"""How a failed call looks on the wire."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf import any_pb2
from google.rpc import status_pb2

DETAILS_KEY = "grpc-status-details-bin"


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
            response.original_worker_error_detail = self.worker_error.detail
            response.original_worker_error_type = self.worker_error.error_type
            response.original_worker_error_status = self.worker_error.grpc_status
            response.original_worker_error_stack_trace = self.worker_error.stack_trace
        packed = any_pb2.Any()
        packed.Pack(response)
        status = status_pb2.Status(code=self.code.value[0], message=self.message, details=[packed])
        return bytes(status.SerializeToString())


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
