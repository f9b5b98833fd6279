"""What handlers and clients ask of a Flow, already checked and translated by the wire module."""

from __future__ import annotations

from typing import Literal

import msgspec

from dex_lite._machine.model import Condition, FlowStart, IndexUse, Movement, Value


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of one handler, applied in this order: Attributes, deletions, publications."""

    attributes: tuple[tuple[str, Value | None], ...] = ()
    indexes: tuple[IndexUse, ...] = ()  # of these Attributes
    secrets: tuple[tuple[str, Value | None], ...] = ()  # hard-delete Attributes
    deleted: tuple[tuple[str, str], ...] = ()  # channel, message id
    published: tuple[tuple[str, Value], ...] = ()
    step_locals: tuple[tuple[str, Value], ...] = ()
    output: bytes = b""  # what only history needs


class SubFlowStart(msgspec.Struct, frozen=True):
    """A SubFlow to start, and what an earlier run under its Flow ID means for that."""

    start: FlowStart
    reuse: Literal["attach", "restart_failed", "restart"]


class WaitForResult(Writes, frozen=True, kw_only=True):
    """A WaitFor's result; without a condition the Step goes on at once."""

    condition: Condition | None = None
    sub_flows: tuple[SubFlowStart, ...] = ()  # one for each SubFlow of the condition


class ExecuteResult(Writes, frozen=True, kw_only=True):
    """An Execute's result."""

    next_steps: tuple[Movement, ...] = ()
    close: Literal["none", "graceful", "force", "fail", "conditional", "dead_end"] = "none"
    close_value: Value | None = None
    fail_message: str = ""
    conditional_channels: tuple[str, ...] = ()
    cancel_types: tuple[str, ...] = ()
    cancel_sibling_types: tuple[str, ...] = ()


class RpcResult(Writes, frozen=True, kw_only=True):
    """An RPC's result."""

    value: Value = b""
    next_steps: tuple[Movement, ...] = ()
    cancel_types: tuple[str, ...] = ()
    has_recorded_events: bool = False

    @property
    def has_effects(self) -> bool:
        """Whether there is anything to commit."""
        return bool(
            self.attributes
            or self.secrets
            or self.deleted
            or self.published
            or self.next_steps
            or self.cancel_types
            or self.has_recorded_events
        )
