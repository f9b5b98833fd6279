"""A single agent with every kind of callback, and random scripts for its model."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from support.adk_oracle import ScriptedLlm, Step, World, answer, call, text, thought

NAMES = ["read", "write", "odd", "guarded", "yielding", "missing"]
VALUES: list[Any] = ["", 0, None, [], {}, "text", {"a": [1, None]}, "grüße 🎉", False]


def build(world: World, model: type[ScriptedLlm] = ScriptedLlm) -> LlmAgent:
    """The agent."""

    def read(x: int, tool_context: ToolContext) -> Any:
        """Read."""
        world.ran_in(tool_context, "read", x=x)
        return VALUES[x % len(VALUES)]

    async def write(x: int, tool_context: ToolContext) -> str:
        """Write."""
        world.ran_in(tool_context, "write", x=x)
        tool_context.state[f"key{x % 3}"] = x
        tool_context.state["temp:last"] = x
        return f"wrote {x}"

    async def odd(x: int, tool_context: ToolContext) -> dict[str, int]:
        """Odd."""
        world.ran_in(tool_context, "odd", x=x)
        tool_context.actions.skip_summarization = x % 5 == 0 or None
        return {"odd": x}

    def guarded(x: int, tool_context: ToolContext) -> str:
        """Guarded."""
        world.ran_in(tool_context, "guarded", x=x)
        return "let through"

    async def yielding(x: int, tool_context: ToolContext) -> AsyncGenerator[Any, None]:
        """Yielding."""
        world.ran_in(tool_context, "yielding", x=x)
        tool_context.actions.skip_summarization = x % 11 == 0 or None
        if x % 2:
            yield Event(message=f"on {x}")  # type: ignore[call-arg]
        tool_context.state[f"key{x % 3}"] = x
        if x % 3 or x % 7 == 0:  # callbacks see another thing than in plain ADK for nothing
            yield VALUES[x % len(VALUES)]

    def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
        tool_context.state["calls"] = tool_context.state.get("calls", 0) + 1
        if tool.name == "guarded" and args["x"] % 2:
            return {"blocked": args["x"]}
        if tool.name == "write" and args["x"] % 4 == 0:
            args["x"] += 1
        return None

    def after(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> Any:
        tool_context.state[f"after_{tool.name}"] = args
        return {"replaced": tool_response} if args.get("x", 0) % 7 == 0 else None

    def before_agent(callback_context: Any) -> None:
        callback_context.state["turns"] = callback_context.state.get("turns", 0) + 1

    return LlmAgent(
        name="root",
        model=model(world=world),
        instruction="Turn {turns?} calls {calls?} key {key0?} last {temp:last?}",
        tools=[read, write, odd, guarded, yielding, exit_loop],
        before_tool_callback=before,
        after_tool_callback=after,
        before_agent_callback=before_agent,
        output_key="answer",
    )


def random_script(seed: int) -> tuple[list[Step], list[str]]:
    """Answers of the model, and messages of the user."""
    rng = random.Random(seed)
    turns = rng.randrange(1, 4)
    script: list[Step] = []
    for turn in range(turns):
        script += [_random_answer(rng, final=False, turn=turn) for _ in range(rng.randrange(0, 4))]
        script.append(_random_answer(rng, final=True, turn=turn))
    # Turns that skip the summary leave answers over, which further turns use up.
    return script, [f"message {number}" for number in range(turns)]


def _random_answer(rng: random.Random, *, final: bool, turn: int) -> Step:
    if final:
        return [answer(text("an"), partial=True), answer(thought("so"), text(f"answer {turn}"))]
    parts: list[types.Part] = [text("thinking aloud")] if rng.random() < 0.3 else []
    for _ in range(rng.choice([1, 1, 2, 3, 4])):
        name = rng.choice(NAMES)
        call_id = f"id{rng.randrange(4)}-{len(parts)}" if rng.random() < 0.3 else None
        parts.append(call(name, call_id, x=rng.randrange(1, 30)))
    return parts
