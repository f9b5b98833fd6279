"""A model call with images that a kill repeats is the same to the last byte."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from dex_agents import LocalDirectoryMediaStore
from dex_agents.testing import WorkerProcess, private_engine, session_client
from e2e.image_agent import CHART, URL_FILE, build_flow
from support.gemini_server import Answer, GeminiServer, call_part, say

TURN_S = 60.0
PHOTO = b"\xff\xd8\xff\xe0" + bytes(range(255, 0, -1)) * 4


async def test_a_repeated_model_call_sends_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "loopback")
    script = [
        Answer([[call_part("draw")]]),
        say("drawn"),
        say("lost with its Worker"),
        say("two pictures"),
    ]
    with GeminiServer(script) as server:
        (tmp_path / URL_FILE).write_text(server.url)
        flow = build_flow(tmp_path)
        photo = await LocalDirectoryMediaStore(tmp_path / "media").put_image(PHOTO)
        async with (
            private_engine(tmp_path / "engine.db") as engine,
            session_client(flow, server_address=engine.address) as sessions,
        ):
            start: Any = {"server_address": engine.address, "data_dir": tmp_path}
            place = "e2e.image_agent:build_flow"
            await sessions.start_session("s", "draw it", images=[photo])
            worker = await WorkerProcess.start(place, **start)
            await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
            await worker.stop()
            killed = await WorkerProcess.start(place, failpoints=["model.after_call"], **start)
            await sessions.send_user_message("s", "what do you see?")
            await killed.wait()
            worker = await WorkerProcess.start(place, **start)
            await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
            await worker.stop()
    assert len(server.requests) == 4
    assert server.requests[2].data == server.requests[3].data
    for image in (PHOTO, CHART):
        assert base64.urlsafe_b64encode(image) in server.requests[3].data
