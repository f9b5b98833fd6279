"""docs/changelog.md is what its fragments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.changelog import changelog, main, read_fragment
from support.requirements import REPOSITORY


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "changelog.d").mkdir(parents=True)
    (tmp_path / "src" / "dex-agents").mkdir(parents=True)
    (tmp_path / "src" / "dex-agents" / "pyproject.toml").write_text(
        '[project]\nname = "dex-agents"\nversion = "1.2.3"\n'
    )
    return tmp_path


def _fragment(repository: Path, name: str, text: str) -> Path:
    path = repository / "docs" / "changelog.d" / name
    path.write_text(text)
    return path


def test_the_page_is_up_to_date() -> None:
    assert (REPOSITORY / "docs" / "changelog.md").read_text() == changelog(REPOSITORY), (
        "run: PYTHONPATH=tests python -m support.changelog"
    )


def test_fragments_are_grouped_by_area_and_ordered_by_name(repository: Path) -> None:
    _fragment(repository, "b.md", "# Sessions\n\n- second [guide](../guide/a.md)\n")
    _fragment(repository, "a.md", "# Sessions\n\n- first,\n  in two lines\n- and another\n")
    _fragment(repository, "z.md", "# Agents and tools\n\n- third\n")
    assert main([], repository) == 0
    assert (repository / "docs" / "changelog.md").read_text() == (
        "# Changelog\n\n## 1.2.3, not released\n\n### Agents and tools\n\n- third\n\n"
        "### Sessions\n\n- first,\n  in two lines\n- and another\n- second [guide](guide/a.md)\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the first line must be"),
        ("- no area\n", "the first line must be"),
        ("# Nonsense\n\n- text\n", "one of Agents and tools, Sessions, Recovery"),
        ("# Sessions\n", "only bullets"),
        ("# Sessions\n\nprose\n", "only bullets"),
        ("# Sessions\n\n- a\n\n- b\n", "only bullets"),
        ("# Sessions\n\n- a\n# Recovery\n- b\n", "only bullets"),
    ],
)
def test_a_malformed_fragment_is_refused_by_name_and_the_page_stays(
    repository: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (repository / "docs" / "changelog.md").write_text("as it was")
    path = _fragment(repository, "odd.md", text)
    with pytest.raises(ValueError, match=f"odd.md: .*{reason}"):
        read_fragment(path)
    assert main([], repository) == 1
    assert capsys.readouterr().err.startswith("odd.md: ")
    assert (repository / "docs" / "changelog.md").read_text() == "as it was"


def test_arguments_are_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], repository) == 2
    assert capsys.readouterr().err == "usage: python -m support.changelog\n"
    assert not (repository / "docs" / "changelog.md").exists()
