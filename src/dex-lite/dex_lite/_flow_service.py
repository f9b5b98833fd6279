"""``dex.FlowService``: one thin method per call; everything raised below becomes a status with the SDK's details."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from dex_lite import _controls, _flows, _rpcs
from dex_lite._engine import Engine
from dex_lite._errors import (
    DexLiteError,
    EngineStoppedError,
    StreamArgumentError,
    StreamLimitError,
    StreamOverCapacity,
    StreamTokenError,
)
from dex_lite._search_flows import flows_without_worker, search
from dex_lite._stream_log import Message, StreamKey
from dex_lite._time_travel import reset
from dex_lite._timers import now_ms
from dex_lite._wire.errors import (
    ServiceError,
    invalid,
    long_poll_over,
    refuse,
    unavailable,
)
from dex_lite._wire.hints import (
    FLOWS_WITHOUT_WORKER,
    STEPS_WITHOUT_WORKER,
    received_bytes,
    to_metadata,
)
from dex_lite._wire.limits import name_fault, value_fault
from dex_lite._wire.options import BadRequest

_LOGGER = logging.getLogger("dex_lite")
_VERSION = "0.5.0"
_MINIMUM_PROTOCOL, _CURRENT_PROTOCOL = 1, 3
_Reply = TypeVar("_Reply")
Context: TypeAlias = Any  # a grpc.aio.ServicerContext; grpc has no types


async def _answer(context: Context, work: Awaitable[_Reply]) -> _Reply:
    try:
        return await work
    except ServiceError as error:
        await refuse(context, error)
    except BadRequest as error:
        await refuse(context, invalid(str(error)))
    except (StreamArgumentError, StreamTokenError) as error:
        await refuse(context, invalid(str(error)))
    except (StreamOverCapacity, StreamLimitError) as error:
        await refuse(context, ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)))
    except EngineStoppedError as error:
        await refuse(context, unavailable(str(error)))
    except DexLiteError as error:
        await refuse(context, unavailable(str(error)))
    except Exception as error:
        _LOGGER.exception("a client call failed inside the engine")
        internal = ServiceError(grpc.StatusCode.INTERNAL, f"the engine failed: {error!r}")
        await refuse(context, internal)


class FlowService(dex_pb2_grpc.FlowServiceServicer):  # type: ignore[misc]
    """The calls of clients."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def GetServerInfo(self, request: Empty, context: Context) -> pb.ServerInfo:
        return pb.ServerInfo(
            server_version=f"dex-lite {_VERSION}",
            minimum_supported_protocol_version=_MINIMUM_PROTOCOL,
            current_protocol_version=_CURRENT_PROTOCOL,
            server_engine=pb.SERVER_ENGINE_ZD,
        )

    async def HealthCheck(self, request: Empty, context: Context) -> pb.HealthInfo:
        async def work() -> pb.HealthInfo:
            self._engine.check_running()
            return pb.HealthInfo(condition="OK", hostname=socket.gethostname())

        return await _answer(context, work())

    async def SyncAttributeIndexes(
        self, request: pb.SyncAttributeIndexRequest, context: Context
    ) -> pb.SyncAttributeIndexResponse:
        types = {key: int(value) for key, value in request.attribute_indexes.items()}
        await _answer(context, _flows.sync_index_types(self._engine, types))
        return pb.SyncAttributeIndexResponse()

    async def StartFlow(
        self, request: pb.StartFlowRequest, context: Context
    ) -> pb.StartFlowResponse:
        return await _answer(context, _flows.start(self._engine, request))

    async def InvokeRPC(
        self, request: pb.InvokeRPCRequest, context: Context
    ) -> pb.InvokeRPCResponse:
        return await _answer(context, _rpcs.invoke(self._engine, request))

    async def WaitForFlow(self, request: pb.WaitForFlowRequest, context: Context) -> pb.FlowResult:
        return await _answer(context, _flows.wait_for_flow(self._engine, request))

    async def StopFlow(self, request: pb.StopFlowRequest, context: Context) -> Empty:
        await _answer(context, _controls.stop(self._engine, request))
        return Empty()

    async def SkipTimer(self, request: pb.SkipTimerRequest, context: Context) -> Empty:
        await _answer(context, _controls.skip_timer(self._engine, request))
        return Empty()

    async def UpdateFlowConfig(
        self, request: pb.UpdateFlowConfigRequest, context: Context
    ) -> Empty:
        await _answer(context, _controls.update_config(self._engine, request))
        return Empty()

    async def WaitForAttribute(
        self, request: pb.WaitForAttributeRequest, context: Context
    ) -> pb.WaitForAttributeResponse:
        return await _answer(context, _flows.wait_for_attribute(self._engine, request))

    async def WaitForStepCompletion(
        self, request: pb.WaitForStepCompletionRequest, context: Context
    ) -> pb.WaitForStepCompletionResponse:
        await _answer(context, _flows.wait_for_step(self._engine, request))
        return pb.WaitForStepCompletionResponse()

    async def GetFlowSummary(
        self, request: pb.GetFlowSummaryRequest, context: Context
    ) -> pb.GetFlowSummaryResponse:
        return await _answer(context, _flows.summary(self._engine, request))

    async def GetFlowState(
        self, request: pb.GetFlowStateRequest, context: Context
    ) -> pb.GetFlowStateResponse:
        response = await _answer(
            context, _flows.live_state(self._engine, request, self._receives(context))
        )
        found = _flows.steps_without_worker(self._engine, request)
        context.set_trailing_metadata(to_metadata(STEPS_WITHOUT_WORKER, found))
        return response

    async def SearchFlows(
        self, request: pb.SearchFlowsRequest, context: Context
    ) -> pb.SearchFlowsResponse:
        response = await _answer(context, search(self._engine, request))
        found = flows_without_worker(self._engine, response)
        context.set_trailing_metadata(to_metadata(FLOWS_WITHOUT_WORKER, found))
        return response

    async def ResetFlow(
        self, request: pb.ResetFlowRequest, context: Context
    ) -> pb.ResetFlowResponse:
        return await _answer(context, reset(self._engine, request))

    async def GetHistoryEvents(
        self, request: pb.GetHistoryEventsRequest, context: Context
    ) -> pb.GetHistoryEventsResponse:
        return await _answer(
            context, _flows.history(self._engine, request, self._receives(context))
        )

    async def WaitForHistoryEvent(
        self, request: pb.WaitForHistoryEventRequest, context: Context
    ) -> pb.WaitForHistoryEventResponse:
        return await _answer(context, _flows.wait_for_event(self._engine, request))

    # Attributes and Channels of a client

    async def GetAttributes(
        self, request: pb.GetAttributesRequest, context: Context
    ) -> pb.GetAttributesResponse:
        async def work() -> pb.GetAttributesResponse:
            row = await self._engine.find_any(request.flow_id, request.run_id)
            attributes = (await self._engine.state_of(row)).attributes
            response = pb.GetAttributesResponse()
            for key in attributes if request.all_keys else request.keys:
                if key in attributes:
                    response.attributes.add(key=key).value.ParseFromString(attributes[key])
            self._check_size(response, "these Attributes", "name fewer")
            return response

        return await _answer(context, work())

    async def SetAttributes(self, request: pb.SetAttributesRequest, context: Context) -> Empty:
        await _answer(context, _controls.set_attributes(self._engine, request))
        return Empty()

    async def PublishToChannel(
        self, request: pb.PublishToChannelRequest, context: Context
    ) -> Empty:
        await _answer(context, _controls.publish(self._engine, request))
        return Empty()

    async def GetChannelMessages(
        self, request: pb.GetChannelMessagesRequest, context: Context
    ) -> pb.GetChannelMessagesResponse:
        async def work() -> pb.GetChannelMessagesResponse:
            row = await self._engine.find_any(request.flow_id, request.run_id)
            state = await self._engine.state_of(row)
            response = pb.GetChannelMessagesResponse()
            for message in state.channels.get(request.channel_name, ()):
                added = response.messages.add(
                    channel_name=request.channel_name, message_id=message.message_id
                )
                added.value.ParseFromString(message.value)
            self._check_size(response, "these messages", "consume or delete some first")
            return response

        return await _answer(context, work())

    async def DeleteChannelMessage(
        self, request: pb.DeleteChannelMessageRequest, context: Context
    ) -> Empty:
        await _answer(context, _controls.delete_message(self._engine, request))
        return Empty()

    async def LoadBlobs(
        self, request: pb.LoadBlobsRequest, context: Context
    ) -> pb.LoadBlobsResponse:
        async def work() -> pb.LoadBlobsResponse:
            self._engine.check_running()
            return self._engine.blobs.load(request, self._engine.options.limits.task)

        return await _answer(context, work())

    def _receives(self, context: Context) -> int:
        return received_bytes(context.invocation_metadata() or (), self._engine.options.limits.task)

    def _check_size(self, response: Any, what: str, way_out: str) -> None:
        if response.ByteSize() > self._engine.options.limits.task:
            raise invalid(f"{what} are larger than a client can receive; {way_out}")

    # Streams

    async def WriteStream(self, request: pb.WriteStreamRequest, context: Context) -> Empty:
        async def work() -> Empty:
            self._engine.check_running()
            limits = self._engine.options.limits
            fault = value_fault("the value", request.value, limits) or name_fault(
                "source", request.source, limits, forbidden=""
            )
            if fault:
                raise invalid(fault)
            self._engine.streams.append(
                StreamKey(request.flow_type, request.stream_name, request.flow_id),
                request.value.SerializeToString(),
                request.source,
                request.stream_capacity_bytes,
                now_ms(),
            )
            return Empty()

        return await _answer(context, work())

    async def ReadStream(
        self, request: pb.ReadStreamRequest, context: Context
    ) -> pb.ReadStreamResponse:
        async def work() -> pb.ReadStreamResponse:
            self._engine.check_running()
            wait_s = _flows.wait_budget(self._engine, request.wait_time_seconds)
            key = StreamKey(request.flow_type, request.stream_name, request.flow_id)
            message = await self._engine.streams.read(key, request.resume_token, wait_s)
            if message is None:
                self._engine.check_running()
                raise long_poll_over("no Stream message came in time")
            return pb.ReadStreamResponse(message=_stream_message(message))

        return await _answer(context, work())

    async def ListStreamMessages(
        self, request: pb.ListStreamMessagesRequest, context: Context
    ) -> pb.ListStreamMessagesResponse:
        async def work() -> pb.ListStreamMessagesResponse:
            self._engine.check_running()
            key = StreamKey(request.flow_type, request.stream_name, request.flow_id)
            messages, token = await self._engine.streams.list(
                key, request.page_size, request.before_page_token
            )
            return pb.ListStreamMessagesResponse(
                messages=[_stream_message(message) for message in messages], next_page_token=token
            )

        return await _answer(context, work())

    async def TriggerContinueAsNew(
        self, request: pb.TriggerContinueAsNewRequest, context: Context
    ) -> Empty:
        async def work() -> Empty:
            # A run has no limit that it could escape by going on as a new one.
            self._engine.find_open(request.flow_id, request.run_id)
            return Empty()

        return await _answer(context, work())


def _stream_message(message: Message) -> pb.StreamMessage:
    shown = pb.StreamMessage(resume_token=message.resume_token, source=message.source)
    shown.value.ParseFromString(message.value)
    shown.created_time.FromMilliseconds(message.created_ms)
    return shown
