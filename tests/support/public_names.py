"""Everything public of the three distributions, as their ``__all__`` have it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import dex_agents
import dex_agents_google_adk
import dex_lite

PACKAGES = (dex_agents, dex_agents_google_adk, dex_lite)


def public_modules() -> Iterator[ModuleType]:
    """Modules of which no part of the name begins with an underscore."""
    for package in PACKAGES:
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for name in (package.__name__, *(info.name for info in found)):
            if not any(part.startswith("_") for part in name.split(".")):
                yield importlib.import_module(name)


def public_names() -> Iterator[tuple[str, str, Any]]:
    """Module, name and object of everything public."""
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            yield module.__name__, name, getattr(module, name)
