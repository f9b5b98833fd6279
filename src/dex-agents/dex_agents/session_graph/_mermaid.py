"""Histories and Flow graphs as Mermaid flowcharts."""

from __future__ import annotations

import re

from dex_agents._arguments import check_instance
from dex_agents.session_graph._history import Box, SessionHistory

_TEXT_LIMIT = 60
_JOINER = "\u2060"
# Line ends, formulas and icons, also when they are escaped; a joiner, which nobody sees, breaks them.
_JOINED = re.compile(r"\\(?=n)|\$(?=\$)|:(?=fa)")
_SPECIAL = f'"<>&#;`[]{{}}()|\\{_JOINER}'
_CLASSES = {
    "succeeded": "fill:#e7f6ec,stroke:#1f8a4c,color:#10341f",
    "failed": "fill:#fdeaea,stroke:#c62f2f,color:#4a1010",
    "unknown": "fill:#fff5df,stroke:#b97a06,color:#4a3203",
    "waiting": "fill:#e8f1fd,stroke:#2f6fc6,color:#0f2a4d",
    "running": "fill:#e8f1fd,stroke:#2f6fc6,color:#0f2a4d",
}


def cut(text: str) -> str:
    """A text for one line."""
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"


def history_mermaid(history: SessionHistory) -> str:
    """A session's history as a Mermaid flowchart, a subgraph for each turn.

    Raises:
        TypeError: ``history`` is no :class:`SessionHistory`.
    """
    check_instance("history", history, SessionHistory, "it comes from read_session_history()")
    lines, links = ["flowchart TD"], []
    above: list[str] = []
    used: set[str] = set()
    count = 0
    if history.facts:
        above.append("session")
        label = "<br/>".join(escape(cut(text)) for text in (history.session_id, *history.facts))
        lines.append(f'  session["{label}"]')
    for number, turn in enumerate(history.turns):
        label = f"{turn.turn_id}: {turn.label(', ')}"
        lines.append(f'  subgraph turn{number}["{escape(label)}"]')
        for row in turn.rows:
            below = []
            for box in row:
                lines.append(f'    n{count}["{_label(box)}"]:::{box.state}')
                used.add(box.state)
                below.append(f"n{count}")
                count += 1
            links += [f"  {upper} --> {lower}" for upper in above for lower in below]
            above = below
        lines.append("  end")
    classes = [f"  classDef {state} {_CLASSES[state]}" for state in sorted(used)]
    return "\n".join([*lines, *links, *classes]) + "\n"


def _label(box: Box) -> str:
    return "<br/>".join(escape(cut(text)) for text in (box.title, *box.facts))


def escape(text: str) -> str:
    """Any text inside a Mermaid label: what has a meaning there goes by its number."""
    shown = "".join(c if c.isprintable() else "·" for c in text)
    apart = _JOINED.sub(lambda found: f"{found[0]}{_JOINER}", shown)
    return "".join(c if c not in _SPECIAL else f"#{ord(c)};" for c in apart)
