"""Settings of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import get_args

from dex_lite._schema import Durability
from dex_lite._wire.limits import Limits


@dataclass(frozen=True)
class EngineOptions:
    """How an engine behaves. All times are seconds.

    Attributes:
        durability: ``"full"`` survives power loss, ``"normal"`` survives only the end of processes.
        strict_dispatch: Fail a Step's attempt that no Worker took within ``step_dispatch_wait_s``, as the public
            server does. Off, such a Step waits and no attempt is consumed.
        step_dispatch_wait_s: See ``strict_dispatch``.
        rpc_dispatch_wait_s: How long an RPC waits for a Worker.
        rpc_timeout_s: Longest time of an RPC, dispatch included, and the default.
        max_wait_s: Longest wait of one long poll, and the default.
        search_limit_s: Longest time of one search.
        heartbeat_floor_s: Shortest heartbeat timeout; shorter ones are raised to it.
        retention_s: How long a closed run can be read; then all of it is deleted and its Flow ID is as if it had
            never been used. ``None`` keeps every run.
        drain_s: How long a stop waits for handlers that run.
        eager_registration: Acknowledge every Worker stream at once; slower, see the matcher.
        limits: Sizes and names.

    Raises:
        TypeError, ValueError: A setting is of another type, a time is negative or not finite, or
            there is no such durability.
    """

    durability: Durability = "full"
    strict_dispatch: bool = False
    step_dispatch_wait_s: float = 10.0
    rpc_dispatch_wait_s: float = 10.0
    rpc_timeout_s: float = 60.0
    max_wait_s: float = 3_600.0
    search_limit_s: float = 10.0
    heartbeat_floor_s: float = 1.0
    retention_s: float | None = None
    drain_s: float = 10.0
    eager_registration: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.durability not in get_args(Durability):
            known = " or ".join(map(repr, get_args(Durability)))
            raise ValueError(f"durability must be {known}, got {self.durability!r:.80}")
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits must be a Limits, got {type(self.limits).__name__}")
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.type == "bool" and not isinstance(value, bool):
                raise TypeError(f"{setting.name} must be True or False, got {value!r:.80}")
            if setting.name.endswith("_s") and not (setting.default is None and value is None):
                _check_seconds(setting.name, value)


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be seconds as a number, got {value!r:.80}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be seconds from 0 on, got {value}")
