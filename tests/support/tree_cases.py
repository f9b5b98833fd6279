"""Agent trees and Workflows by hand, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from pydantic import BaseModel

from dex_agents._effects import ToolEffect
from support.adk_oracle import Driver, call, text
from support.tree_oracle import Scripts, TreeLlm, TreeWorld, compare_tree


def tool(world: TreeWorld, name: str) -> FunctionTool:
    """A tool that notes its execution and leaves a mark in the state."""

    def run(x: str, tool_context: ToolContext) -> dict[str, str]:
        world.ran(name, x=x)
        tool_context.state[f"{name}_state"] = f"{x}!"
        return {"value": f"{name}({x})"}

    run.__name__ = name
    run.__doc__ = f"Tool {name}."
    return FunctionTool(run)


def slow_tool() -> FunctionTool:
    """A tool that takes longer than anything else in its turn."""

    async def slow(x: str) -> str:
        """Take longer than the other branch needs."""
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    return FunctionTool(slow)


def llm(
    world: TreeWorld, name: str, *tools: Any, model: type[TreeLlm] = TreeLlm, **fields: Any
) -> LlmAgent:
    """An agent whose callbacks leave a trace."""

    def note(kind: str) -> Callable[..., None]:
        def callback(*_: Any, **__: Any) -> None:
            world.log(f"{kind} {name}")

        return callback

    return LlmAgent(
        name=name,
        model=model(world=world),
        instruction=fields.pop("instruction", f"You are {name}."),
        description=f"{name} does {name}",
        tools=[tool(world, item) if isinstance(item, str) else item for item in tools],
        before_agent_callback=note("before"),
        after_agent_callback=note("after"),
        before_tool_callback=note("before_tool"),
        after_tool_callback=note("after_tool"),
        **fields,
    )


def around(
    world: TreeWorld, kind: type[BaseAgent], name: str, *agents: BaseAgent, **fields: Any
) -> Any:
    """A composite agent whose callbacks leave a trace."""

    def before(callback_context: Any) -> None:
        world.log(f"before {name}")

    def after(callback_context: Any) -> None:
        world.log(f"after {name}")

    return kind(
        name=name,
        description=name,
        sub_agents=list(agents),
        before_agent_callback=before,
        after_agent_callback=after,
        **fields,
    )


def move(target: str) -> Any:
    return call("transfer_to_agent", agent_name=target)


@dataclass
class Case:
    """One tree, its scripts and what the user says.

    Attributes:
        any_order: See :func:`compare_tree`.
        dynamic: Agents that only nodes know, filled by ``build``.
    """

    build: Callable[[TreeWorld], BaseNode]
    scripts: Scripts
    messages: Sequence[str] = ("go",)
    any_order: bool = False
    dynamic: list[BaseAgent] = field(default_factory=list)

    async def compare(self) -> Driver:
        """Play it in plain ADK and in the runner, and assert that they agree."""
        return await compare_tree(
            self.build,
            self.scripts,
            self.messages,
            any_order=self.any_order,
            default_tool_effect=ToolEffect.READ,
            dynamic_agents=self.dynamic,
        )


class Answer(BaseModel):
    """An answer."""

    answer: str


CASES: dict[str, Case] = {
    "sequential": Case(
        lambda w: around(
            w,
            SequentialAgent,
            "root",
            llm(w, "one", "t1", output_key="one_out"),
            llm(w, "two", "t2", "t3", instruction="Got {one_out}"),
        ),
        {
            "one": [[call("t1", x="1")], text("one done")],
            "two": [[call("t2", x="2"), call("t3", x="3")], text("two done")],
        },
    ),
    "transfer": Case(
        lambda w: llm(w, "root", "t0", sub_agents=[llm(w, "sub", "t1")]),
        {
            "root": [[call("t0", x="0")], [move("sub")]],
            "sub": [[call("t1", x="1")], text("sub done"), [call("t1", x="5")], text("sub done2")],
        },
        ("go", "again"),
    ),
    "transfer without a way back": Case(
        lambda w: llm(
            w, "root", "t0", sub_agents=[llm(w, "sub", "t1", disallow_transfer_to_parent=True)]
        ),
        {"root": [[move("sub")]], "sub": [[call("t1", x="1")], text("sub done")]},
    ),
    "transfer chain": Case(
        lambda w: llm(
            w, "root", "t0", sub_agents=[llm(w, "mid", "t1", sub_agents=[llm(w, "leaf", "t2")])]
        ),
        {
            "root": [
                [move("mid")],
                [call("t0", x="9")],
                text("root end"),
                [call("t0", x="5")],
                text("second"),
            ],
            "mid": [[call("t1", x="1")], [move("leaf")], [call("t1", x="4")], [move("root")]],
            "leaf": [[call("t2", x="2"), call("t2", x="3")], [move("mid")]],
        },
        ("go", "again"),
    ),
    "transfer inside a sequence": Case(
        lambda w: around(
            w,
            SequentialAgent,
            "root",
            llm(w, "one", sub_agents=[llm(w, "child", "t1", disallow_transfer_to_parent=True)]),
            llm(w, "two", "t2"),
        ),
        {
            "one": [[move("child")]],
            "child": [[call("t1", x="1")], [call("t1", x="2")], text("child done")],
            "two": [[call("t2", x="2")], text("two done")],
        },
    ),
    "transfer to a sequence": Case(
        lambda w: llm(
            w,
            "root",
            "t0",
            sub_agents=[around(w, SequentialAgent, "seq", llm(w, "s1", "t1"), llm(w, "s2", "t2"))],
        ),
        {
            "root": [[call("t0", x="0")], [move("seq")]],
            "s1": [[call("t1", x="1")], text("s1 done")],
            "s2": [[call("t2", x="2")], text("s2 done")],
        },
    ),
    "transfer to parallel agents": Case(
        lambda w: llm(
            w,
            "root",
            "t0",
            sub_agents=[around(w, ParallelAgent, "par", llm(w, "p1", "t1"), llm(w, "p2", "t2"))],
        ),
        {
            "root": [[move("par")]],
            "p1": [[call("t1", x="1")], text("p1 done")],
            "p2": [[call("t2", x="2")], [call("t2", x="3")], text("p2 done")],
        },
    ),
    "loop": Case(
        lambda w: around(
            w,
            LoopAgent,
            "root",
            llm(w, "writer", "t1"),
            llm(w, "critic", "t2", exit_loop),
            max_iterations=5,
        ),
        {
            "writer": [[call("t1", x="1")], text("draft 1"), [call("t1", x="2")], text("draft 2")],
            "critic": [[call("t2", x="1")], text("again"), [call("exit_loop")]],
        },
    ),
    "parallel root": Case(
        lambda w: around(w, ParallelAgent, "root", llm(w, "p1", "t1"), llm(w, "p2", "t2")),
        {
            "p1": [[call("t1", x="1")], [call("t1", x="11")], text("p1 done")],
            "p2": [[call("t2", x="2")], text("p2 done")],
        },
    ),
    "parallel root of five": Case(
        lambda w: around(
            w,
            ParallelAgent,
            "root",
            *(llm(w, f"p{number}", *[f"t{number}"][: number % 4]) for number in range(5)),
        ),
        # No calls, one, two in a response, three one after the other, none again.
        {
            "p0": [text("p0 done")],
            "p1": [[call("t1", x="1")], text("p1 done")],
            "p2": [[call("t2", x="2"), call("t2", x="22")], text("p2 done")],
            "p3": [*([call("t3", x="3" * count)] for count in (1, 2, 3)), text("p3 done")],
            "p4": [text("p4 done")],
        },
    ),
    "parallel in a sequence": Case(
        lambda w: around(
            w,
            SequentialAgent,
            "root",
            around(w, ParallelAgent, "par", llm(w, "p1", "t1"), llm(w, "p2", "t2")),
            llm(w, "last", "t3"),
        ),
        {
            "p1": [[call("t1", x="1")], [call("t1", x="11")], text("p1 done")],
            "p2": [[call("t2", x="2")], text("p2 done")],
            "last": [[call("t3", x="3")], text("merged")],
        },
        any_order=True,
    ),
    "sequence in parallel": Case(
        lambda w: around(
            w,
            ParallelAgent,
            "root",
            around(w, SequentialAgent, "seq", llm(w, "s1", "t1"), llm(w, "s2", "t2")),
            llm(w, "p2", "t3"),
        ),
        {
            "s1": [[call("t1", x="1")], text("s1 done")],
            "s2": [[call("t2", x="2")], text("s2 done")],
            "p2": [[call("t3", x="3")], [call("t3", x="33")], [call("t3", x="333")], text("end")],
        },
        any_order=True,
    ),
    "parallel in a loop": Case(
        lambda w: around(
            w,
            LoopAgent,
            "root",
            around(w, ParallelAgent, "par", llm(w, "p1", "t1"), llm(w, "p2", "t2")),
            llm(w, "judge", exit_loop),
            max_iterations=4,
        ),
        {
            "p1": [[call("t1", x="1")], text("p1 a"), [call("t1", x="2")], text("p1 b")],
            "p2": [[call("t2", x="2")], text("p2 a"), text("p2 b")],
            "judge": [text("again"), [call("exit_loop")]],
        },
        any_order=True,
    ),
    "two single turns": Case(
        lambda w: llm(
            w,
            "root",
            sub_agents=[
                llm(w, "st1", "t1", mode="single_turn"),
                llm(w, "st2", "t2", mode="single_turn"),
            ],
        ),
        {
            "root": [[call("st1", request="r1"), call("st2", request="r2")], text("root done")],
            "st1": [[call("t1", x="1")], text("st1 done")],
            "st2": [[call("t2", x="2")], [call("t2", x="22")], text("st2 done")],
        },
        any_order=True,
    ),
    "single turn and then a tool": Case(
        lambda w: llm(w, "root", "t0", sub_agents=[llm(w, "st1", "t1", mode="single_turn")]),
        {
            "root": [[call("st1", request="r1")], [call("t0", x="0")], text("root done")],
            "st1": [[call("t1", x="1")], text("st1 done")],
        },
    ),
    "single turn beside a tool": Case(
        lambda w: llm(w, "root", "t0", sub_agents=[llm(w, "st1", "t1", mode="single_turn")]),
        {
            "root": [[call("t0", x="0"), call("st1", request="r1")], text("root done")],
            "st1": [[call("t1", x="1")], [call("t1", x="2")], text("st1 done")],
        },
        any_order=True,
    ),
    "task": Case(
        lambda w: llm(w, "root", sub_agents=[llm(w, "task1", "t1", mode="task")]),
        {
            "root": [[call("task1", request="do it")], text("root done")],
            "task1": [
                [call("t1", x="1")],
                text("which one?"),
                [call("t1", x="2")],
                [call("finish_task", result="ok")],
            ],
        },
        ("go", "my answer"),
    ),
    "task and the parent's own tool": Case(
        lambda w: llm(w, "root", "t0", sub_agents=[llm(w, "task1", "t1", mode="task")]),
        {
            "root": [
                [call("t0", x="0")],
                [call("task1", request="do it")],
                [call("t0", x="1")],
                text("root done"),
                text("bye"),
            ],
            "task1": [
                [call("t1", x="1")],
                text("which one?"),
                [call("t1", x="2"), call("t1", x="3")],
                [call("finish_task", result="ok")],
            ],
        },
        ("go", "more", "next"),
    ),
    "task beside a tool": Case(
        lambda w: llm(w, "root", "t0", sub_agents=[llm(w, "task1", "t1", mode="task")]),
        {
            "root": [[call("t0", x="0"), call("task1", request="do it")], text("root done")],
            "task1": [[call("t1", x="1")], [call("finish_task", result="ok")]],
        },
    ),
    "two tasks": Case(
        lambda w: llm(
            w,
            "root",
            sub_agents=[llm(w, "k1", "t1", mode="task"), llm(w, "k2", "t2", mode="task")],
        ),
        {
            "root": [[call("k1", request="a"), call("k2", request="b")], text("root done")],
            "k1": [[call("t1", x="1")], [call("finish_task", result="one")]],
            "k2": [[call("t2", x="2")], [call("finish_task", result="two")]],
        },
    ),
    "transfer beside a tool": Case(
        lambda w: llm(w, "root", "t1", sub_agents=[llm(w, "sub")]),
        {"root": [[call("t1", x="1"), move("sub")]], "sub": [text("sub done")]},
    ),
    "output schema in a sequence": Case(
        lambda w: around(
            w,
            SequentialAgent,
            "root",
            llm(w, "one", "t1", output_schema=Answer, output_key="out"),
            llm(w, "two", "t2", instruction="Got {out}"),
        ),
        {
            "one": [[call("t1", x="1")], [call("set_model_response", answer="42")]],
            "two": [[call("t2", x="2")], text("end")],
        },
    ),
    "a turn that begins at a sub-agent": Case(
        lambda w: llm(
            w, "root", sub_agents=[llm(w, "mid", "t1", sub_agents=[llm(w, "leaf", "t2")])]
        ),
        {
            "root": [[move("mid")]],
            "mid": [text("mid here"), [call("t1", x="1")], [move("leaf")]],
            "leaf": [[call("t2", x="2")], text("leaf done")],
        },
        ("go", "again"),
    ),
    "a turn that begins at a sub-agent and returns to the root": Case(
        lambda w: llm(w, "root", "t0", sub_agents=[llm(w, "sub", "t1"), llm(w, "beside", "t2")]),
        {
            "root": [[move("sub")], [call("t0", x="1")], [move("sub")]],
            "sub": [
                text("sub here"),
                [call("t1", x="1")],
                [move("beside")],
                [call("t1", x="3")],
                text("sub done"),
            ],
            "beside": [[call("t2", x="2")], [move("root")]],
        },
        ("go", "again"),
    ),
    "a sub-agent that comes twice": Case(
        lambda w: llm(w, "root", "t0", sub_agents=[llm(w, "sub", "t1")]),
        {
            "root": [[move("sub")], [move("sub")]],
            "sub": [[call("t1", x="1")], [move("root")], [call("t1", x="2")], text("sub done")],
        },
    ),
    "a branch ends the loop while another waits": Case(
        lambda w: around(
            w,
            LoopAgent,
            "root",
            around(
                w,
                ParallelAgent,
                "par",
                around(w, SequentialAgent, "seq", llm(w, "p1", exit_loop)),
                llm(w, "p2", "t2"),
            ),
            max_iterations=3,
        ),
        {"p1": [[call("exit_loop")]], "p2": [[call("t2", x="2")], text("p2 done")]},
        any_order=True,
    ),
    "tools of one name": Case(
        lambda w: around(w, SequentialAgent, "root", llm(w, "one", "t1"), llm(w, "two", "t1")),
        {
            "one": [[call("t1", x="1")], text("one")],
            "two": [[call("t1", x="2")], text("two")],
        },
    ),
}


def inline(world: TreeWorld, name: str, *agents: BaseAgent, mode: str = "single_turn") -> LlmAgent:
    return llm(world, name, f"t_{name}", mode=mode, sub_agents=list(agents))


def ask(name: str) -> Any:
    return call(name, request=f"for {name}")


def _both(world: TreeWorld, *tools: Any) -> LlmAgent:
    agents = [
        *(inline(world, name) for name in ("s", "s2")),
        *(inline(world, name, mode="task") for name in ("k", "k2")),
        llm(world, "m"),
    ]
    return llm(world, "root", *tools, sub_agents=agents)


BODIES: Scripts = {
    "s": [[call("t_s", x="1")], text("s done")],
    "s2": [[call("t_s2", x="2")], text("s2 done")],
    "k": [[call("t_k", x="3")], [call("finish_task", result="k done")]],
    "k2": [[call("t_k2", x="4")], [call("finish_task", result="k2 done")]],
    "m": [text("m done")],
}

RESPONSES: dict[str, list[Any]] = {
    "a single turn and a task": [ask("s"), ask("k")],
    "a task and a single turn": [ask("k"), ask("s")],
    "a tool between a single turn and a task": [ask("s"), call("t0", x="0"), ask("k")],
    "two single turns and two tasks": [ask("s"), ask("s2"), ask("k"), ask("k2")],
    "a single turn and a transfer": [ask("s"), move("m")],
    "a task and a transfer": [ask("k"), move("m")],
    "a task and an unknown tool": [ask("k"), call("missing")],
}
CASES |= {
    name: Case(
        lambda w: _both(w, "t0"),
        {**BODIES, "root": [response, [call("t0", x="9")], text("root done")]},
        any_order=True,
    )
    for name, response in RESPONSES.items()
}


def plain_function(world: TreeWorld, name: str) -> Callable[[str], str]:
    """A tool that is given as a function, which ADK runs behind a task beside it."""

    def run(x: str) -> str:
        world.ran(name, x=x)
        return x

    run.__name__ = name
    return run


CASES |= {
    "a task and a function": Case(
        lambda w: _both(w, plain_function(w, "t0")),
        {**BODIES, "root": [[ask("k"), call("t0", x="0"), ask("k2")], text("root done")]},
        any_order=True,
    ),
    "a task, a function and a transfer": Case(
        lambda w: _both(w, plain_function(w, "t0")),
        {**BODIES, "root": [[ask("k"), call("t0", x="0"), move("m")]]},
        any_order=True,
    ),
    "single turn below a single turn": Case(
        lambda w: llm(w, "root", sub_agents=[inline(w, "s", inline(w, "s2"))]),
        {
            **BODIES,
            "s": [[call("t_s", x="1")], [ask("s2"), call("t_s", x="5")], text("s done")],
            "root": [[ask("s")], text("root done")],
        },
    ),
    "single turns below a task below a task": Case(
        lambda w: llm(
            w,
            "root",
            sub_agents=[
                inline(
                    w,
                    "k",
                    inline(w, "k2", inline(w, "s"), mode="task"),
                    inline(w, "s2"),
                    mode="task",
                )
            ],
        ),
        {
            **BODIES,
            "k": [[ask("s2"), ask("k2")], [call("finish_task", result="k done")]],
            "k2": [text("which?"), [ask("s")], [call("finish_task", result="k2 done")]],
            "root": [[ask("k")], text("root done")],
        },
        ("go", "that one"),
        any_order=True,
    ),
    "a task that finishes beside a tool": Case(
        lambda w: llm(w, "root", sub_agents=[inline(w, "k", mode="task")]),
        {
            "k": [[call("t_k", x="3"), call("finish_task", result="k done")]],
            "root": [[ask("k")], text("root done")],
        },
    ),
    "a task that finishes beside a single turn": Case(
        lambda w: llm(w, "root", sub_agents=[inline(w, "k", inline(w, "s"), mode="task")]),
        {
            **BODIES,
            "k": [[ask("s"), call("finish_task", result="k done")]],
            "root": [[ask("k")], text("root done")],
        },
    ),
    "a task that finishes too early": Case(
        lambda w: llm(
            w, "root", sub_agents=[inline(w, "k", inline(w, "k2", mode="task"), mode="task")]
        ),
        {
            **BODIES,
            "k": [
                [ask("k2"), call("t_k", x="3"), call("finish_task", result="early")],
                [call("finish_task", result="k done")],
            ],
            "root": [[ask("k")], text("root done")],
        },
    ),
    "a root in task mode": Case(
        lambda w: llm(w, "root", "t0", mode="task"),
        {
            "root": [
                [call("t0", x="1")],
                text("what else?"),
                [call("t0", x="2")],
                [call("finish_task", result="done")],
            ]
        },
        ("go", "more"),
    ),
    "a single turn that comes again in a loop": Case(
        lambda w: llm(
            w,
            "root",
            sub_agents=[
                around(
                    w,
                    LoopAgent,
                    "loop",
                    llm(w, "a", sub_agents=[inline(w, "s")]),
                    max_iterations=2,
                )
            ],
        ),
        {
            "root": [[move("loop")]],
            "a": [[ask("s")], text("one"), [ask("s")], text("two")],
            "s": [[call("t_s", x="1")], text("s one"), [call("t_s", x="2")], text("s two")],
        },
    ),
}


CASES |= {
    "single turns in branches side by side": Case(
        lambda w: llm(
            w,
            "root",
            sub_agents=[
                around(
                    w,
                    ParallelAgent,
                    "par",
                    llm(w, "one", sub_agents=[inline(w, "s"), inline(w, "s2")]),
                    llm(w, "two", sub_agents=[inline(w, "s3")]),
                )
            ],
        ),
        {
            "root": [[move("par")]],
            "one": [[ask("s"), ask("s2")], text("one done")],
            "two": [[ask("s3")], text("two done")],
            "s": [text("s done")],
            "s2": [[call("t_s2", x="2")], [call("t_s2", x="3")], text("s2 done")],
            "s3": [[call("t_s3", x="4")], text("s3 done")],
        },
        any_order=True,
    ),
}
