"""The session Flow itself as a graph: which Step leads to which."""

from __future__ import annotations

import json
from typing import Any

from dex_agents._arguments import check_flow_type
from dex_agents._session.flow import AgentSessionFlow
from dex_agents.session_graph._mermaid import escape

START = "AwaitUserMessage"
TRANSITIONS: dict[str, tuple[str, ...]] = {
    "AwaitUserMessage": ("RunModel", "CompactHistory", "AwaitUserMessage"),
    "CompactHistory": ("RunModel",),
    "RunModel": (
        "RunModel",
        "AwaitToolApproval",
        "AwaitAnswer",
        "CallTool",
        "CallSingleAttemptTool",
        "ResumeTurn",
        "AwaitUserMessage",
    ),
    "AwaitToolApproval": ("CallTool", "CallSingleAttemptTool", "AwaitToolApproval", "AwaitAnswer"),
    "AwaitAnswer": ("CallTool", "CallSingleAttemptTool", "AwaitToolApproval", "AwaitAnswer"),
    "CallTool": ("CallTool", "CallSingleAttemptTool", "AwaitToolApproval", "AwaitAnswer"),
    "CallSingleAttemptTool": (
        "CallTool",
        "CallSingleAttemptTool",
        "AwaitToolApproval",
        "AwaitAnswer",
    ),
    "RecordToolOutcome": ("CallTool", "CallSingleAttemptTool", "AwaitToolApproval", "AwaitAnswer"),
    "ResumeTurn": ("RunModel",),
    "FailTurn": ("AwaitUserMessage",),
    "CancelTurn": ("AwaitUserMessage",),
    "CloseSession": (),
}
FAILURES = {
    "RunModel": "FailTurn",
    "CompactHistory": "RunModel",
    "CallTool": "RecordToolOutcome",
    "CallSingleAttemptTool": "RecordToolOutcome",
}
_LAST = (START, "CloseSession")
_STEPS_OF_RPCS = {"cancel_turn": ("CancelTurn",), "close_session": ("CloseSession",)}
RPCS: dict[str, tuple[str, ...]] = {
    name: _STEPS_OF_RPCS.get(name, ())
    for name in (
        attribute.removesuffix("_rpc")
        for attribute in dir(AgentSessionFlow)
        if attribute.endswith("_rpc")
    )
}


def render_session_flow_graph(flow_type: str) -> str:
    """The Flow of agent sessions as a Flow Definition Graph 1.0, the JSON that Dex Web draws.

    Args:
        flow_type: Flow type of the agent's sessions.

    Raises:
        TypeError, ValueError: No Flow of sessions can have that name.
    """
    check_flow_type(flow_type)
    nodes: list[dict[str, Any]] = [
        {"id": f"step:{name}", "kind": "step", "name": name, **_start(name)} for name in TRANSITIONS
    ]
    nodes += [{"id": f"rpc:{name}", "kind": "rpc", "name": name, "external": True} for name in RPCS]
    nodes.append({"id": "terminal", "kind": "terminal", "name": "closed"})
    edges = [
        _edge("transition", f"step:{source}", f"step:{target}")
        for source, targets in TRANSITIONS.items()
        for target in targets
    ]
    edges += [
        _edge("failure_transition", f"step:{source}", f"step:{target}")
        for source, target in FAILURES.items()
    ]
    edges += [
        _edge("transition", f"rpc:{rpc}", f"step:{target}")
        for rpc, targets in RPCS.items()
        for target in targets
    ]
    edges += [_edge("terminal", f"step:{name}", "terminal") for name in _LAST]
    graph = {
        "schemaVersion": "1.0",
        "valid": True,
        "source": {"language": "python", "path": "dex_agents/_session/flow.py"},
        "flow": {"name": flow_type, "startStepId": f"step:{START}"},
        "nodes": nodes,
        "edges": edges,
        "diagnostics": [],
    }
    return json.dumps(graph, indent=2) + "\n"


def flow_mermaid(flow_type: str) -> str:
    """The same as a Mermaid flowchart; dotted lines are taken when a Step has no attempt left.

    Args:
        flow_type: As of :func:`render_session_flow_graph`.

    Raises:
        TypeError, ValueError: No Flow of sessions can have that name.
    """
    check_flow_type(flow_type)
    lines = ["flowchart TD", f'  session(["{escape(flow_type)}"]) --> {START}']
    for source, targets in TRANSITIONS.items():
        lines += [f"  {source} --> {target}" for target in targets]
    lines += [f"  {source} -. failed .-> {target}" for source, target in FAILURES.items()]
    for rpc, targets in RPCS.items():
        lines += [f"  rpc_{rpc}([{rpc}]) --> {target}" for target in targets]
    lines += [f"  {name} --> closed([closed])" for name in _LAST]
    return "\n".join(lines) + "\n"


def _start(name: str) -> dict[str, Any]:
    return {"start": True} if name == START else {}


def _edge(kind: str, source: str, target: str) -> dict[str, str]:
    return {"id": f"{kind}:{source}:{target}", "kind": kind, "from": source, "to": target}
