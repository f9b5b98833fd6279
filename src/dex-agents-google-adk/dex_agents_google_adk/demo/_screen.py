"""What the terminal shows of a conversation while it happens."""

from __future__ import annotations

import asyncio
import json
import sys

from rich.console import Console
from rich.markup import escape

from dex_agents import AgentEvent, AgentSessionClient, PendingInterrupt

_FAILED = {"model_call_failed": "a model call failed", "turn_failed": "the turn failed"}


class ConversationScreen:
    """Prints live events; a retry's repeated text is announced instead of mixed in."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open_line = False
        self._attempts: dict[str, int] = {}

    def user(self, text: str) -> None:
        """Show a message of the user."""
        self._end_line()
        self._console.print(f"[bold cyan]you[/]     {escape(text)}")

    def note(self, text: str) -> None:
        """Show something that happened around the conversation."""
        self._end_line()
        self._console.print(f"[bold red]!![/]      {escape(text)}")

    async def ask_approval(self, interrupt: PendingInterrupt) -> bool:
        """Ask at the terminal.

        Raises:
            EOFError: Nobody answers there any more.
        """
        self._end_line()
        while True:
            self._console.print(f"{_approval(interrupt)} [magenta]\\[y/n][/]: ", end="")
            answer = (await _read_line()).lower()
            if answer in ("y", "yes", "n", "no"):
                return answer.startswith("y")
            self._console.print("Please answer y or n")

    def auto_approved(self, interrupt: PendingInterrupt) -> None:
        """Show an approval that nobody was asked for."""
        self._end_line()
        self._console.print(f"{_approval(interrupt)} [dim](--yes)[/]")

    async def ask_user(self) -> str:
        """Ask for the next message; empty ends the demo."""
        self._end_line()
        self._console.print("[bold cyan]you[/]     [dim](Enter ends)[/]: ", end="")
        try:
            return await _read_line()
        except EOFError:
            return ""

    async def follow(self, sessions: AgentSessionClient, session_id: str) -> None:
        """Print events until cancelled."""
        async for batch in sessions.read_events(session_id):
            for event in batch.events:
                self.show(event)

    async def settle(self) -> None:
        """Let events that are already there appear before something else is printed."""
        await asyncio.sleep(0.15)
        self._end_line()

    def show(self, event: AgentEvent) -> None:
        """Show one event."""
        known = self._attempts.get(event.step_execution_id, 1)
        if event.attempt > known:
            self._attempts[event.step_execution_id] = event.attempt
            self.note(f"attempt {event.attempt} of {event.step_execution_id}")
        if event.type == "text_delta":
            if not self._open_line:
                self._console.print("[bold green]agent[/]   ", end="")
                self._open_line = True
            self._console.print(escape(str(event.data.get("text", ""))), end="")
        elif event.type == "tool_call_started":
            self._end_line()
            self._console.print(f"[dim]tool    {event.data.get('tool_name')} starts[/]")
        elif event.type == "tool_call_finished":
            self._end_line()
            self._console.print(
                f"[dim]tool    {event.data.get('tool_name')} {event.data.get('status', 'ends')}[/]"
            )
        elif event.type in ("model_call_failed", "turn_failed"):
            self.note(f"{_FAILED[event.type]}: {event.data.get('error')}")

    def _end_line(self) -> None:
        if self._open_line:
            self._console.print()
            self._open_line = False


def _approval(interrupt: PendingInterrupt) -> str:
    arguments = json.dumps(dict(interrupt.arguments), ensure_ascii=False)
    return f"[bold yellow]approve[/] {escape(interrupt.tool_name)} {escape(arguments)}"


async def _read_line() -> str:
    """A line from the terminal, without holding up the engine, and Ctrl-C, meanwhile."""
    loop = asyncio.get_running_loop()
    has_line = asyncio.Event()
    terminal = sys.stdin.fileno()
    loop.add_reader(terminal, has_line.set)
    try:
        await has_line.wait()
    finally:
        loop.remove_reader(terminal)
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the terminal is gone")
    return line.strip()
