"""A run as SVG: layers from top to bottom, boxes and curved arrows. No library, no fonts needed."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from dex_lite._cli._graph import Node, nodes
from dex_lite._cli._run_view import RunView

_LINE = 17
_TITLE = 20
_PADDING = 14
_BETWEEN = 28
_LAYER_GAP = 52
_MARGIN = 24
_MINIMUM_WIDTH = 120
_TITLE_SIZE, _TEXT_SIZE = 14, 12
# Widths of characters as parts of the size, in the widest font of those below: text must not leave its box.
_WIDTHS = {
    character: width
    for width, characters in {
        0.3: "'ijl",
        0.4: " (),-./:;IJ[\\]ft|",
        0.5: '!"*_`r',
        0.6: "?FLcksvxyz",
        0.8: "&DGHNOQU",
        0.9: "#+<=>M^w~",
        1.0: "%@Wm",
    }.items()
    for character in characters
}
_USUAL_WIDTH, _BEYOND_ASCII, _BEYOND_LATIN = 0.7, 0.8, 1.1
_BOLD = 1.2

# Colours are attributes, which every viewer knows; a browser with a dark page overrides them.
_PAGE, _INK, _SOFT, _LINE_COLOUR, _BOX, _EDGE = (
    "#ffffff",
    "#1d2430",
    "#5d6778",
    "#98a2b3",
    "#ffffff",
    "#d5dae2",
)
_GOOD, _BAD, _LIVE, _WARN = "#1f8a4c", "#c62f2f", "#2f6fc6", "#b97a06"
_ACCENTS = {
    "completed": _GOOD,
    "failed": _BAD,
    "waiting": _LIVE,
    "running": _LIVE,
    "retrying": _WARN,
    "end-completed": _GOOD,
    "end-failed": _BAD,
    "end-terminated": _BAD,
    "end-canceled": _BAD,
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_DARK = """
  @media (prefers-color-scheme: dark) {
    .page { fill: #12161d } .box { fill: #1b212b; stroke: #343c49 } .pill { fill: #1b212b }
    .title { fill: #e9edf3 } .line { fill: #9aa5b5 } .edge { stroke: #667085 }
    .head { fill: #667085 }
  }
"""


@dataclass
class _Box:
    node: Node
    width: float
    height: float
    layer: int = 0
    x: float = 0.0  # of the middle
    y: float = 0.0  # of the top


def svg(view: RunView) -> str:
    """The run as an SVG document."""
    boxes = [_measure(node) for node in nodes(view)]
    has_end = boxes[-1].node.state.startswith("end-")
    _place(boxes, has_end)
    width = max(box.x + box.width / 2 for box in boxes) + _MARGIN
    height = max(box.y + box.height for box in boxes) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>{_text(view.flow_id)}: {_text(view.flow_type)}, {_text(view.status)}</title>",
        f"<style>{_DARK}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path class="head" fill="'
        f'{_LINE_COLOUR}" d="M0 0.6 L8 4 L0 7.4 z"/></marker></defs>',
        f'<rect class="page" fill="{_PAGE}" width="{width:.0f}" height="{height:.0f}"/>',
    ]
    for box in boxes:
        parts += [_edge(box, boxes[child]) for child in box.node.children]
    parts += [_draw(box) for box in boxes]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _measure(node: Node) -> _Box:
    title = _length(node.title) * _TITLE_SIZE * _BOLD
    lines = max((_length(line) * _TEXT_SIZE for line in node.lines), default=0.0)
    width = max(_MINIMUM_WIDTH, title + 2 * _PADDING, lines + 2 * _PADDING)
    return _Box(node, width, 2 * _PADDING - 4 + _TITLE + _LINE * len(node.lines))


def _length(text: str) -> float:
    """The width of a text as a multiple of its size, a little generous."""
    return sum(_width(character) for character in text)


def _width(character: str) -> float:
    if character.isascii():
        return _WIDTHS.get(character, _USUAL_WIDTH)
    return _BEYOND_ASCII if ord(character) < 0x250 else _BEYOND_LATIN


def _place(boxes: list[_Box], has_end: bool) -> None:
    """Layers by distance from the start; a parent in the middle above its children."""
    last = len(boxes) - 1
    order = []
    pending = [0]
    while pending:
        number = pending.pop()
        order.append(number)
        for child in _below(boxes, number, has_end):
            boxes[child].layer = boxes[number].layer + 1
            pending.append(child)
    # Widths of whole branches, from the leaves up; then places, from the root down.
    branch: dict[int, float] = {}
    for number in reversed(order):
        children = _below(boxes, number, has_end)
        inside = sum(branch[child] for child in children) + _BETWEEN * max(0, len(children) - 1)
        branch[number] = max(boxes[number].width, inside)
    left = {0: float(_MARGIN)}
    for number in order:
        boxes[number].x = left[number] + branch[number] / 2
        children = _below(boxes, number, has_end)
        inside = sum(branch[child] for child in children) + _BETWEEN * max(0, len(children) - 1)
        position = left[number] + (branch[number] - inside) / 2
        for child in children:
            left[child] = position
            position += branch[child] + _BETWEEN
    if has_end:
        ends = [box for box in boxes if last in box.node.children]
        boxes[last].layer = max(box.layer for box in boxes[:last]) + 1
        boxes[last].x = max(sum(box.x for box in ends) / len(ends), _MARGIN + boxes[last].width / 2)
    _set_heights(boxes)


def _below(boxes: list[_Box], number: int, has_end: bool) -> list[int]:
    """Children in the tree: all but the end, which may have several parents."""
    last = len(boxes) - 1
    return [child for child in boxes[number].node.children if not (has_end and child == last)]


def _set_heights(boxes: list[_Box]) -> None:
    heights: dict[int, float] = {}
    for box in boxes:
        heights[box.layer] = max(heights.get(box.layer, 0.0), box.height)
    tops = {}
    top = float(_MARGIN)
    for layer in sorted(heights):
        tops[layer] = top
        top += heights[layer] + _LAYER_GAP
    for box in boxes:
        box.y = tops[box.layer]


def _edge(above: _Box, below: _Box) -> str:
    start, end = above.y + above.height, below.y - 2
    if below.layer - above.layer > 1:
        # It leaves its own layer first, so that it does not cross boxes beside it.
        bend = (end - start) * 0.4
    else:
        bend = (end - start) * 0.55
    return (
        f'<path class="edge" fill="none" stroke="{_LINE_COLOUR}" stroke-width="1.5"'
        f' marker-end="url(#arrow)" d="M{above.x:.1f} {start:.1f}'
        f" C{above.x:.1f} {start + bend:.1f} {below.x:.1f} {end - bend:.1f}"
        f' {below.x:.1f} {end:.1f}"/>'
    )


def _draw(box: _Box) -> str:
    left, node = box.x - box.width / 2, box.node
    is_pill = node.state == "start" or node.state.startswith("end-")
    accent = _ACCENTS.get(node.state, _LINE_COLOUR)
    dashes = ' stroke-dasharray="4 3"' if node.state in ("canceled", "dropped") else ""
    parts = [
        f'<g font-family="{_FONT}" font-size="{_TEXT_SIZE}">'
        f'<rect class="{"pill" if is_pill else "box"}" fill="{_BOX}"'
        f' stroke="{accent if is_pill else _EDGE}" stroke-width="1.2"{dashes}'
        f' x="{left:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
        f' rx="{box.height / 2 if is_pill else 8:.1f}"/>'
    ]
    if not is_pill:
        parts.append(
            f'<rect fill="{accent}" x="{left + 5:.1f}" y="{box.y + 9:.1f}" width="3.5"'
            f' height="{box.height - 18:.1f}" rx="1.7"/>'
        )
    x = box.x if is_pill else left + _PADDING + 3
    anchor = ' text-anchor="middle"' if is_pill else ""
    y = box.y + _PADDING + 10
    parts.append(
        f'<text class="title" fill="{_INK}" font-size="{_TITLE_SIZE}" font-weight="600"'
        f' x="{x:.1f}" y="{y:.1f}"{anchor}>{_text(node.title)}</text>'
    )
    for line in node.lines:
        y += _LINE
        parts.append(
            f'<text class="line" fill="{_SOFT}" x="{x:.1f}" y="{y + 2:.1f}"{anchor}>'
            f"{_text(line)}</text>"
        )
    return "".join([*parts, "</g>"])


def _text(text: str) -> str:
    # XML knows no control characters, not even escaped.
    return escape("".join(c if c.isprintable() else "·" for c in text))
