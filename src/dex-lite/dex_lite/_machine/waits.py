"""Whether a wait is met, and which messages its winner takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dex_lite._machine.model import Condition, Consumed, Message, StepExecution


def won(
    step: StepExecution, channels: Mapping[str, Sequence[Message]]
) -> tuple[Consumed, ...] | None:
    """What the first satisfied candidate consumes, or ``None`` if no candidate is satisfied."""
    condition = step.condition
    assert condition is not None
    for timers, channel_indexes, sub_flows in _candidates(condition):
        if all(step.timers[index].is_fired for index in timers) and all(
            step.sub_flow_ends[index] is not None for index in sub_flows
        ):
            consumed = _take(condition, channel_indexes, channels)
            if consumed is not None:
                return consumed
    return None


def _candidates(
    condition: Condition,
) -> Iterator[tuple[Sequence[int], Sequence[int], Sequence[int]]]:
    """Places of the timers, Channels and SubFlows of each candidate."""
    timers, channels = range(len(condition.timers)), range(len(condition.channels))
    sub_flows = range(len(condition.sub_flows))
    if condition.kind == "all":
        yield timers, channels, sub_flows
    elif condition.kind == "any":
        for index in timers:
            yield (index,), (), ()
        for index in channels:
            yield (), (index,), ()
        for index in sub_flows:
            yield (), (), (index,)
    else:
        for ids in condition.combinations:
            wanted = set(ids)
            yield (
                [i for i in timers if condition.timers[i].condition_id in wanted],
                [i for i in channels if condition.channels[i].condition_id in wanted],
                [i for i in sub_flows if condition.sub_flows[i].condition_id in wanted],
            )


def _take(
    condition: Condition, indexes: Sequence[int], channels: Mapping[str, Sequence[Message]]
) -> tuple[Consumed, ...] | None:
    """First every minimum in declaration order, then extras up to each maximum; first in, first out."""
    left = {condition.channels[i].channel: 0 for i in indexes}
    for name in left:
        left[name] = len(channels.get(name, ()))
    counts: dict[int, int] = {}
    for index in indexes:
        minimum, _ = condition.channels[index].bounds
        name = condition.channels[index].channel
        if left[name] < minimum:
            return None
        left[name] -= minimum
        counts[index] = minimum
    for index in indexes:
        minimum, maximum = condition.channels[index].bounds
        name = condition.channels[index].channel
        extra = left[name] if maximum is None else min(left[name], maximum - minimum)
        left[name] -= extra
        counts[index] += extra
    taken = dict.fromkeys(left, 0)
    consumed = []
    for index in indexes:
        name = condition.channels[index].channel
        start = taken[name]
        taken[name] = start + counts[index]
        messages = channels.get(name, ())[start : taken[name]]
        consumed.append(Consumed(index, name, tuple(message.value for message in messages)))
    return tuple(consumed)
