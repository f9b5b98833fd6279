"""A media store in an S3 bucket; needs the extra ``s3``."""

from __future__ import annotations

import asyncio
from typing import Any

from dex_agents._arguments import check_name, shown
from dex_agents._media.content_name import content_name, name_in_uri
from dex_agents._media.reference import ImageReference, MediaStoreError, image_type

try:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as error:  # pragma: no cover
    raise ImportError("S3MediaStore needs boto3; install dex-agents[s3]") from error

__all__ = ["S3MediaStore"]

_SCHEME = "dex-media-s3:"


class S3MediaStore:
    """Keeps images as objects named by the SHA-256 of their bytes.

    The reference holds neither bucket nor prefix, so that they can move.

    Args:
        bucket: The bucket, which exists.
        prefix: What the objects' keys begin with; may be empty.
        client: A boto3 S3 client; by default one from boto3's own configuration.

    Raises:
        TypeError, ValueError: ``bucket`` or ``prefix`` is no printable text, ``prefix`` begins with a
            slash, or ``client`` is no S3 client.
    """

    def __init__(self, bucket: str, prefix: str = "", *, client: Any = None) -> None:
        check_name("bucket", bucket)
        if prefix != "":
            check_name("prefix", prefix)
        if prefix.startswith("/"):
            raise ValueError(
                f"prefix must be a text that does not begin with /, got {shown(prefix)}"
            )
        self._bucket = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        if client is not None and not hasattr(client, "put_object"):
            raise TypeError(
                f"client must be a boto3 S3 client, got {type(client).__name__}; make one with "
                "boto3.client('s3')"
            )
        self._client = client or boto3.client("s3")

    async def put_image(self, data: bytes) -> ImageReference:
        """See :class:`dex_agents.MediaStore`."""
        mime_type = image_type(data)
        name = content_name(data)
        await self._ask("written", name, self._put, name, data, mime_type)
        return ImageReference(f"{_SCHEME}{name}", mime_type)

    async def get_image(self, uri: str) -> bytes:
        """See :class:`dex_agents.MediaStore`."""
        name = name_in_uri(uri, _SCHEME, "an S3MediaStore")
        data: bytes = await self._ask("read", name, self._get, name)
        if content_name(data) != name:
            raise MediaStoreError(f"image {name} in bucket {self._bucket} is damaged")
        return data

    async def _ask(self, what: str, name: str, call: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(call, *arguments)
        except (BotoCoreError, ClientError) as error:
            raise MediaStoreError(
                f"image {name} in bucket {self._bucket} could not be {what}: {error}"
            ) from error

    def _put(self, name: str, data: bytes, mime_type: str) -> None:
        self._client.put_object(
            Bucket=self._bucket, Key=self._prefix + name, Body=data, ContentType=mime_type
        )

    def _get(self, name: str) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
        data: bytes = answer["Body"].read()
        return data
