"""A store in a folder."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

from dex_agents._arguments import path_of
from dex_agents._media.content_name import content_name, name_in_uri
from dex_agents._media.reference import ImageReference, MediaStoreError, image_type

_SCHEME = "dex-media-local:"


class LocalDirectoryMediaStore:
    """Keeps images as files of one folder, named by the SHA-256 of their bytes.

    A file is written beside its place, synced and renamed, so that nobody ever reads half an image.
    The reference holds no path: the folder may move, and processes may mount it elsewhere.

    Args:
        directory: The folder; made if it is not there.

    Raises:
        TypeError: ``directory`` is no path.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = path_of("directory", directory)

    async def put_image(self, data: bytes) -> ImageReference:
        """See :class:`dex_agents.MediaStore`."""
        mime_type = image_type(data)
        name = content_name(data)
        await asyncio.to_thread(self._write, name, data)
        return ImageReference(f"{_SCHEME}{name}", mime_type)

    async def get_image(self, uri: str) -> bytes:
        """See :class:`dex_agents.MediaStore`."""
        name = name_in_uri(uri, _SCHEME, "a LocalDirectoryMediaStore")
        return await asyncio.to_thread(self._read, name)

    def _write(self, name: str, data: bytes) -> None:
        place = self._place(name)
        try:
            made = [folder for folder in place.parents if not folder.exists()]
            if not _holds(place, data):
                _write_whole(place, data)
            # Also for a file that was there: who wrote it may not have come to this.
            for folder in (place.parent, self._directory, *(folder.parent for folder in made[1:])):
                _sync_folder(folder)
        except OSError as error:
            raise MediaStoreError(f"image {name} could not be written: {error}") from error

    def _read(self, name: str) -> bytes:
        try:
            data = self._place(name).read_bytes()
        except FileNotFoundError:
            raise MediaStoreError(
                f"image {name} is not in {self._directory}; does every Worker use the same folder?"
            ) from None
        except OSError as error:
            raise MediaStoreError(f"image {name} could not be read: {error}") from error
        if content_name(data) != name:
            raise MediaStoreError(f"image {name} in {self._directory} is damaged")
        return data

    def _place(self, name: str) -> Path:
        return self._directory / name[:2] / name


def _holds(place: Path, data: bytes) -> bool:
    return place.is_file() and place.stat().st_size == len(data) and place.read_bytes() == data


def _write_whole(place: Path, data: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    # A temporary file of the library would be readable for this user only, whatever the umask says.
    beside = place.parent / f".writing-{uuid.uuid4().hex}"
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
