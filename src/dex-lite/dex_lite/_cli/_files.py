"""`dex-lite backup` and `dex-lite check`: commands on a data file, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dex_lite import _backup, _check
from dex_lite._cli import _print
from dex_lite._cli._dev import DEFAULT_DATA_FILE
from dex_lite._cli._exits import FAILED
from dex_lite._cli._server import Json


def backup(
    file: Annotated[Path, typer.Argument(help="The copy to write.", show_default=False)],
    data: Annotated[Path, typer.Option(help="The data file to copy.")] = DEFAULT_DATA_FILE,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    is_json: Json = False,
) -> None:
    """Copy a data file, also while an engine runs on it, and verify the copy."""
    results = _backup.backup(str(data), str(file), is_replacing=force)
    size = file.stat().st_size
    runs = next(result.count for result in results if result.name == "runs")
    if is_json:
        _print.as_json({"data": str(data), "file": str(file), "bytes": size, "runs": runs})
    else:
        print(f"{file}: {size} bytes, {runs} runs, {len(results)} checks ok")


def check(
    file: Annotated[Path, typer.Argument(help="The data file.", show_default=False)],
    is_json: Json = False,
) -> None:
    """Verify a data file without changing it; exit code 1 if anything is wrong."""
    results = _check.check(str(file))
    is_ok = all(not result.faults for result in results)
    if is_json:
        _print.as_json(
            {
                "file": str(file),
                "ok": is_ok,
                "checks": [
                    {
                        "name": result.name,
                        "ok": not result.faults,
                        "count": result.count,
                        "fault_count": result.fault_count,
                        "faults": result.faults,
                    }
                    for result in results
                ],
            }
        )
    else:
        table = _print.table("Check", "Result", "Looked at", "Faults")
        for result in results:
            faults = list(result.faults)
            if result.fault_count > len(faults):
                faults.append(f"and {result.fault_count - len(faults)} more")
            word = _print.styled("failed" if faults else "completed")
            word.plain = "failed" if faults else "ok"
            table.add_row(result.name, word, f"{result.count} {result.unit}", "\n".join(faults))
        _print.show(table)
    if not is_ok:
        raise typer.Exit(FAILED)
