"""What stands for an image in everything that a session stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dex_agents._arguments import check_fields
from dex_agents._errors import AgentError

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""The largest image that a store takes, in bytes."""


class ImageError(AgentError, ValueError):
    """An image was refused: too large, empty, or of no known type."""


class MediaStoreError(AgentError):
    """A store could not write or read; trying again may help."""


@dataclass(frozen=True)
class ImageReference:
    """A durable pointer to the bytes of one image.

    Attributes:
        uri: Names the bytes; the same bytes have the same one.
        mime_type: For example ``image/png``.
    """

    uri: str
    mime_type: str

    def __post_init__(self) -> None:
        check_fields(self, {"uri": str, "mime_type": str})


@runtime_checkable
class MediaStore(Protocol):
    """Where images live. Every Worker and every client that uploads uses the same one."""

    async def put_image(self, data: bytes) -> ImageReference:
        """Store an image and say where it is. Again with the same bytes changes nothing.

        Raises:
            ImageError: It is no image of a known type, empty, or above ``MAX_IMAGE_BYTES``.
            MediaStoreError: It could not be written.
        """

    async def get_image(self, uri: str) -> bytes:
        """The bytes behind a reference's ``uri``.

        Raises:
            MediaStoreError: They are not there, or could not be read.
        """


def image_type(data: bytes) -> str:
    """The MIME type, by the first bytes.

    Raises:
        ImageError: The data is empty, too large, or of no type that models take.
    """
    if not isinstance(data, bytes):
        raise ImageError(f"an image must be bytes, got {type(data).__name__}")
    if not data:
        raise ImageError("an image must not be empty")
    if len(data) > MAX_IMAGE_BYTES:
        raise ImageError(
            f"the image has {len(data)} bytes, at most {MAX_IMAGE_BYTES} are taken; scale it down"
        )
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        if brand in (b"heic", b"heix", b"hevc", b"hevx"):
            return "image/heic"
        if brand in (b"mif1", b"msf1"):
            return "image/heif"
        if brand in (b"avif", b"avis"):
            return "image/avif"
    raise ImageError(
        "the data is no image of a known type; PNG, JPEG, GIF, WebP, HEIC, HEIF and AVIF are"
    )


def reference_to_json(reference: ImageReference) -> Any:
    """For storage."""
    return {"uri": reference.uri, "mime_type": reference.mime_type}


def references_from_json(items: Sequence[Any] | None) -> tuple[ImageReference, ...]:
    """From storage."""
    return tuple(ImageReference(item["uri"], item["mime_type"]) for item in items or ())
