"""A session's history as an SVG: rows of boxes from top to bottom. No library, no fonts needed."""

from __future__ import annotations

from html import escape

from dex_agents._arguments import check_instance
from dex_agents.session_graph._history import Box, SessionHistory, TurnHistory
from dex_agents.session_graph._mermaid import cut

_MARGIN, _PADDING, _GAP = 28, 14, 20
_TITLE, _LINE = 20, 17
_ROW_GAP, _TURN_GAP, _HEADER = 34, 30, 34
_BOX_MINIMUM, _LINE_WIDTH = 150, 1_100
_TITLE_CHARACTER, _CHARACTER = 10.4, 8.2  # those of a wide font
_WIDE_FROM = 0x1100  # about where scripts with wide characters begin
_COLOURS = {
    "succeeded": "#1f8a4c",
    "failed": "#c62f2f",
    "unknown": "#b97a06",
    "waiting": "#2f6fc6",
    "running": "#2f6fc6",
}
_OUTCOMES = {
    "answered": "#1f8a4c",
    "failed": "#c62f2f",
    "cancelled": "#b97a06",
    "closed": "#b97a06",
    "open": "#2f6fc6",
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_DARK = """
  @media (prefers-color-scheme: dark) {
    .page { fill: #12161d } .box { fill: #1b212b; stroke: #343c49 } .turn { fill: #161b24 }
    .title { fill: #e9edf3 } .line { fill: #9aa5b5 } .edge { stroke: #667085 }
  }
"""


def history_svg(history: SessionHistory) -> str:
    """A session's history as an SVG document.

    Raises:
        TypeError: ``history`` is no :class:`SessionHistory`.
    """
    check_instance("history", history, SessionHistory, "it comes from read_session_history()")
    turns = [[_lines(row) for row in turn.rows] for turn in history.turns]
    widths = [_row_width(line) for rows in turns for lines in rows for line in lines]
    facts = (_length(cut(fact)) * _CHARACTER for fact in history.facts)
    inner = max([360.0, *widths, *facts])
    width = inner + 4 * _MARGIN
    y = _MARGIN + 26.0
    parts = []
    for fact in history.facts:
        parts.append(
            f'<text class="line" fill="#5d6778" font-size="12" x="{_MARGIN}" y="{y:.1f}">'
            f"{_text(cut(fact))}</text>"
        )
        y += _LINE
    for turn, rows in zip(history.turns, turns, strict=True):
        drawn, y = _draw_turn(turn, rows, y, width)
        parts += drawn
        y += _TURN_GAP
    height = y - _TURN_GAP + _MARGIN if history.turns else y + _MARGIN
    name = f"{history.session_id}: {history.flow_type}, {history.status}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
            f' width="{width:.0f}" height="{height:.0f}" role="img" font-family="{_FONT}">',
            f"<title>{_text(name)}</title>",
            f"<style>{_DARK}</style>",
            f'<rect class="page" fill="#ffffff" width="{width:.0f}" height="{height:.0f}"/>',
            f'<text class="title" fill="#1d2430" font-size="16" font-weight="600"'
            f' x="{_MARGIN}" y="{_MARGIN + 8}">{_text(cut(name))}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _lines(row: list[Box]) -> list[list[Box]]:
    """A row of many boxes takes several lines."""
    lines: list[list[Box]] = []
    for box in row:
        if not lines or _row_width([*lines[-1], box]) > _LINE_WIDTH:
            lines.append([])
        lines[-1].append(box)
    return lines


def _row_width(row: list[Box]) -> float:
    return sum(_box_width(box) for box in row) + _GAP * (len(row) - 1)


def _box_width(box: Box) -> float:
    title = _length(cut(box.title)) * _TITLE_CHARACTER
    facts = max((_length(cut(fact)) * _CHARACTER for fact in box.facts), default=0.0)
    return max(float(_BOX_MINIMUM), max(title, facts) + 2 * _PADDING + 6)


def _box_height(box: Box) -> float:
    return 2 * _PADDING - 6 + _TITLE + _LINE * len(box.facts)


def _length(text: str) -> int:
    return sum(2 if ord(character) >= _WIDE_FROM else 1 for character in text)


def _draw_turn(
    turn: TurnHistory, rows: list[list[list[Box]]], top: float, width: float
) -> tuple[list[str], float]:
    y = top + _HEADER + 8
    boxes: list[str] = []
    edges: list[str] = []
    above: list[tuple[float, float]] = []
    for lines in rows:
        below: list[tuple[float, float]] = []
        for number, line in enumerate(lines):
            is_first, is_last = number == 0, number == len(lines) - 1
            x = (width - _row_width(line)) / 2
            for box in line:
                wide = _box_width(box)
                boxes.append(_draw(box, x, y, wide))
                middle = x + wide / 2
                if is_first:
                    edges += [_edge(upper, (middle, y)) for upper in above]
                if is_last:
                    below.append((middle, y + _box_height(box)))
                x += wide + _GAP
            y += max(_box_height(box) for box in line) + (_ROW_GAP if is_last else _GAP / 2)
        above = below
    bottom = y - _ROW_GAP + 18 if rows else y
    colour = _OUTCOMES.get(turn.outcome, _OUTCOMES["open"])
    header = f"{turn.turn_id} · {turn.label(' · ')}"
    frame = [
        f'<rect class="turn" fill="#f6f8fa" x="{_MARGIN}" y="{top:.1f}" rx="10"'
        f' width="{width - 2 * _MARGIN:.1f}" height="{bottom - top:.1f}"/>',
        f'<circle cx="{_MARGIN + 18}" cy="{top + 20:.1f}" r="5" fill="{colour}"/>',
        f'<text class="title" fill="#1d2430" font-size="13" font-weight="600"'
        f' x="{_MARGIN + 32}" y="{top + 24.5:.1f}">{_text(header)}</text>',
    ]
    return [*frame, *edges, *boxes], bottom


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    bend = (end[1] - start[1]) * 0.5
    return (
        f'<path class="edge" fill="none" stroke="#98a2b3" stroke-width="1.4"'
        f' d="M{start[0]:.1f} {start[1]:.1f} C{start[0]:.1f} {start[1] + bend:.1f}'
        f' {end[0]:.1f} {end[1] - bend:.1f} {end[0]:.1f} {end[1]:.1f}"/>'
    )


def _draw(box: Box, x: float, y: float, width: float) -> str:
    height = _box_height(box)
    parts = [
        f'<g><rect class="box" fill="#ffffff" stroke="#d5dae2" stroke-width="1.2" rx="8"'
        f' x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>',
        f'<rect fill="{_COLOURS[box.state]}" x="{x + 6:.1f}" y="{y + 9:.1f}" width="3.5" rx="1.7"'
        f' height="{height - 18:.1f}"/>',
        f'<text class="title" fill="#1d2430" font-size="14" font-weight="600"'
        f' x="{x + _PADDING + 4:.1f}" y="{y + _PADDING + 10:.1f}">{_text(cut(box.title))}</text>',
    ]
    line = y + _PADDING + 12
    for fact in box.facts:
        line += _LINE
        parts.append(
            f'<text class="line" fill="#5d6778" font-size="12" x="{x + _PADDING + 4:.1f}"'
            f' y="{line:.1f}">{_text(cut(fact))}</text>'
        )
    return "".join([*parts, "</g>"])


def _text(text: str) -> str:
    # XML knows no control characters, not even escaped.
    return escape("".join(c if c.isprintable() else "·" for c in text))
