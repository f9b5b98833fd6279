"""Waiting for what nobody announces, such as a process that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOK_EVERY_S = 0.02


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Look again and again until the condition holds.

    Raises:
        TimeoutError: It does not.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
