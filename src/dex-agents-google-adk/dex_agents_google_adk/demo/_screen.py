"""What the terminal shows of a conversation while it happens."""

from __future__ import annotations

import asyncio
import json

from rich.console import Console
from rich.markup import escape
from rich.prompt import Confirm, Prompt

from dex_agents import AgentEvent, AgentSessionClient, PendingInterrupt


class ConversationScreen:
    """Prints live events; a retry's repeated text is announced instead of mixed in."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open_line = False
        self._attempts: dict[str, int] = {}
        self._caught_up = asyncio.Event()

    def user(self, text: str) -> None:
        """Show a message of the user."""
        self._end_line()
        self._console.print(f"[bold cyan]you[/]     {escape(text)}")

    def note(self, text: str) -> None:
        """Show something that happened around the conversation."""
        self._end_line()
        self._console.print(f"[bold red]!![/]      {escape(text)}")

    def ask_approval(self, interrupt: PendingInterrupt) -> bool:
        """Ask at the terminal."""
        self._end_line()
        arguments = json.dumps(dict(interrupt.arguments), ensure_ascii=False)
        return Confirm.ask(
            f"[bold yellow]approve[/] {interrupt.tool_name} {escape(arguments)}",
            console=self._console,
        )

    def auto_approved(self, interrupt: PendingInterrupt) -> None:
        """Show an approval that nobody was asked for."""
        self._end_line()
        arguments = json.dumps(dict(interrupt.arguments), ensure_ascii=False)
        self._console.print(
            f"[bold yellow]approve[/] {interrupt.tool_name} {escape(arguments)} [dim](by itself)[/]"
        )

    def ask_user(self) -> str:
        """Ask for the next message; empty ends the demo."""
        self._end_line()
        return Prompt.ask(
            "[bold cyan]you[/]     [dim](Enter ends)[/]",
            console=self._console,
            default="",
            show_default=False,
        ).strip()

    async def follow(self, sessions: AgentSessionClient, session_id: str) -> None:
        """Print events until cancelled."""
        async for batch in sessions.read_events(session_id):
            for event in batch.events:
                self._show(event)

    async def settle(self) -> None:
        """Let events that are already there appear before something else is printed."""
        await asyncio.sleep(0.15)
        self._end_line()

    def _show(self, event: AgentEvent) -> None:
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

    def _end_line(self) -> None:
        if self._open_line:
            self._console.print()
            self._open_line = False
