"""Random agent trees and Workflows with their scripts, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode, JoinNode, Workflow, node

from support.adk_oracle import call, text
from support.tree_oracle import TreeLlm, TreeWorld

_COMPOSITES: dict[str, Any] = {
    "sequence": SequentialAgent,
    "loop": LoopAgent,
    "parallel": ParallelAgent,
}
_GUARDED = "guarded"


@dataclass
class Plan:
    """What a seed stands for.

    Attributes:
        tree: Nested lists, for a person who reads a failure.
        build: Makes the agents anew.
        scripts: What each agent's model answers, over and over.
        any_order: Whether branches run side by side somewhere.
        dynamic: Agents that only dynamic nodes know, filled by ``build``.
        leaks: Decides :func:`leaks_branch`, for a plan whose tree is no nested list of agents.
    """

    tree: Any
    build: Callable[[TreeWorld], BaseNode]
    scripts: dict[str, list[Any]]
    any_order: bool
    dynamic: list[BaseAgent] = field(default_factory=list)
    leaks: Callable[[Sequence[Any]], bool] | None = None


def make_llm(world: TreeWorld, name: str, **fields: Any) -> LlmAgent:
    """An agent with a tool of its own, traced callbacks and a guardrail."""

    def note(kind: str) -> Callable[..., None]:
        def callback(*_: Any, **__: Any) -> None:
            world.log(f"{kind} {name}")

        return callback

    def guard(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
        world.log(f"before_tool {tool.name}")
        if args.get("x") == _GUARDED:
            return {"refused": tool.name}
        if args.get("x", "").endswith("3"):
            args["x"] += "0"
        return None

    def after(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> Any:
        world.log(f"after_tool {tool.name} {json.dumps(tool_response)}")
        return {"replaced": tool_response} if args.get("x", "").endswith("5") else None

    return LlmAgent(
        name=name,
        model=TreeLlm(world=world),
        instruction=f"You are {name}.",
        description=f"{name} does {name}",
        tools=[*world.make_tools(name), exit_loop],
        before_agent_callback=note("before"),
        after_agent_callback=note("after"),
        before_tool_callback=guard,
        after_tool_callback=after,
        **fields,
    )


class Maker:
    def __init__(self, seed: int, kinds: Sequence[str]) -> None:
        self.rng = random.Random(seed)
        self.kinds = kinds
        self.scripts: dict[str, list[Any]] = {}
        self._names = 0

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def tool_call(self, agent: str) -> Any:
        x = str(self.rng.randint(0, 99)) if self.rng.random() > 0.1 else _GUARDED
        if self.rng.random() < 0.05:
            return call("missing", x=x)
        return call(f"{self.rng.choice(self.kinds)}_{agent}", x=x)

    def leaf(self, *last: Any, mixed: bool = False) -> str:
        """A new agent: some rounds of calls, then ``last`` or a text."""
        name = self.name("a")
        script: list[Any] = [
            [self.tool_call(name) for _ in range(self.rng.randint(1, 3))]
            for _ in range(self.rng.randint(0, 2))
        ]
        if last and mixed and script:
            script[-1] = [*script[-1], *last]
        elif last:
            script.append(list(last))
        else:
            script.append(text(f"{name} end"))
        self.scripts[name] = script
        return name


class Trees(Maker):
    below_node = False
    """Whether the trees are part of what ADK runs as a node, so that any agent may call others."""

    def tree(self, depth: int, *, in_loop: bool = False, is_root: bool = False) -> Any:
        kinds = ["leaf", "sequence", "loop", "parallel", "transfer"]
        if is_root:
            kinds = [*kinds[1:], "inline", "task"]
        elif self.below_node:
            kinds.append("inline")
        kind = self.rng.choice(kinds) if depth else "leaf"
        self.below_node |= is_root and kind == "transfer"
        if kind == "leaf":
            if in_loop and self.rng.random() < 0.4:
                return ["leaf", self.leaf(call("exit_loop"), mixed=self.rng.random() < 0.3)]
            return ["leaf", self.leaf()]
        if kind in _COMPOSITES:
            count = self.rng.randint(2, 3) if kind == "parallel" else self.rng.randint(1, 2)
            rounds = self.rng.randint(1, 3)
            return [
                kind,
                self.name("c"),
                rounds,
                [
                    self.tree(depth - 1, in_loop=kind == "loop" or (in_loop and kind == "sequence"))
                    for _ in range(count)
                ],
            ]
        if kind == "transfer":
            children = [self.tree(depth - 1) for _ in range(self.rng.randint(1, 2))]
            target = self.rng.choice(children)[1]
            move = call("transfer_to_agent", agent_name=target)
            return ["transfer", self.leaf(move, mixed=self.rng.random() < 0.3), 0, children]
        children = [["leaf", self._inline_leaf(kind)] for _ in range(self.rng.randint(1, 3))]
        asked = [call(child[1], request=f"for {child[1]}") for child in children]
        name = self.leaf(*asked, mixed=self.rng.random() < 0.4)
        self.scripts[name].append(text(f"{name} end"))
        return [kind, name, 0, children]

    def _inline_leaf(self, kind: str) -> str:
        return self.leaf(call("finish_task", result="done")) if kind == "task" else self.leaf()


class _Delegations(Maker):
    """Agents that call ``single_turn`` and ``task`` agents, which do so in turn."""

    def tree(self, mode: str, depth: int) -> Any:
        kinds = ["single_turn"] if mode == "single_turn" else ["single_turn", "task"]
        count = self.rng.randint(1, 3) if depth else 0
        children = [self.tree(self.rng.choice(kinds), depth - 1) for _ in range(count)]
        name = self.leaf(*([call("finish_task", result="done")] if mode == "task" else []))
        calls = [call(child[1], request=f"for {child[1]}") for child in children]
        rounds: list[Any] = []
        while calls:
            taken = self.rng.randint(1, len(calls))
            now, calls = calls[:taken], calls[taken:]
            if self.rng.random() < 0.5:
                now.append(self.tool_call(name))
            self.rng.shuffle(now)
            rounds.append(now)
        self.scripts[name][:0] = rounds
        return [mode, name, 0, children]


def _build_delegations(world: TreeWorld, tree: Any) -> LlmAgent:
    mode, name, _, children = tree
    fields = {} if mode == "chat" else {"mode": mode}
    built = [_build_delegations(world, child) for child in children]
    return make_llm(world, name, sub_agents=built, **fields)


def random_delegations(seed: int) -> Plan:
    """A root that delegates work, several calls in one response, to agents that delegate in turn."""
    maker = _Delegations(seed, ("t",))
    tree = maker.tree("chat", maker.rng.randint(1, 3))
    return Plan(tree, lambda world: _build_delegations(world, tree), maker.scripts, True)


def build_tree(world: TreeWorld, tree: Any) -> BaseAgent:
    kind, name = tree[0], tree[1]
    if kind == "leaf":
        return make_llm(world, name)
    rounds, children = tree[2], tree[3]
    if kind in _COMPOSITES:
        extra = {"max_iterations": rounds} if kind == "loop" else {}

        def note(what: str) -> Callable[..., None]:
            def callback(callback_context: Any) -> None:
                world.log(f"{what} {name}")

            return callback

        made: BaseAgent = _COMPOSITES[kind](
            name=name,
            description=name,
            sub_agents=[build_tree(world, child) for child in children],
            before_agent_callback=note("before"),
            after_agent_callback=note("after"),
            **extra,
        )
        return made
    if kind == "transfer":
        return make_llm(world, name, sub_agents=[build_tree(world, child) for child in children])
    mode = {"inline": "single_turn", "task": "task"}[kind]
    return make_llm(
        world, name, sub_agents=[make_llm(world, child[1], mode=mode) for child in children]
    )


def has(tree: Any, kinds: set[str]) -> bool:
    return tree[0] in kinds or any(has(child, kinds) for child in (tree[3:4] or [[]])[0])


def random_tree(seed: int, kinds: Sequence[str] = ("t",)) -> Plan:
    """An agent tree whose agents have a tool of each kind, named ``<kind>_<agent>``."""
    maker = Trees(seed, kinds)
    tree = maker.tree(maker.rng.randint(1, 3), is_root=True)
    return Plan(
        tree,
        lambda world: build_tree(world, tree),
        maker.scripts,
        has(tree, {"parallel", "inline"}),
    )


def leaks_branch(plan: Plan, events: Sequence[Any]) -> bool:
    """Whether plain ADK put an event into the branch of a ParallelAgent that had ended.

    Below a node, ADK stamps what comes behind a ParallelAgent with the branch that ended last, so
    what later agents see depends on which one that was.
    """
    if plan.leaks is not None:
        return plan.leaks(events)
    expected = dict(branches(plan.tree, ""))
    return any(
        event["author"] in expected
        and "@" not in (event.get("branch") or "")
        and (event.get("branch") or "") != expected[event["author"]]
        for event in events
    )


def branches(tree: Any, branch: str) -> Iterator[tuple[str, str]]:
    yield tree[1], branch
    for child in (tree[3:4] or [[]])[0]:
        inner = branch
        if tree[0] == "parallel":
            inner = f"{branch}.{tree[1]}.{child[1]}" if branch else f"{tree[1]}.{child[1]}"
        yield from branches(child, inner)


class _Workflows(Maker):
    def workflow(self, depth: int) -> Any:
        parts: list[Any] = []
        for _ in range(self.rng.randint(1, 3)):
            kinds = ["leaf", "leaf", "function", "fan", "nested", "dynamic"]
            kind = self.rng.choice(kinds if depth else ["leaf", "function"])
            if kind == "leaf":
                parts.append(["leaf", self.leaf()])
            elif kind == "function":
                parts.append(["function", self.name("f")])
            elif kind == "dynamic":
                parts.append(["dynamic", self.name("d"), self.leaf()])
            elif kind == "nested":
                parts.append(self.workflow(depth - 1))
            else:
                parts.append(["fan", self.name("j"), [self._lane(depth) for _ in range(2)]])
        return ["workflow", self.name("w"), parts]

    def _lane(self, depth: int) -> Any:
        if self.rng.random() < 0.2 and depth > 1:
            return self.workflow(depth - 1)
        if self.rng.random() < 0.3:
            return ["function", self.name("f")]
        return ["leaf", self.leaf()]


def _build_node(world: TreeWorld, part: Any, dynamic: list[BaseAgent]) -> Any:
    kind, name = part[0], part[1]
    if kind == "leaf":
        return make_llm(world, name)
    if kind == "workflow":
        return _build_workflow(world, part, dynamic)
    if kind == "function":

        def function(node_input: Any) -> str:
            return f"{name}({node_input if isinstance(node_input, str) else 'x'})"

        function.__name__ = name
        return function
    child = make_llm(world, part[2])
    dynamic.append(child)

    async def run_child(node_input: Any, ctx: Any) -> str:
        return f"{name} {await ctx.run_node(child, node_input='dynamic input')}"

    run_child.__name__ = name
    return node(rerun_on_resume=True)(run_child)


def _build_workflow(world: TreeWorld, tree: Any, dynamic: list[BaseAgent]) -> Workflow:
    edges: list[Any] = []
    before: Any = "START"
    for part in tree[2]:
        if part[0] == "fan":
            join = JoinNode(name=part[1])
            lanes = tuple(_build_node(world, lane, dynamic) for lane in part[2])
            edges.append((before, lanes, join))
            before = join
        else:
            made = _build_node(world, part, dynamic)
            edges.append((before, made))
            before = made
    return Workflow(name=tree[1], edges=edges)


def random_workflow(seed: int, kinds: Sequence[str] = ("t",)) -> Plan:
    """The same for a Workflow."""
    maker = _Workflows(seed, kinds)
    tree = maker.workflow(maker.rng.randint(1, 3))
    plan = Plan(tree, lambda _: Workflow(name="unset"), maker.scripts, True, leaks=lambda _: False)

    def build(world: TreeWorld) -> BaseNode:
        plan.dynamic.clear()
        return _build_workflow(world, tree, plan.dynamic)

    plan.build = build
    return plan


class Chats(Trees):
    def chat(self, depth: int) -> Any:
        """An agent that may hand over to its sub-agents, and these to theirs."""
        children: list[Any] = []
        for _ in range(self.rng.randint(1, 2)):
            kind = self.rng.random()
            if depth and kind < 0.5:
                children.append(self.chat(depth - 1))
            elif kind < 0.7:
                children.append(self.tree(1))
            else:
                children.append(["leaf", self.leaf()])
        target = self.rng.choice(children)[1]
        move = [call("transfer_to_agent", agent_name=target)] * (self.rng.random() > 0.15)
        return ["transfer", self.leaf(*move, mixed=self.rng.random() < 0.3), 0, children]
