"""Images: placeholders in everything stored, bytes in the requests of the model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from dex_agents._contract import Json
from dex_agents._effects import ToolEffect
from dex_agents._errors import ModelCallError
from dex_agents._media.reference import ImageReference, MediaStore
from dex_agents._media.tool_images import put_tool_image

IMAGES_KEY = "__dex_images__"
"""Entry of a replayed result that holds its images' placeholder Parts."""
_CACHE_BYTES = 64 * 1024 * 1024
_MAXIMUM_DEPTH = 1  # as ADK: the result and one container inside it


def placeholder(image: ImageReference) -> types.Part:
    """What stands for an image in stored events."""
    return types.Part.from_uri(file_uri=image.uri, mime_type=image.mime_type)


def images_of_event(event: Event, known: Collection[str]) -> tuple[ImageReference, ...]:
    """The placeholders of an event, in order, among the given URIs."""
    parts = (event.content.parts if event.content else None) or []
    return tuple(
        ImageReference(file.file_uri, file.mime_type or "")
        for file in _files(parts)
        if file.file_uri and file.file_uri in known
    )


def uris_of_item(item: Json) -> Iterator[str]:
    """File URIs of a stored user message."""
    content = item.get("content") if isinstance(item, dict) else None
    for part in (content or {}).get("parts") or []:
        if uri := (part.get("file_data") or {}).get("file_uri"):
            yield uri


def _files(parts: Sequence[types.Part]) -> Iterator[Any]:
    for part in parts:
        if part.file_data is not None:
            yield part.file_data
        response = part.function_response
        for inner in (response.parts if response is not None else None) or []:
            if inner.file_data is not None:
                yield inner.file_data


class ImageLoader:
    """Reads images, and keeps those read last in memory.

    Args:
        store: Where they are; ``None`` means that a session can have none.
    """

    def __init__(self, store: MediaStore | None) -> None:
        self.store = store
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached = 0

    async def fill(self, request: LlmRequest, known: Collection[str]) -> None:
        """Put the bytes where a request has placeholders.

        Raises:
            ModelCallError: The store cannot give an image.
        """
        if self.store is None or not known:
            return
        for index, content in enumerate(request.contents):
            parts = content.parts or []
            if any(file.file_uri in known for file in _files(parts)):
                filled = [await self._fill_part(part, known) for part in parts]
                request.contents[index] = content.model_copy(update={"parts": filled})

    async def _fill_part(self, part: types.Part, known: Collection[str]) -> types.Part:
        file = part.file_data
        if file is not None and file.file_uri in known:
            data = await self._load(file.file_uri or "")
            blob = types.Blob(data=data, mime_type=file.mime_type)
            return part.model_copy(update={"file_data": None, "inline_data": blob})
        response = part.function_response
        if response is None or not response.parts:
            return part
        inner = [await self._fill_response_part(item, known) for item in response.parts]
        return part.model_copy(
            update={"function_response": response.model_copy(update={"parts": inner})}
        )

    async def _fill_response_part(
        self, part: types.FunctionResponsePart, known: Collection[str]
    ) -> types.FunctionResponsePart:
        file = part.file_data
        if file is None or file.file_uri not in known:
            return part
        data = await self._load(file.file_uri or "")
        return types.FunctionResponsePart.from_bytes(data=data, mime_type=file.mime_type or "")

    async def _load(self, uri: str) -> bytes:
        if (found := self._cache.get(uri)) is not None:
            self._cache.move_to_end(uri)
            return found
        assert self.store is not None
        try:
            data = await self.store.get_image(uri)
        except Exception as error:
            raise ModelCallError(f"an image of the session could not be read: {error}") from error
        if not isinstance(data, bytes):
            raise ModelCallError(
                "an image of the session could not be read: get_image of the media store gave a "
                f"{type(data).__name__} instead of bytes"
            )
        self._keep(uri, data)
        return data

    def _keep(self, uri: str, data: bytes) -> None:
        # Others may have read the same image meanwhile.
        self._cached += len(data) - len(self._cache.pop(uri, b""))
        self._cache[uri] = data
        while self._cached > _CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached -= len(dropped)


def split_images(result: Any) -> tuple[Any, list[types.Blob]]:
    """A tool's result without its images, and the images in order, as ADK takes media out."""
    images: list[types.Blob] = []
    if (blob := _image(result)) is not None:
        return {}, [blob]
    try:
        remaining = _without_images(result, images, 0)
    except Exception:  # a container that breaks while it is read is saved as it is
        return result, []
    return (remaining or {}, images) if images else (result, [])


def lost_images(count: int) -> list[str]:
    """What the model reads of images that have no store to go to."""
    lost = "1 image was" if count == 1 else f"{count} images were"
    return [f"{lost} left out: the session has no media store"] if count else []


async def put_images(
    store: MediaStore | None, blobs: Sequence[types.Blob], effect: ToolEffect
) -> tuple[list[ImageReference], list[str]]:
    """References of a result's images, and what the model reads of those that are left out.

    Raises:
        Exception: See :func:`put_tool_image`.
    """
    if store is None:
        return [], lost_images(len(blobs))
    images: list[ImageReference] = []
    lost: list[str] = []
    for blob in blobs:
        put = await put_tool_image(store, blob.data or b"", effect)
        if isinstance(put, ImageReference):
            images.append(put)
        else:
            lost.append(f"image of type {blob.mime_type} was left out: {put}")
    return images, lost


def _without_images(value: Any, images: list[types.Blob], depth: int) -> Any:
    if isinstance(value, dict):
        kept_items = {}
        for key, item in value.items():
            keep, kept = _entry(item, images, depth)
            if keep:
                kept_items[key] = kept
        return kept_items
    if isinstance(value, (list, tuple)):
        kept_values = []
        for item in value:
            keep, kept = _entry(item, images, depth)
            if keep:
                kept_values.append(kept)
        return kept_values
    return value


def _entry(value: Any, images: list[types.Blob], depth: int) -> tuple[bool, Any]:
    if (blob := _image(value)) is not None:
        images.append(blob)
        return False, None
    if depth >= _MAXIMUM_DEPTH or not isinstance(value, (dict, list, tuple)):
        return True, value
    before = len(images)
    remaining = _without_images(value, images, depth + 1)
    if len(images) == before:
        return True, value
    return bool(remaining), remaining


def _image(value: Any) -> types.Blob | None:
    if not isinstance(value, types.Part) or value.inline_data is None:
        return None
    blob = value.inline_data
    is_image = blob.data is not None and (blob.mime_type or "").startswith("image/")
    return blob if is_image else None
