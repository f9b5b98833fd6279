"""Graphs of `dex-lite flow show --graph svg` as a browser draws them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from dex_lite._cli._run_view import RunView, StepView
from dex_lite._cli._svg import svg
from support.browser import open_browser

CHANNEL = "answers/of-the-user/" + "x" * 90
NAMES = [
    "W" * 30,
    "mmmm@@@%%%",
    "illicit",
    "Genehmigung_ÄÖÜ",
    "Жданов",
    "承認を待つ",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "RunModel-12",
]
LEFT_EDGE = 8  # where the coloured bar of a box ends


def run() -> RunView:
    steps = [
        StepView(
            f"{name}-1",
            name,
            "",
            "waiting",
            wait_text=f"channel {CHANNEL} (1) or timer {name} (60 s)",
        )
        for name in NAMES
    ]
    steps += [StepView("Fails-1", "Fails", "", "failed", error="ValueError: " + "no way " * 100)]
    return RunView("F" * 60, "r", "W" * 60, "running", 1, None, 1, roots=steps)


async def test_no_text_leaves_its_box(tmp_path: Path) -> None:
    page = tmp_path / "run.svg"
    page.write_text(svg(run()), encoding="utf-8")
    script = """
        return JSON.stringify([...document.querySelectorAll('g')].map(g => {
            const box = g.querySelector('.box, .pill').getBBox();
            return [...g.querySelectorAll('text')].map(text => {
                const t = text.getBBox();
                return [text.textContent, t.x - box.x, box.x + box.width - t.x - t.width,
                        t.y - box.y, box.y + box.height - t.y - t.height];
            });
        }))
    """
    async with open_browser(tmp_path / "profile") as browser:
        await browser.open(page.as_uri())
        boxes = json.loads(str(await browser.run(script)))
    assert len(boxes) == 1 + len(NAMES) + 1
    for text, left, right, above, below in itertools.chain(*boxes):
        assert min(left, right) > LEFT_EDGE and min(above, below) > 2, text


def test_names_of_channels_are_whole() -> None:
    (step,) = [step for step in run().roots if step.step_type == "illicit"]
    view = RunView("f", "r", "F", "running", 1, None, 1, roots=[step])
    lines = [part.split("</text>")[0] for part in svg(view).split('">')]
    assert f"{CHANNEL} (1)" in "".join(lines)
