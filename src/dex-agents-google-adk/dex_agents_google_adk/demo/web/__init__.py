"""A small web application for sessions: ``dex-agents-demo-web``. A start for one of your own."""

from __future__ import annotations

from dex_agents_google_adk.demo import say_that_it_loads

__all__ = ["main"]


def main() -> None:
    """Serve the demo's agent with a page for it, until Ctrl-C."""
    say_that_it_loads()
    try:
        from dex_agents_google_adk.demo.web._serve import run
    except ModuleNotFoundError as error:
        if error.name not in ("dex_lite", "starlette", "typer", "uvicorn"):
            raise
        raise SystemExit(
            f"The demo needs {error.name}: pip install 'dex-agents-google-adk[demo]'"
        ) from None
    run()
