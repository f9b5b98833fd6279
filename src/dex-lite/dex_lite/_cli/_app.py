"""All commands under their names."""

from __future__ import annotations

import typer

from dex_lite._cli import _dev, _files, _flow_read, _flow_write, _stream
from dex_lite._cli._exits import HELP, PlainErrors

app = typer.Typer(
    name="dex-lite",
    help="The embedded Dex engine.",
    epilog=HELP,
    cls=PlainErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_flow = typer.Typer(help="Look at the Flows of a running server, and steer them.", epilog=HELP)
_stream_commands = typer.Typer(help="Look at Streams of a running server.", epilog=HELP)


@app.callback()
def _root() -> None:
    pass


app.command()(_dev.dev)
app.command()(_files.backup)
app.command()(_files.check)

_flow.command("list")(_flow_read.list_flows)
_flow.command("show")(_flow_read.show)
_flow.command("state")(_flow_read.state)
_flow.command("history")(_flow_read.history)
_flow.command("watch")(_flow_write.watch)
_flow.command("stop")(_flow_write.stop)
_flow.command("skip-timer")(_flow_write.skip_timer)
_flow.command("reset")(_flow_write.reset)
app.add_typer(_flow, name="flow", no_args_is_help=True)

_stream_commands.command("tail")(_stream.tail)
app.add_typer(_stream_commands, name="stream", no_args_is_help=True)


def main() -> None:
    """Entry point of the `dex-lite` script."""
    app()
