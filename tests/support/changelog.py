"""Makes docs/changelog.md of the fragments in docs/changelog.d: ``python -m support.changelog``.

A fragment is the file of one change: a heading ``# Area``, then its bullets for a user to read.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from support.requirements import REPOSITORY

AREAS = (
    "Agents and tools",
    "Sessions",
    "Recovery",
    "User interfaces",
    "Operation",
    "dex-lite",
    "Testing",
    "Documentation",
)
USAGE = "usage: python -m support.changelog"


def read_fragment(path: Path) -> tuple[str, str]:
    """Area and bullets of one fragment; raises ValueError, which names the file, for any other text."""
    heading, _, body = path.read_text().partition("\n")
    area, bullets = heading.removeprefix("# "), body.strip("\n")
    if not heading.startswith("# ") or area not in AREAS:
        raise ValueError(f"{path.name}: the first line must be '# ' and one of {', '.join(AREAS)}")
    lines = bullets.split("\n")
    if not lines[0].startswith("- ") or not all(re.match(r"- \S|  \S", line) for line in lines):
        raise ValueError(
            f"{path.name}: below the area come only bullets ('- text'), each further line with two spaces"
        )
    # The page is one folder above its fragments.
    return area, bullets.replace("](../", "](")


def changelog(repository: Path) -> str:
    """The whole page: fragments by area in the order of AREAS, within an area by file name."""
    project = tomllib.loads((repository / "src/dex-agents/pyproject.toml").read_text())["project"]
    by_area: dict[str, list[str]] = {area: [] for area in AREAS}
    for path in sorted((repository / "docs" / "changelog.d").glob("*.md")):
        area, bullets = read_fragment(path)
        by_area[area].append(bullets)
    sections = [
        f"### {area}\n\n" + "\n".join(bullets) for area, bullets in by_area.items() if bullets
    ]
    heading = f"# Changelog\n\n## {project['version']}, not released"
    return "\n\n".join([heading, *sections]) + "\n"


def main(arguments: Sequence[str], repository: Path = REPOSITORY) -> int:
    """Write the page anew; the exit code is 1 if a fragment is malformed (the page stays)."""
    if arguments:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        text = changelog(repository)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    (repository / "docs" / "changelog.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
