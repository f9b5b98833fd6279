"""Stores of images: by content, atomic, nothing outside their place."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from dex_agents import (
    MAX_IMAGE_BYTES,
    ImageError,
    LocalDirectoryMediaStore,
    MediaStore,
    MediaStoreError,
)
from dex_agents.s3 import S3MediaStore
from support.loopback import LoopbackServer, RecordedRequest

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
    [
        "",
        "gs://bucket/x",
        "dex-media-local:../../etc/passwd",
        "dex-media-local:/etc/passwd",
        "dex-media-local:" + "../" * 22,
        "dex-media-local:" + "0" * 64 + "\n",
        "dex-media-local:" + "\uff10" * 64,  # digits, but not of ASCII
        "dex-media-local:" + "0" * 63 + "\0",
        "dex-media-s3:" + "A" * 64,
        "dex-media-s3:" + "\ud800" * 64,
        "x" * 64,
        "x" * 1_000_000,
    ],
)
async def test_a_foreign_uri_is_refused(store: MediaStore, uri: str) -> None:
    shown = re.escape(repr(uri[:80]))
    with pytest.raises(MediaStoreError, match=rf"^{shown} is no reference of an? \w+MediaStore$"):
        await store.get_image(uri)


@pytest.mark.parametrize("uri", [None, 7, b"dex-media-local:"])
async def test_a_uri_that_is_no_text_is_refused(store: MediaStore, uri: Any) -> None:
    with pytest.raises(TypeError, match=r"^uri must be a str, got \w+; it is ImageReference.uri$"):
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


class FaultyS3(LoopbackServer):
    """Answers every request with one fault."""

    def __init__(self, fault: int | str) -> None:
        super().__init__()
        self.fault = fault
        self.hangs = 1.5  # seconds, more than its clients wait

    def respond(
        self, handler: BaseHTTPRequestHandler, request: RecordedRequest, number: int
    ) -> None:
        handler.close_connection = True
        if self.fault == "hangs":
            time.sleep(self.hangs)
            return
        body = b"<Error><Code>Refused</Code><Message>not for you</Message></Error>"
        status = 200 if self.fault == "is cut off" else int(self.fault)
        handler.send_response(status)
        handler.send_header("content-length", str(len(body) + 900 * (status == 200)))
        handler.end_headers()
        handler.wfile.write(body)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (403, "Refused.*not for you"),
        (404, "Refused.*not for you"),
        (503, "Refused.*not for you"),
        ("hangs", "Read timeout"),
        ("is cut off", "more expected"),
        ("is away", "Could not connect"),
    ],
)
async def test_a_bucket_that_gives_no_answer_is_named(fault: int | str, reason: str) -> None:
    async def check(url: str) -> None:
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="secret-key",
            config=Config(read_timeout=0.5, retries={"total_max_attempts": 1}),
        )
        store = S3MediaStore("agent-media", client=client)
        uses: dict[str, Awaitable[Any]] = {"read": store.get_image(f"dex-media-s3:{'0' * 64}")}
        if fault != "is cut off":
            uses["written"] = store.put_image(PNG)
        for what, use in uses.items():
            pattern = rf"^image \w{{64}} in bucket agent-media could not be {what}: .*{reason}"
            with pytest.raises(MediaStoreError, match=pattern) as raised:
                await use
            assert "secret-key" not in str(raised.value)

    with FaultyS3(fault) as server:
        if fault != "is away":
            await check(server.url)
    if fault == "is away":
        await check(server.url)


WRITER = """
import asyncio, sys
from dex_agents import LocalDirectoryMediaStore

async def main():
    store = LocalDirectoryMediaStore(sys.argv[1])
    images = [b"\\x89PNG\\r\\n\\x1a\\n" + bytes([number]) * 300_000 for number in range(8)]
    for _ in range(5):
        given = await asyncio.gather(*(store.put_image(image) for image in images))
        read = await asyncio.gather(*(store.get_image(image.uri) for image in given))
        assert read == images

asyncio.run(main())
"""


async def test_writers_of_several_processes_see_whole_images_only(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "media")]) for _ in range(3)
    ]
    codes = await asyncio.gather(*(asyncio.to_thread(writer.wait, 60) for writer in writers))
    assert codes == [0, 0, 0]
    files = [path for path in (tmp_path / "media").rglob("*") if path.is_file()]
    assert len(files) == 8 and all(len(path.name) == 64 for path in files)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such rights")
@pytest.mark.parametrize("umask", [0o022, 0o027])
async def test_who_may_read_an_image_is_what_the_process_says(tmp_path: Path, umask: int) -> None:
    # Web servers that upload and Workers that read are often different users.
    before = os.umask(umask)
    try:
        reference = await LocalDirectoryMediaStore(tmp_path).put_image(PNG)
    finally:
        os.umask(before)
    place = tmp_path / reference.uri[-64:][:2] / reference.uri[-64:]
    assert place.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("odd", ["folder", "link"])
async def test_what_stands_in_the_place_of_an_image(tmp_path: Path, odd: str) -> None:
    store = LocalDirectoryMediaStore(tmp_path / "media")
    reference = await store.put_image(PNG)
    place = tmp_path / "media" / reference.uri[-64:][:2] / reference.uri[-64:]
    place.unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(b"not to be touched")
    if odd == "link":
        place.symlink_to(outside)
        with pytest.raises(MediaStoreError, match="damaged"):
            await store.get_image(reference.uri)
        assert await store.put_image(PNG) == reference
        assert await store.get_image(reference.uri) == PNG and not place.is_symlink()
    else:
        place.mkdir()
        with pytest.raises(MediaStoreError, match=r"could not be read: .*[Dd]irectory"):
            await store.get_image(reference.uri)
        with pytest.raises(MediaStoreError, match=r"could not be written: .*[Dd]irectory"):
            await store.put_image(PNG)
        assert list(place.parent.iterdir()) == [place]
    assert outside.read_bytes() == b"not to be touched"


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
