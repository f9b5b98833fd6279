"""Guards around functions of ADK, each installed once per process."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning

_ORIGINAL = "_dex_agents_original"


@dataclass(frozen=True)
class Patch:
    """One function of ADK and the guard that takes its place.

    Attributes:
        owners: Everything that holds the function in a name of its own.
        name: That name.
        parameters: Names of the function's parameters that can be given by position.
        is_kind: Whether the function is of the right kind, for example a coroutine function.
        guard: Makes the guard, given the function.
    """

    owners: tuple[Any, ...]
    name: str
    parameters: tuple[str, ...]
    is_kind: Callable[[Any], bool]
    guard: Callable[[Any], Any]

    @property
    def original(self) -> Any:
        """ADK's own function."""
        found = getattr(self.owners[0], self.name, None)
        return getattr(found, _ORIGINAL, found)

    @property
    def stands(self) -> bool:
        """Whether the guard is installed everywhere."""
        return all(hasattr(function, _ORIGINAL) for function in self._found)

    @property
    def fits(self) -> bool:
        """Whether ADK's function is one, looks as the guard expects, and is the owners' common one."""
        original = self.original
        return (
            self.is_kind(original)
            and _positional(original) == self.parameters
            and all(found in (original, self._found[0]) for found in self._found)
        )

    @property
    def _found(self) -> list[Any]:
        return [getattr(owner, self.name, None) for owner in self.owners]

    def put(self) -> None:
        """Install the guard."""
        guarded = self.guard(self.original)
        setattr(guarded, _ORIGINAL, self.original)
        for owner in self.owners:
            setattr(owner, self.name, guarded)


def _positional(function: Any) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(item.name for item in parameters if item.kind is not item.KEYWORD_ONLY)


def install(patches: tuple[Patch, ...], changed: str) -> bool:
    """Install all guards or none; true if they stand.

    Args:
        changed: What the warning says when ADK no longer looks as expected.
    """
    if all(patch.stands for patch in patches):
        return True
    if not all(patch.fits for patch in patches):
        warnings.warn(changed, AdkWorkaroundWarning, stacklevel=3)
        return False
    for patch in patches:
        patch.put()
    return True


def digest_of(functions: Iterable[Any]) -> str:
    """A digest of the text of ADK's functions, whether guarded or not; of nothing a workaround knows if
    one has no text.
    """
    try:
        text = "".join(inspect.getsource(getattr(item, _ORIGINAL, item)) for item in functions)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
