"""Names of images by what is in them, so that the same bytes are stored once."""

from __future__ import annotations

import hashlib
import re

from dex_agents._arguments import check_instance
from dex_agents._media.reference import MediaStoreError

_NAME = re.compile(r"[0-9a-f]{64}")


def content_name(data: bytes) -> str:
    """The SHA-256 of the bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def name_in_uri(uri: str, scheme: str, store: str) -> str:
    """The name that follows ``scheme`` in a reference.

    Args:
        store: The store and its article, for the message.

    Raises:
        TypeError: It is no text.
        MediaStoreError: Another store made the reference.
    """
    check_instance("uri", uri, str, "it is ImageReference.uri")
    name = uri.removeprefix(scheme)
    if not uri.startswith(scheme) or not _NAME.fullmatch(name):
        raise MediaStoreError(f"{uri[:80]!r} is no reference of {store}")
    return name
