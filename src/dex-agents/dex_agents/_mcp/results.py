"""What an MCP server's answer to a call becomes."""

from __future__ import annotations

import base64
import binascii

from mcp_types import AudioContent, CallToolResult, EmbeddedResource, ImageContent, TextContent

from dex_agents._contract import Json, ToolExecutionResult
from dex_agents._effects import ToolEffect
from dex_agents._media.reference import ImageReference, MediaStore
from dex_agents._media.tool_images import put_tool_image


async def to_result(
    result: CallToolResult, store: MediaStore | None, effect: ToolEffect
) -> ToolExecutionResult:
    """The structured value if there is one, else the texts; images go to the store.

    Raises:
        Exception: See :func:`put_tool_image`.
    """
    images: list[ImageReference] = []
    texts: list[str] = []
    lost: list[str] = []
    for block in result.content:
        if isinstance(block, ImageContent) and store is not None:
            data = _decoded(block.data)
            put = "it is no base64" if data is None else await put_tool_image(store, data, effect)
            if isinstance(put, ImageReference):
                images.append(put)
            else:
                lost.append(f"{_left_out(block)}: {put}")
        elif isinstance(block, ImageContent | AudioContent):
            lost.append(_left_out(block))
        else:
            texts.append(_text_of(block))
    output: Json = result.structured_content
    if output is None:
        output = "\n".join(texts)
    return ToolExecutionResult(output, images=images, not_stored=lost)


def error_text(result: CallToolResult) -> str:
    """What the server says about a call that failed."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    return "\n".join(texts) or "the MCP server reported a failure without a text"


def _decoded(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _left_out(block: ImageContent | AudioContent) -> str:
    return f"{block.type} of type {block.mime_type} was left out"


def _text_of(block: object) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, EmbeddedResource):
        text = getattr(block.resource, "text", None)
        if isinstance(text, str):
            return text
        return f"(resource {block.resource.uri} was left out)"
    uri = getattr(block, "uri", None)
    return f"(link to {uri})" if uri is not None else f"({type(block).__name__} was left out)"
