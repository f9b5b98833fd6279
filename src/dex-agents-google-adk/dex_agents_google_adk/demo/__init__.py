"""The main job as a person meets it: ``dex-agents-demo`` or ``./ci.sh demo``.

A support agent looks up an order and refunds it after your approval. While the refund runs, the Worker process is
killed with SIGKILL; another Worker takes over and the turn finishes with one refund.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the demo; the exit code is 1 if an invariant broke and 2 if it could not run."""
    say_that_it_loads()
    try:
        from dex_agents_google_adk.demo._app import run
    except ModuleNotFoundError as error:
        if error.name not in ("dex_lite", "rich", "typer"):
            raise
        raise SystemExit(
            f"The demo needs {error.name}: pip install 'dex-agents-google-adk[demo]'"
        ) from None
    run()


def say_that_it_loads() -> None:
    """The imports take seconds, on a cold disk many."""
    print("Google ADK loads …", file=sys.stderr, flush=True)
