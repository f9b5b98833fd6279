"""Stores of images: by content, atomic, nothing outside their place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from dex_agents import (
    MAX_IMAGE_BYTES,
    ImageError,
    LocalDirectoryMediaStore,
    MediaStore,
    MediaStoreError,
)
from dex_agents.s3 import S3MediaStore

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
SAMPLES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0rest",
    "image/gif": b"GIF89arest",
    "image/webp": b"RIFF\x00\x00\x00\x00WEBPrest",
    "image/heic": b"\x00\x00\x00\x18ftypheicrest",
    "image/heif": b"\x00\x00\x00\x18ftypmif1rest",
    "image/avif": b"\x00\x00\x00\x18ftypavifrest",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket="agent-media")
    yield client
    server.stop()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MediaStore:
    if request.param == "local":
        return LocalDirectoryMediaStore(tmp_path / "media")
    return S3MediaStore("agent-media", "sessions", client=request.getfixturevalue("s3"))


@pytest.mark.parametrize("mime_type", SAMPLES)
async def test_types_are_detected_and_bytes_come_back(store: MediaStore, mime_type: str) -> None:
    reference = await store.put_image(SAMPLES[mime_type])
    assert reference.mime_type == mime_type
    assert await store.get_image(reference.uri) == SAMPLES[mime_type]


async def test_the_same_bytes_have_one_reference(store: MediaStore) -> None:
    assert await store.put_image(PNG) == await store.put_image(PNG)
    assert await store.put_image(PNG + b"x") != await store.put_image(PNG)


@pytest.mark.parametrize(
    "data,message",
    [
        (b"", "must not be empty"),
        (b"no image", "no image of a known type.*PNG"),
        (b"<svg/>", "no image of a known type"),
        ("text", "must be bytes, got str"),
        (PNG.ljust(MAX_IMAGE_BYTES + 1, b"x"), f"{MAX_IMAGE_BYTES + 1} bytes, at most"),
    ],
    ids=["empty", "text", "svg", "str", "large"],
)
async def test_what_is_no_image_is_refused(store: MediaStore, data: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        await store.put_image(data)


async def test_the_largest_image_is_taken(store: MediaStore) -> None:
    data = PNG.ljust(MAX_IMAGE_BYTES, b"x")
    reference = await store.put_image(data)
    assert await store.get_image(reference.uri) == data


@pytest.mark.parametrize(
    "uri",
    ["", "gs://bucket/x", "dex-media-local:../../etc/passwd", "dex-media-s3:" + "A" * 64, "x" * 64],
)
async def test_a_foreign_uri_is_refused(store: MediaStore, uri: str) -> None:
    with pytest.raises(MediaStoreError, match="is no reference"):
        await store.get_image(uri)


async def test_a_missing_image_is_named(store: MediaStore) -> None:
    uri = (await store.put_image(PNG)).uri
    missing = uri[:-64] + "0" * 64
    with pytest.raises(MediaStoreError, match=r"0{64}"):
        await store.get_image(missing)


async def test_a_folder_holds_whole_files_only(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    reference = await store.put_image(PNG)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == [reference.uri.removeprefix("dex-media-local:")]
    files[0].write_bytes(b"damaged")
    with pytest.raises(MediaStoreError, match="damaged"):
        await store.get_image(reference.uri)
    assert await store.put_image(PNG) == reference
    assert await store.get_image(reference.uri) == PNG


async def test_bytes_that_were_damaged_in_place_are_written_again(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    reference = await store.put_image(PNG)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(b"x" * len(PNG))
    assert await store.put_image(PNG) == reference
    assert await store.get_image(reference.uri) == PNG


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_an_image_and_the_way_to_it_are_on_disk_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    folder = tmp_path / "new" / "media"
    name = (await LocalDirectoryMediaStore(folder).put_image(PNG)).uri[-64:]
    file, *folders = synced
    assert Path(file).parent == folder / name[:2]
    assert set(folders) == set(map(str, (folder / name[:2], folder, folder.parent, tmp_path)))
    # Another process may have been killed between its renaming and its syncing.
    synced.clear()
    await LocalDirectoryMediaStore(folder).put_image(PNG)
    assert synced == [str(folder / name[:2]), str(folder)]


async def test_a_bucket_that_cannot_be_used_is_named(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3MediaStore("no-such-bucket", client=s3)
    uri = f"dex-media-s3:{'0' * 64}"
    for use in (store.put_image(PNG), store.get_image(uri)):
        with pytest.raises(MediaStoreError, match=r"no-such-bucket could not be .*NoSuchBucket"):
            await use
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    nobody = boto3.session.Session().client("s3", endpoint_url=s3.meta.endpoint_url)
    with pytest.raises(MediaStoreError, match=r"agent-media could not be written.*redential"):
        await S3MediaStore("agent-media", client=nobody).put_image(PNG)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b c/\u00fc"])
async def test_a_prefix_is_a_folder_of_keys(s3: Any, prefix: str) -> None:
    bucket = f"bucket-{len(prefix)}"
    s3.create_bucket(Bucket=bucket)
    store = S3MediaStore(bucket, prefix, client=s3)
    reference = await store.put_image(PNG)
    assert await store.get_image(reference.uri) == PNG
    (found,) = s3.list_objects_v2(Bucket=bucket)["Contents"]
    assert found["Key"] == "/".join(filter(None, [prefix.rstrip("/"), reference.uri[-64:]]))


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs /proc")
async def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(MediaStoreError, match="could not be written"):
        await LocalDirectoryMediaStore("/proc/self/media").put_image(PNG)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="must be a path"):
        LocalDirectoryMediaStore(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bucket"):
        S3MediaStore(" ", client=object())
    with pytest.raises(ValueError, match="prefix"):
        S3MediaStore("b", "/x", client=object())
