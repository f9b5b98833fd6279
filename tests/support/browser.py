"""Headless Chromium, driven by plain WebDriver commands over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from support.ci import missing

WAIT_MS = 30_000
START_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=900,1000",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # WebDriver's own name for a reference


class Browser:
    """One window. Finding an element waits for it, up to half a minute."""

    def __init__(self, http: httpx.AsyncClient, session: str) -> None:
        self._http = http
        self._session = session

    async def open(self, url: str) -> None:
        """Load a page."""
        await self._do("POST", "url", url=url)

    async def click(self, css: str) -> None:
        """Click the first element that fits."""
        await self._do("POST", f"element/{await self._find(css)}/click")

    async def type(self, css: str, text: str) -> None:
        """Type into an element."""
        await self._do("POST", f"element/{await self._find(css)}/value", text=text)

    async def text(self, css: str) -> str:
        """The visible text of an element."""
        return str(await self._do("GET", f"element/{await self._find(css)}/text"))

    async def wait_for(self, css: str) -> None:
        """Wait for an element."""
        await self._find(css)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript function's body."""
        return await self._do("POST", "execute/sync", script=script, args=[])

    async def screenshot(self, path: Path) -> None:
        """Save what is seen."""
        path.write_bytes(base64.b64decode(await self._do("GET", "screenshot")))

    async def _find(self, css: str) -> str:
        found = await self._do("POST", "element", using="css selector", value=css)
        return str(found[_ELEMENT])

    async def _do(self, method: str, command: str, **body: Any) -> Any:
        answer = await self._http.request(
            method,
            f"/session/{self._session}/{command}",
            json=body if method == "POST" else None,
        )
        value = answer.json()["value"]
        assert answer.status_code == 200, f"{command}: {value}"
        return value


@contextlib.asynccontextmanager
async def open_browser(profile: Path) -> AsyncIterator[Browser]:
    """A browser with a new profile; skips the test where there is none, except on CI."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("chromium and chromium-driver are not installed")
    process = await asyncio.create_subprocess_exec(
        driver,
        "--port=0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await asyncio.wait_for(_port_of(process), START_S)
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=2 * START_S, trust_env=False) as http:
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {
                    "binary": chromium,
                    "args": [*FLAGS, f"--user-data-dir={profile}"],
                },
                "timeouts": {"implicit": WAIT_MS},
            }
            answer = await http.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            value = answer.json()["value"]
            assert answer.status_code == 200, value
            session = value["sessionId"]
            try:
                yield Browser(http, session)
            finally:
                await http.delete(f"/session/{session}")
    finally:
        process.terminate()
        await process.wait()


async def _port_of(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if "started successfully on port" in line:
            return int(line.rpartition(" ")[2].strip().rstrip("."))
    raise RuntimeError("chromedriver ended before it was ready")
