"""A run view as nodes and edges, and that in Mermaid's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import wrap

from dex_lite._cli._run_view import RunView, StepView
from dex_lite._cli._show_values import span
from dex_lite._cli._tree import duration_ms, facts_text

_LINE_CHARACTERS, _MOST_LINES = 48, 6


@dataclass
class Node:
    """A box: its state, its texts, and the nodes it leads to."""

    state: str  # a Step's state, `start`, or `end-` and the status of the run
    title: str
    lines: list[str] = field(default_factory=list)
    children: list[int] = field(default_factory=list)


def nodes(view: RunView) -> list[Node]:
    """All boxes; the first is the start, the last the end if the run is closed."""
    made = [Node("start", view.flow_id, [view.flow_type])]
    steps = view.steps()
    numbers = {id(step): number for number, step in enumerate(steps, 1)}
    for step in steps:
        children = [numbers[id(child)] for child in step.children]
        made.append(Node(step.state, step.execution_id or step.step_type, _lines(step), children))
    made[0].children = [numbers[id(step)] for step in view.roots]
    if view.close_ms is not None:
        ending = [numbers[id(step)] for step in steps if _leads_to_end(view, step)]
        for number in ending or [0]:
            made[number].children.append(len(made))
        made.append(Node(f"end-{view.status}", view.status, [span(duration_ms(view))]))
    return made


def _leads_to_end(view: RunView, step: StepView) -> bool:
    if view.status == "completed":
        return step.is_closing
    return not step.children and step.state in ("completed", "failed", "dropped")


def _lines(step: StepView) -> list[str]:
    texts = [*facts_text(step).split(", "), step.error]
    return [line for text in texts for line in _wrapped(text)]


def _wrapped(text: str) -> list[str]:
    """Lines of a bounded width; names of Channels and the like stay whole, a long failure does not."""
    return wrap(
        text,
        _LINE_CHARACTERS,
        max_lines=_MOST_LINES,
        placeholder=" …",
        break_on_hyphens=False,
    )


_GONE = "fill:#f4f5f7,stroke:#a7aeba,color:#5b6370,stroke-dasharray:4 3"
_CLASSES = {
    "completed": "fill:#e7f6ec,stroke:#1f8a4c,color:#10341f",
    "failed": "fill:#fdeaea,stroke:#c62f2f,color:#4a1010",
    "waiting": "fill:#e8f1fd,stroke:#2f6fc6,color:#0f2a4d",
    "running": "fill:#e8f1fd,stroke:#2f6fc6,color:#0f2a4d",
    "queued": "fill:#f4f5f7,stroke:#7b8494,color:#2a2f38",
    "retrying": "fill:#fff5df,stroke:#b97a06,color:#4a3203",
    "canceled": _GONE,
    "dropped": _GONE,
}


def mermaid(view: RunView) -> str:
    """The run as a Mermaid flowchart."""
    lines = ["flowchart TD"]
    made = nodes(view)
    for number, node in enumerate(made):
        label = "<br/>".join(_escape(text) for text in (node.title, *node.lines))
        if node.state == "start" or node.state.startswith("end-"):
            lines.append(f'  n{number}(["{label}"])')
        else:
            lines.append(f'  n{number}["{label}"]:::{node.state}')
    for number, node in enumerate(made):
        lines += [f"  n{number} --> n{child}" for child in node.children]
    used = sorted({node.state for node in made} & _CLASSES.keys())
    lines += [f"  classDef {state} {_CLASSES[state]}" for state in used]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    # Mermaid's own entities: characters by number.
    return "".join(c if c not in '"<>&#;`' else f"#{ord(c)};" for c in text)
