"""Everything public says what it is: names, methods, fields, arguments, members and constants."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from dex_lite import DexLiteError
from support.public_names import PACKAGES, public_modules, public_names

OURS = tuple(package.__name__ for package in PACKAGES)
# Only this package calls their constructors.
MADE_HERE = {"PrivateEngine", "RunningEngine"}


def _is_defined(thing: Any) -> bool:
    """Whether it is a class or function, not a value or alias."""
    return (isinstance(thing, type) and thing is not Any) or inspect.isroutine(thing)


DEFINED = [entry for entry in public_names() if _is_defined(entry[2])]


def _is_ours(module_name: str) -> bool:
    return module_name.partition(".")[0] in OURS


def _attributes(owner: type) -> Iterator[tuple[str, Any]]:
    """Public functions and properties of a class, those of its own bases of ours included."""
    for name in dir(owner):
        found = next((base for base in owner.__mro__ if name in vars(base)), None)
        if name.startswith("_") or found is None or not _is_ours(found.__module__):
            continue
        value = inspect.getattr_static(owner, name)
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function):
            yield name, function


def _described(body: list[ast.stmt]) -> set[str]:
    """Names that are assigned right before a text."""
    found: set[str] = set()
    for statement, behind in itertools.pairwise(body):
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else []
        )
        is_text = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
        if is_text:
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _missing(names: Iterable[str], text: str) -> list[str]:
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


def _members(thing: type[enum.Enum]) -> list[str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(body, ast.ClassDef)
    described = _described(body.body)
    return [member.name for member in thing if member.name not in described]


def _unnamed(thing: Any) -> list[str]:
    """Fields, arguments and members that the docstring leaves out."""
    text = thing.__doc__ or ""
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        return _members(thing)
    if isinstance(thing, type) and dataclasses.is_dataclass(thing):
        fields = [field.name for field in dataclasses.fields(thing)]
        return _missing((name for name in fields if not name.startswith("_")), text)
    if isinstance(thing, type) and (
        "__init__" not in vars(thing)
        or getattr(thing, "_is_protocol", False)
        or thing.__name__ in MADE_HERE
        or issubclass(thing, DexLiteError)
    ):
        return []  # nobody outside makes one, or as its base says
    return _missing(inspect.signature(thing).parameters, text)


def test_a_module_says_what_it_is_for_and_what_is_public() -> None:
    for module in public_modules():
        assert module.__doc__, module
        assert module.__all__, module


def test_a_name_and_its_methods_have_a_docstring() -> None:
    without = []
    for module, name, thing in DEFINED:
        text = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
        if not text or text.startswith(f"{name}("):  # a dataclass makes one up
            without.append(f"{module}.{name}")
        if isinstance(thing, type):
            without += [f"{module}.{name}.{n}" for n, f in _attributes(thing) if not f.__doc__]
    assert without == []


def test_fields_arguments_and_members_are_named_in_it() -> None:
    unnamed = {f"{module}.{name}": _unnamed(thing) for module, name, thing in DEFINED}
    assert {name: left_out for name, left_out in unnamed.items() if left_out} == {}


def test_a_value_has_a_text_behind_it() -> None:
    modules = [module for name, module in sorted(sys.modules.items()) if _is_ours(name)]
    described: set[str] = set()
    for module in modules:
        described |= _described(ast.parse(inspect.getsource(module)).body)
    names = {name for _, name, thing in public_names() if not _is_defined(thing)}
    assert {"MAX_IMAGE_BYTES", "UserAnswer"} <= names
    assert names - described - {"Json"} == set()
