"""One history event as a row and as JSON."""

from __future__ import annotations

from typing import Any

from dex.dexpb import dex_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict

from dex_lite._cli._conditions import whole_condition
from dex_lite._cli._payloads import BASE64
from dex_lite._cli._run_view import event_kind, failure_text
from dex_lite._cli._show_values import (
    clock,
    enum_name,
    iso,
    milliseconds,
    read_encoded,
    short,
    span,
    status,
)


def cells(event: pb.FlowHistoryEvent) -> tuple[str, str, str, str]:
    """Id, time, kind and details for a table."""
    return (
        str(event.event_id),
        clock(milliseconds(event.event_time)),
        event_kind(event).replace("_", " "),
        details(event),
    )


def as_data(event: pb.FlowHistoryEvent) -> dict[str, Any]:
    """The event for machines; `event` is the whole wire message in protobuf's JSON form.

    Bytes in it that can be read have what they say beside them, as `json` or `text`.
    """
    kind = event_kind(event)
    body = getattr(event, kind, None)
    context = getattr(body, "context", None)
    return {
        "event_id": event.event_id,
        "time": iso(milliseconds(event.event_time)),
        "kind": kind,
        "run_attempt": event.run_attempt,
        "step_execution_id": None if context is None else context.step_execution_id,
        "attempt": None if context is None else context.final_attempt,
        "details": details(event),
        "event": {} if body is None else _wire_data(body),
    }


def _wire_data(body: Any) -> dict[str, Any]:
    data: dict[str, Any] = MessageToDict(body, preserving_proto_field_name=True)
    pending: list[Any] = [data]
    while pending:
        inner = pending.pop()
        if isinstance(inner, list):
            pending += inner
        elif isinstance(inner, dict):
            pending += inner.values()
            if isinstance(encoded := inner.get("obj_value"), dict):
                value = pb.EncodedObject()
                ParseDict(encoded, value)
                form, content = read_encoded(value)
                if form != BASE64:
                    encoded[form] = content
    return data


def details(event: pb.FlowHistoryEvent) -> str:
    """What matters of an event as one line."""
    kind = event_kind(event)
    body: Any = getattr(event, kind, None)
    if kind == "flow_started_or_continued":
        start = body.initial_start
        return f"{body.flow_type}, starts {start.start_step_type} with {short(start.step_input)}"
    if kind == "flow_closed":
        parts = [status(body.flow_status), body.error_message]
        parts += [short(output.completed_step_output) for output in body.results]
        return ", ".join(part for part in parts if part)
    if kind == "rpc_execution_completed":
        parts = [body.rpc_name or "Attributes set", *_effects(body), *_cancels(body.step_decision)]
        parts += [f"to {movement.step_type}" for movement in body.step_decision.next_steps]
        return ", ".join(parts)
    if kind == "channel_external_publish":
        return ", ".join(f"{m.channel_name} {short(m.value)}" for m in body.messages)
    if kind == "channel_external_delete":
        return ", ".join(f"{m.channel_name} {m.message_id}" for m in body.messages)
    if kind == "time_travel_fork":
        return f"back to event {body.target_event_id} of attempt {body.previous_run_attempt}"
    if kind.startswith("step_"):
        return ", ".join(_step_parts(kind, body))
    return ""


def _step_parts(kind: str, body: Any) -> list[str]:
    context = body.context
    parts = [context.step_execution_id, span(context.duration.ToMilliseconds())]
    if context.final_attempt > 1:
        parts.append(f"attempt {context.final_attempt}")
    if kind.endswith("_failed"):
        parts.append(failure_text(body.output.failure))
    elif kind == "step_wait_for_completed":
        text = whole_condition(body.output.wait_for_condition)
        parts += [f"waits for {text}"] if text else []
        parts += _effects(body.output)
    elif kind == "step_execute_completed":
        parts += _effects(body.output)
        decision = body.output.step_decision
        parts += _cancels(decision)
        parts += [f"to {movement.step_type}" for movement in decision.next_steps]
        close = decision.close_decision.close_decision_type
        if close:
            prefix = "CLOSE_DECISION_TYPE_"
            parts.append(enum_name(pb.CloseDecisionType, close, prefix).replace("_", " "))
    return parts


def _effects(body: Any) -> list[str]:
    parts = [f"{write.key}={short(write.value, 40)}" for write in body.upsert_attributes]
    parts += [f"publishes to {message.channel_name}" for message in body.publish_to_channel]
    parts += [f"deletes from {message.channel_name}" for message in body.delete_from_channel]
    return parts


def _cancels(decision: pb.StepDecision) -> list[str]:
    parts = [f"cancels {step_type}" for step_type in decision.cancel_step_types]
    return parts + [f"cancels sibling {name}" for name in decision.cancel_sibling_step_types]
