"""`dex-lite stream tail`: Stream messages as they come."""

from __future__ import annotations

from typing import Annotated

import typer
from dex.dexpb import dex_pb2 as pb

from dex_lite._cli import _print, _show_values
from dex_lite._cli._server import DEFAULT_ADDRESS, Address, FlowId, Json, Server, Token, connect

_POLL_S = 20


def tail(
    flow_id: FlowId,
    stream: Annotated[str, typer.Argument(help="Name of the Stream.", show_default=False)],
    flow_type: Annotated[
        str, typer.Option(help="Flow type; without it, that of the Flow with this id.")
    ] = "",
    count: Annotated[int, typer.Option(min=0, help="End after so many messages; 0: never.")] = 0,
    after: Annotated[str, typer.Option(help="Resume token of the last message seen.")] = "",
    is_json: Json = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = "",
) -> None:
    """Print the messages of a Stream from the oldest on, and new ones live, until Ctrl-C."""
    with connect(address, token) as server:
        request = pb.ReadStreamRequest(
            flow_id=flow_id,
            flow_type=flow_type or server.summary(flow_id).flow_type,
            stream_name=stream,
            resume_token=after,
            wait_time_seconds=_POLL_S,
        )
        seen = 0
        try:
            if not after and not _has_messages(server, request):
                _print.note(
                    f"no message in Stream {stream!r} of Flow {flow_id!r}, Flow type "
                    f"{request.flow_type!r}, yet; waiting for one until Ctrl-C"
                )
            while True:
                answer = server.poll("ReadStream", request, _POLL_S)
                if answer is None:
                    continue
                _print_message(answer.message, is_json)
                request.resume_token = answer.message.resume_token
                seen += 1
                if seen == count:
                    return
        except KeyboardInterrupt:
            # The usual end of a live view.
            return


def _has_messages(server: Server, request: pb.ReadStreamRequest) -> bool:
    first = pb.ListStreamMessagesRequest(
        flow_id=request.flow_id,
        flow_type=request.flow_type,
        stream_name=request.stream_name,
        page_size=1,
    )
    return bool(server.call("ListStreamMessages", first).messages)


def _print_message(message: pb.StreamMessage, is_json: bool) -> None:
    created = _show_values.milliseconds(message.created_time)
    if is_json:
        row = {
            "time": _show_values.iso(created),
            "source": message.source,
            "value": _show_values.plain(message.value),
            "resume_token": message.resume_token,
        }
        _print.as_json(row, is_line=True)
    else:
        _print.line(
            f"{_show_values.clock(created)}  {message.source}  "
            f"{_show_values.short(message.value, 10_000)}"
        )
