"""Record the sessions of a release: ``python tests/recorded/record.py 0.6.0``.

Run it once with the code of the release, in the development environment and with ``tests`` on the
path; it makes the folder ``tests/recorded/<release>``, which is never changed again. What is added to
the kit between two releases is recorded at once, under the name of the release with a word behind it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from dex_agents.testing import private_engine
from recorded.kit import DATA_FILE, MEDIA_FOLDER, NAMES_FILE, RECORD, recorder


async def record(target: Path) -> None:
    """Make all sessions, then copy the engine's data as it stands."""
    target.mkdir()
    with tempfile.TemporaryDirectory() as work:
        data = Path(work) / "engine.db"
        async with (
            private_engine(data) as engine,
            recorder(engine.address, Path(work) / "worker", target / MEDIA_FOLDER) as to,
        ):
            for make in RECORD.values():
                await make(to)
        command = [sys.executable, "-m", "dex_lite", "backup", "--data", str(data)]
        subprocess.run([*command, str(target / DATA_FILE)], check=True)
    (target / NAMES_FILE).write_text(json.dumps(sorted(RECORD), indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(record(Path(__file__).parent / sys.argv[1]))
