"""The command line `dex-lite`."""

from dex_lite._cli._app import app, main

__all__ = ["app", "main"]
