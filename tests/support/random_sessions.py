"""Random Workflows with what goes wrong and what waits, with their scripts, from a seed.

On top of ``random_graphs``: nodes that ask the user, functions that fail before they work, nodes that
claim the output of a child, agent trees as nodes, state of every scope, outputs of every JSON type,
tools that fail, and callbacks that answer, change or fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode, RetryConfig, Workflow, node
from google.genai import types

from dex_agents._errors import ToolExecutionError
from support.adk_oracle import text
from support.random_graphs import Building, Graphs, named
from support.random_trees import Plan, Trees, branches, build_tree, has, make_llm
from support.tree_oracle import TreeWorld

QUESTION = "question"
"""What the name of a node begins with that asks the user."""
ANSWER = "blue"
COUNTED = "counted"
_MORE = ("asks", "asks inside", "stumbles", "claims", "tree", "values", "state", "silent")
_KINDS = (*("agent", "tried", "rounds", "routes", "fan", "workers", "dynamic", "beside"), *_MORE)
_FLAT = ("agent", "tried", "rounds", "asks", "stumbles", "values", "state")
_ATTEMPTS = RetryConfig(max_attempts=3, initial_delay=0.001, max_delay=0.001, jitter=0)
_VALUES: list[Any] = [
    0,
    False,
    "",
    [],
    {},
    1.5,
    [1, None, "x"],
    {"a": {"b": [None]}},
    "ü🎉",
    '{"json": 1}',
]
FAILS = "fails"
"""The habit of some agents that a node tries again."""
HABITS = ("none", "none", "none", "answers", "changes", "guards", "skips")
"""What an agent's callbacks do beside noting that they ran."""
ALL_HABITS = (*HABITS, "says more", FAILS)
"""With those by which a run may fail."""


class SessionWorld(TreeWorld):
    """Of a session: tools fail by an error of theirs."""

    is_plain = False

    def make_tools(self, agent: str) -> list[BaseTool]:
        """See :class:`TreeWorld`."""
        return [_tool(self, f"t_{agent}")]


class PlainWorld(SessionWorld):
    """Of plain ADK: tools have the response of the record, and nodes that ask have the answer."""

    is_plain = True


def _tool(world: SessionWorld, name: str) -> FunctionTool:
    """Notes its execution, writes state of every scope, fails for some arguments."""

    def run(x: str, tool_context: ToolContext) -> Any:
        world.ran(name, x=x)
        if x.endswith("8"):
            if world.is_plain:
                return {"error": f"The tool call failed: no {x}"}
            raise ToolExecutionError(f"no {x}")
        state = tool_context.state
        for scope in ("", "user:", "app:", "temp:"):
            state[f"{scope}{name}"] = None if x.endswith("2") else x
        state[f"{name}_{x}"] = {"called": [x]}
        had = [state.get(f"{scope}{COUNTED}") for scope in ("", "user:", "app:", "temp:")]
        return [x, had] if x.endswith("7") else {"value": f"{name}({x})", "had": had}

    run.__name__ = name
    run.__doc__ = f"Tool {name}."
    return FunctionTool(run)


class _Sessions(Graphs, Trees):
    below_node = True

    def __init__(self, seed: int, kinds: Sequence[str], habits: Sequence[str]) -> None:
        super().__init__(seed, kinds)
        self.habits: dict[str, str] = {}
        self._choice = habits

    def part(self, depth: int) -> Any:
        kind = self.rng.choice((*_KINDS, "nested") if depth else _FLAT)
        name = self.name("n")
        if kind == "nested":
            return [kind, name, self.parts(depth - 1)]
        if kind == "tree":
            while has(made := self.tree(2), {"transfer"}):
                pass
            return [kind, name, made]
        if kind == "tried":
            return [kind, name, [self.failing()]]
        if kind == "workers":
            return [kind, name, [self.alike()]]
        if kind == "values":
            return [kind, name, [self.rng.choice(_VALUES)]]
        if kind in ("asks", "stumbles", "state"):
            return [kind, name, []]
        several = kind in ("routes", "fan", "dynamic", "beside", "claims")
        return [kind, name, [self.leaf() for _ in range(2 if several else 1)]]

    def leaf(self, *last: Any, mixed: bool = False) -> str:
        """An agent with a habit."""
        name = super().leaf(*last, mixed=mixed)
        habit = self.rng.choice(self._choice)
        self.habits[name] = "none" if habit == FAILS else habit
        return name

    def failing(self) -> str:
        """An agent that fails in its model or in a callback."""
        name = super().failing()
        if self.rng.random() < 0.5 and FAILS in self._choice:
            self.habits[name] = FAILS
        return name


