"""What a Step waits for, in words."""

from __future__ import annotations

from typing import TypeAlias

from dex.dexpb import dex_pb2 as pb

from dex_lite._cli._show_values import clock, span

Condition: TypeAlias = pb.WaitingCondition | pb.WaitingConditionState


def each_condition(found: Condition) -> list[str]:
    """One text for each timer, Channel and SubFlow, in the order of the wait."""
    return [text for _, text in _named(found)]


def whole_condition(found: Condition) -> str:
    """The wait as one text: which of them have to come."""
    named = _named(found)
    if found.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED:
        parts = [
            " and ".join(text for name, text in named if name in combination.condition_ids)
            for combination in found.condition_combinations
        ]
        return ", or ".join(parts)
    is_any = found.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ANY_COMPLETED
    return (" or " if is_any else " and ").join(text for _, text in named)


def _named(found: Condition) -> list[tuple[str, str]]:
    named: list[tuple[str, str]] = []
    for place, timer in enumerate(found.timer_conditions):
        named.append((timer.condition_id, f"timer {timer.condition_id or place} ({_time(timer)})"))
    for channel in found.channel_conditions:
        low, high = channel.at_least or 1, channel.at_most
        bounds = f"{low}" if not high or high == low else f"{low} to {high}"
        named.append((channel.condition_id, f"channel {channel.channel_name} ({bounds})"))
    sub_flows: list[pb.SubFlowCondition | pb.SubFlowConditionState] = [*found.sub_flow_conditions]
    for place, sub_flow in enumerate(sub_flows):
        # Only history says of which type it is.
        kind = f" ({sub_flow.sub_flow_type})" if isinstance(sub_flow, pb.SubFlowCondition) else ""
        text = f"subflow {sub_flow.condition_id or place}{kind}"
        named.append((sub_flow.condition_id, text))
    return named


def _time(timer: pb.TimerCondition) -> str:
    if timer.firing_unix_timestamp_seconds:
        return f"at {clock(timer.firing_unix_timestamp_seconds * 1_000)}"
    return span(timer.duration_seconds * 1_000)
