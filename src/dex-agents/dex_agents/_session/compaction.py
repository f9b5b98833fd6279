"""When a session's history is summarized, and up to which turn: pure decisions.

The Step that summarizes is ``CompactHistory``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dex_agents._arguments import check_count, shown
from dex_agents._contract import AgentMessage, HistorySummary

BYTES_PER_TOKEN = 3
_LEAST_WINDOW = 1_000


@dataclass(frozen=True)
class CompactionPolicy:
    """When the older turns of a session are replaced by a summary in the model's input.

    A session compacts between turns only, before the first model call of a turn, so what one turn
    adds must fit in the rest of the window.

    Attributes:
        context_window_tokens: What the model takes as input.
        trigger_ratio: Share of the window from which on a session compacts, above 0 and up to 1.
        kept_turns: How many of the newest finished turns stay as they are.
        reserved_input_tokens: Input that the runner cannot see, such as dynamic instructions.
        retained_turns: How many summarized turns stay readable, the newest ones; ``None`` keeps all.

    Raises:
        TypeError, ValueError: A value has the wrong type or is out of its range; the text names it.
    """

    context_window_tokens: int
    trigger_ratio: float = 0.8
    kept_turns: int = 4
    reserved_input_tokens: int = 0
    retained_turns: int | None = None

    def __post_init__(self) -> None:
        check_count(
            "CompactionPolicy.context_window_tokens", self.context_window_tokens, _LEAST_WINDOW
        )
        check_count("CompactionPolicy.kept_turns", self.kept_turns, 0)
        check_count("CompactionPolicy.reserved_input_tokens", self.reserved_input_tokens, 0)
        if self.retained_turns is not None:
            check_count("CompactionPolicy.retained_turns", self.retained_turns, 0)
        if isinstance(self.trigger_ratio, bool) or not isinstance(self.trigger_ratio, int | float):
            raise TypeError(
                f"CompactionPolicy.trigger_ratio must be a number, got {shown(self.trigger_ratio)}"
            )
        if not 0 < self.trigger_ratio <= 1:
            raise ValueError(
                "CompactionPolicy.trigger_ratio must be above 0 and at most 1, got "
                f"{self.trigger_ratio}"
            )
        if self.reserved_input_tokens >= self.trigger_tokens:
            raise ValueError(
                f"CompactionPolicy.reserved_input_tokens must be below trigger_ratio of the window, "
                f"{self.trigger_tokens} tokens, got {self.reserved_input_tokens}"
            )

    @property
    def trigger_tokens(self) -> int:
        """The estimate from which on a session compacts."""
        return int(self.context_window_tokens * self.trigger_ratio)

    def is_due(self, history_bytes: int, overhead_tokens: int) -> bool:
        """Whether what the model would read is too much.

        Args:
            history_bytes: Size of the stored messages that it would read.
            overhead_tokens: Instructions and tools that the runner sees.
        """
        estimate = history_bytes // BYTES_PER_TOKEN + overhead_tokens + self.reserved_input_tokens
        return estimate >= self.trigger_tokens


def size_of(messages: Sequence[AgentMessage]) -> int:
    """Bytes of messages as the estimate counts them."""
    return sum(
        len(
            json.dumps(message.framework_item, ensure_ascii=False, separators=(",", ":")).encode(
                "utf-8", "backslashreplace"
            )
        )
        for message in messages
    )


def size_of_summary(summary: HistorySummary | None) -> int:
    """Bytes of what the model reads in place of older turns, as the estimate counts them."""
    if summary is None:
        return 0
    if summary.read_bytes is not None:
        return summary.read_bytes
    return len(summary.text.encode("utf-8", "backslashreplace"))