def random_session(
    seed: int, kinds: Sequence[str] = ("t",), habits: Sequence[str] = ALL_HABITS
) -> Plan:
    """A Workflow root whose agents have a tool of each kind, named ``<kind>_<agent>``."""
    maker = _Sessions(seed, kinds, habits)
    parts = maker.parts(maker.rng.randint(1, 2))
    limit = maker.rng.choice((None, None, None, 1, 2))
    plan = Plan(
        [parts, limit, maker.habits],
        lambda _: Workflow(name="unset"),
        maker.scripts,
        True,
        leaks=lambda events: _leaks(parts, events) or _may_read_questions(parts),
    )

    def build(world: TreeWorld) -> BaseNode:
        plan.dynamic.clear()
        return _Building(world, plan.dynamic, maker.habits).graph("w", parts, limit)

    plan.build = build
    return plan


def _leaks(parts: Sequence[Any], events: Sequence[Any]) -> bool:
    """As :func:`support.random_trees.leaks_branch`; the branch may leak behind the tree, too."""
    for kind, _, inside in parts:
        if kind == "nested" and _leaks(inside, events):
            return True
        if kind == "tree" and has(inside, {"parallel"}):
            known = dict(branches(inside, ""))
            for event in events:
                branch = event.get("branch") or ""
                is_inside = branch.partition(".")[0] in known
                if event["author"] not in known:
                    if is_inside:
                        return True
                elif "@" not in branch and branch != known[event["author"]]:
                    return True
    return False


def _may_read_questions(parts: Sequence[Any]) -> bool:
    """Whether agents of a tree, which read all that was said, may read a question too.

    Plain ADK has the answer there at once.
    """
    kinds = json.dumps(parts)
    return '"tree"' in kinds and '"asks' in kinds


class _Building(Building):
    def __init__(self, world: TreeWorld, dynamic: list[BaseAgent], habits: dict[str, str]) -> None:
        super().__init__(world, dynamic)
        self._habits = habits

    def llm(self, name: str) -> LlmAgent:
        return with_habit(self._world, make_llm(self._world, name), self._habits[name])

    def _part(self, before: Any, kind: str, name: str, inside: Any) -> tuple[list[Any], Any]:
        made: Any
        if kind == "tree":
            made = build_tree(self._world, inside)
        elif kind == "asks":
            made = _asking(self._world, f"{QUESTION}_{name}")
        elif kind == "asks inside":
            self._dynamic += (agents := [self.llm(agent) for agent in inside])
            made = _asking_inside(self._world, f"{QUESTION}_{name}", agents[0])
        elif kind == "stumbles":
            made = _stumbling(self._world, name)
        elif kind == "claims":
            self._dynamic += (agents := [self.llm(agent) for agent in inside])
            made = _claiming(name, *agents)
        elif kind == "silent":
            self._dynamic += (agents := [self.llm(agent) for agent in inside])
            made = _silent(name, agents[0])
        elif kind == "values":
            made = named(name, lambda node_input: inside[0])
        elif kind == "state":
            made = _counting(name)
        else:
            return super()._part(before, kind, name, inside)
        return [(before, made)], made


def _asking(world: Any, name: str) -> Any:
    """A node whose output is the user's answer."""

    def asks(node_input: Any) -> Any:
        if world.is_plain:
            return ANSWER
        return RequestInput(message=f"{name}?", response_schema={"type": "string"})

    asks.__name__ = name
    return asks


def _asking_inside(world: Any, name: str, agent: LlmAgent) -> Any:
    """A node that goes on with an agent when the user has answered."""

    async def asks(node_input: Any, ctx: Any) -> Any:
        key = f"q-{ctx.node_path}"
        answer = ANSWER if world.is_plain else (ctx.resume_inputs or {}).get(key)
        if answer is None:
            yield RequestInput(interrupt_id=key, message="?", response_schema={"type": "string"})
            return
        yield f"{answer}: {await ctx.run_node(agent, node_input=f'the user said {answer}')}"

    asks.__name__ = name
    return node(rerun_on_resume=True)(asks)


