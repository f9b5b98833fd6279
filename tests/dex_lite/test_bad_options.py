"""Settings that are none are refused by name before an engine touches a file."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from dex_lite import EngineOptions, Limits, open_engine


def options(**settings: Any) -> EngineOptions:
    """As somebody without a type checker may call it."""
    return EngineOptions(**settings)


SECONDS = [field.name for field in dataclasses.fields(EngineOptions) if field.name.endswith("_s")]
FLAGS = ["strict_dispatch", "eager_registration"]
LIMITS = [field.name for field in dataclasses.fields(Limits)]


@pytest.mark.parametrize("name", SECONDS)
def test_times_are_seconds(name: str) -> None:
    for value in (-1, -0.001, math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"^{name} must be seconds from 0 on, got {value}$"):
            options(**{name: value})
    for wrong in (True, "10", b"1"):
        with pytest.raises(
            TypeError, match=rf"^{name} must be seconds as a number, got {wrong!r}$"
        ):
            options(**{name: wrong})
    assert getattr(options(**{name: 0}), name) == 0


def test_only_retention_may_have_no_end() -> None:
    assert EngineOptions(retention_s=None).retention_s is None
    none: Any = None
    with pytest.raises(TypeError, match=r"^drain_s must be seconds as a number, got None$"):
        EngineOptions(drain_s=none)


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be True or False, got 1$"):
        options(**{name: 1})


@pytest.mark.parametrize("value", ["", "FULL", "off", None, 1, "full\0"])
def test_an_unknown_durability_is_refused(value: Any) -> None:
    text = re.escape(f"durability must be 'full' or 'normal', got {value!r}")
    with pytest.raises(ValueError, match=f"^{text}$"):
        EngineOptions(durability=value)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_whole_numbers_from_one_on(name: str) -> None:
    for value in (0, -(10**30)):
        with pytest.raises(ValueError, match=rf"^{name} must be at least 1, got {value}$"):
            Limits(**{name: value})
    for wrong in (True, 1.5, "1", None):
        limits: dict[str, Any] = {name: wrong}
        with pytest.raises(TypeError, match=rf"^{name} must be an int, got {wrong!r}$"):
            Limits(**limits)


def test_limits_that_are_none() -> None:
    limits: Any = {"request": 1}
    with pytest.raises(TypeError, match=r"^limits must be a Limits, got dict$"):
        EngineOptions(limits=limits)


@pytest.mark.parametrize("name", ["port", "metrics_port"])
async def test_a_port_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    for value in (-1, 65536, 10**20):
        given: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=f"^{name} must be from 0 to 65535, got {value}$"):
            await open_engine(tmp_path / "engine.db", **given).__aenter__()
    for wrong in ("8801", True, 1.0):
        given = {name: wrong}
        with pytest.raises(TypeError, match=f"^{name} must be an int, got {wrong!r}$"):
            await open_engine(tmp_path / "engine.db", **given).__aenter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        (None, TypeError, "path must be a path (str or os.PathLike), got NoneType"),
        (7, TypeError, "path must be a path (str or os.PathLike), got int"),
        (b"x", TypeError, "path must be a path (str or os.PathLike), got bytes"),
        ("", ValueError, "path must be the path of a data file, got ''"),
        (" ", ValueError, "path must be the path of a data file, got ' '"),
        ("a\0b", ValueError, "path must be the path of a data file, got 'a\\x00b'"),
    ],
)
async def test_a_path_that_is_none_is_refused(
    path: Any, kind: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        await open_engine(path).__aenter__()
    assert list(tmp_path.iterdir()) == []
