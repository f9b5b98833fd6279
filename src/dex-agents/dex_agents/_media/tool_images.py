"""Images in the results of tools."""

from __future__ import annotations

import logging

from dex_agents._effects import ToolEffect
from dex_agents._media.reference import ImageError, ImageReference, MediaStore

_LOGGER = logging.getLogger("dex_agents")


async def put_tool_image(
    store: MediaStore, data: bytes, effect: ToolEffect
) -> ImageReference | str:
    """Store an image of a tool's result: its reference, or why it is left out.

    The tool has run. So an image that no store takes never hides its result, and a store that fails
    only does where the call may be made again.

    Raises:
        Exception: The store failed, and the effect permits another attempt.
    """
    try:
        return await store.put_image(data)
    except ImageError as error:
        return str(error)
    except Exception as error:
        if effect.maximum_attempts > 1:
            raise
        _LOGGER.warning("an image of a tool's result could not be stored", exc_info=True)
        return f"it could not be stored ({type(error).__name__})"
