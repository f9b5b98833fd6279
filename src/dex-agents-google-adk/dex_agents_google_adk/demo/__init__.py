"""The main job as a person meets it: ``dex-agents-demo`` or ``./ci.sh demo``.

A support agent looks up an order and refunds it after your approval. While the refund runs, the Worker process is
killed with SIGKILL; another Worker takes over and the turn finishes with one refund.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["main"]


def main() -> None:
    """Run the demo; the exit code is 1 if an invariant broke and 2 if it could not run."""
    with loading("dex_lite", "rich", "typer"):
        from dex_agents_google_adk.demo._app import run
    run()


@contextmanager
def loading(*of_the_extra: str) -> Iterator[None]:
    """Around the imports of a demo, which take seconds, on a cold disk many.

    Args:
        of_the_extra: Modules that the extra ``demo`` installs.

    Raises:
        SystemExit: One of them is missing, or somebody did not want to wait.
    """
    try:
        print("Google ADK loads …", file=sys.stderr, flush=True)
        yield
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        if error.name not in of_the_extra:
            raise
        raise SystemExit(
            f"The demo needs {error.name}: pip install 'dex-agents-google-adk[demo]'"
        ) from None