def _stumbling(world: Any, name: str) -> Any:
    """A function that works in its second attempt."""

    def stumbles(node_input: Any, ctx: Any) -> str:
        world.log(f"attempt {ctx.attempt_count} of {name}")
        if ctx.attempt_count < 2:
            raise ValueError(f"{name} is away")
        return f"{name} works"

    stumbles.__name__ = name
    return node(retry_config=_ATTEMPTS)(stumbles)


def _claiming(name: str, first: LlmAgent, second: LlmAgent) -> Any:
    async def claims(node_input: Any, ctx: Any) -> Any:
        await ctx.run_node(first, node_input=name, use_as_output=True)
        said = await ctx.run_node(second, node_input=name)
        return {"claimed": said} if len(name) % 2 else None

    claims.__name__ = name
    return node(rerun_on_resume=True)(claims)


def _silent(name: str, agent: LlmAgent) -> Any:
    """A node without an output of its own."""

    async def silent(node_input: Any, ctx: Any) -> None:
        ctx.state[f"{name}_runs"] = ctx.state.get(f"{name}_runs", 0) + 1
        await ctx.run_node(agent, node_input=name)

    silent.__name__ = name
    return node(rerun_on_resume=True)(silent)


def _counting(name: str) -> Any:
    """A function that writes state of every scope."""

    def counts(node_input: Any, ctx: Any) -> Any:
        number = ctx.state.get(name, {"runs": 0})["runs"] + 1
        ctx.state[name] = {"runs": number, "had": [ctx.state.get(f"temp:{COUNTED}")]}
        for scope in ("", "user:", "app:", "temp:"):
            ctx.state[f"{scope}{COUNTED}"] = None if ctx.state.get(f"{scope}{COUNTED}") else number
        yield Event(output=f"{name} {number}", state={f"{name}_more": [number]})  # type: ignore[call-arg]

    counts.__name__ = name
    return counts


def with_habit(world: TreeWorld, agent: LlmAgent, habit: str) -> LlmAgent:
    """The agent with a callback that does more than to note that it ran."""

    def said(what: str) -> types.Content:
        return types.Content(role="model", parts=[text(f"{agent.name} {what}")])

    def answers(callback_context: Any, llm_request: Any) -> LlmResponse | None:
        world.log(f"before_model {agent.name}")
        is_third = len(llm_request.contents) % 3 == 0
        return LlmResponse(content=said("is guarded")) if is_third else None

    def changes(callback_context: Any, llm_response: Any) -> LlmResponse | None:
        if llm_response.partial or not llm_response.content:
            return None
        callback_context.state[f"{agent.name}_changed"] = True
        parts = [part.model_copy(deep=True) for part in llm_response.content.parts or []]
        for part in parts:
            if part.text:
                part.text += " (changed)"
        changed: LlmResponse = llm_response.model_copy()
        changed.content = types.Content(role="model", parts=parts)
        return changed

    def says_more(callback_context: Any) -> types.Content:
        return said("says more")

    def skips(callback_context: Any) -> types.Content | None:
        runs = callback_context.state.get(f"{agent.name}_runs", 0)
        callback_context.state[f"{agent.name}_runs"] = runs + 1
        return said("skips") if runs % 2 else None

    def guards(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
        tool_context.state[f"{agent.name}_guard"] = json.dumps(args)
        return {"guarded": args} if str(args.get("x", "")).endswith("4") else None

    def fails(callback_context: Any, llm_request: Any) -> None:
        entry = f"failure {agent.name}"
        if entry not in world.callbacks:
            world.log(entry)
            raise ValueError(f"a callback of {agent.name} fails")

    callbacks: dict[str, tuple[str, Callable[..., Any]]] = {
        "answers": ("before_model_callback", answers),
        "changes": ("after_model_callback", changes),
        "says more": ("after_agent_callback", says_more),
        "skips": ("before_agent_callback", skips),
        "guards": ("before_tool_callback", guards),
        FAILS: ("before_model_callback", fails),
    }
    if habit in callbacks:
        name, callback = callbacks[habit]
        setattr(agent, name, callback)
    agent.instruction = f"You are {agent.name}. {{t_{agent.name}?}} {{user:t_{agent.name}?}}"
    return agent
