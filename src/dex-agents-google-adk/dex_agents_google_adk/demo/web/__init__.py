"""A small web application for sessions: ``dex-agents-demo-web``. A start for one of your own."""

from __future__ import annotations

from dex_agents_google_adk.demo import loading

__all__ = ["main"]


def main() -> None:
    """Serve the demo's agent with a page for it, until Ctrl-C."""
    with loading("dex_lite", "starlette", "typer", "uvicorn"):
        from dex_agents_google_adk.demo.web._serve import run
    run()
