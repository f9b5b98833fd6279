"""Random Workflows whose nodes are agent trees, with their scripts, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.workflow import BaseNode, JoinNode, Workflow

from support.random_trees import Chats, Plan, Trees, branches, build_tree, has, make_llm
from support.tree_oracle import TreeWorld

_SIDE_BY_SIDE = {"parallel", "inline"}
_SHAPES = (
    "alone",
    "followed",
    "beside",
    "joined",
    "nested",
    "nested and followed",
    "nested and joined",
    "two",
)


def random_chat_nodes(seed: int) -> Plan:
    """Agents of mode ``chat`` with sub-agents, alone, beside others or in a nested Workflow."""
    maker = Chats(seed, ("t",))
    maker.below_node = True
    shape = _SHAPES[seed % len(_SHAPES)]
    chats = [maker.chat(2), *([maker.chat(1)] if shape == "two" else [])]
    beside = maker.leaf()
    rest = [maker.leaf() for _ in range(maker.rng.randint(1, 2))]

    def build(world: TreeWorld) -> BaseNode:
        return _SHAPED[shape](
            [_chat(world, tree) for tree in chats],
            make_llm(world, beside),
            [make_llm(world, name) for name in rest],
        )

    is_alone = shape in ("alone", "followed", "nested", "nested and followed")
    any_order = not is_alone or any(has(tree, _SIDE_BY_SIDE) for tree in chats)
    return Plan(
        [shape, chats, beside, rest], build, maker.scripts, any_order, leaks=lambda _: False
    )


def _chat(world: TreeWorld, tree: Any) -> LlmAgent:
    children = [build_tree(world, child) for child in tree[3]]
    return make_llm(world, tree[1], mode="chat", sub_agents=children)


def _flow(*nodes: Any, name: str = "w") -> Workflow:
    return Workflow(name=name, edges=[("START", *nodes)])


def _nested(node: Any) -> Workflow:
    return _flow(node, name="nested")


_SHAPED: dict[str, Callable[[list[LlmAgent], LlmAgent, list[LlmAgent]], Workflow]] = {
    "alone": lambda chats, beside, rest: _flow(*chats),
    "followed": lambda chats, beside, rest: _flow(*chats, *rest),
    "beside": lambda chats, beside, rest: _flow((*chats, beside)),
    "joined": lambda chats, beside, rest: _flow((*chats, beside), JoinNode(name="join"), *rest),
    "nested": lambda chats, beside, rest: _flow(_nested(chats[0])),
    "nested and followed": lambda chats, beside, rest: _flow(_nested(chats[0]), *rest),
    "nested and joined": lambda chats, beside, rest: _flow(
        (_nested(chats[0]), beside), JoinNode(name="join"), *rest
    ),
    "two": lambda chats, beside, rest: _flow(tuple(chats)),
}


def random_composite_nodes(seed: int) -> Plan:
    """Composite agents as nodes, one after another or side by side."""
    maker = Trees(seed, ("t",))
    maker.below_node = True
    parts = [_without_transfers(maker) for _ in range(maker.rng.randint(1, 3))]
    is_fan = len(parts) > 1 and maker.rng.random() < 0.4

    def build(world: TreeWorld) -> BaseNode:
        nodes: list[Any] = [build_tree(world, part) for part in parts]
        if is_fan:
            nodes[:2] = [tuple(nodes[:2]), JoinNode(name="join")]
        return _flow(*nodes)

    def leaks(events: Sequence[Any]) -> bool:
        """As :func:`support.random_trees.leaks_branch`."""
        expected: dict[str, str] = {}
        for index, part in enumerate(parts):
            lane = f"{part[1]}@1" if is_fan and index < 2 else ""
            expected.update(branches(part, lane))
        return any(
            (event.get("branch") or "") != expected[event["author"]]
            for event in events
            if event["author"] in expected
        )

    any_order = is_fan or any(has(part, _SIDE_BY_SIDE) for part in parts)
    return Plan([parts, is_fan], build, maker.scripts, any_order, leaks=leaks)


def _without_transfers(maker: Trees) -> Any:
    while has(made := maker.tree(2), {"transfer"}):
        pass
    return made
