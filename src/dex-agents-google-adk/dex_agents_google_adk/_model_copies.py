"""Copies of pydantic models, at a third of what ``model_copy`` costs.

A long session is copied for every model call, so the copies are a good part of its cost.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

_M = TypeVar("_M", bound=BaseModel)
# Slots of every model; as bound functions they cost half of what ``object.__setattr__`` does.
get_fields = BaseModel.__dict__["__dict__"].__get__
get_private = BaseModel.__dict__["__pydantic_private__"].__get__
set_fields = BaseModel.__dict__["__dict__"].__set__
set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
set_private = BaseModel.__dict__["__pydantic_private__"].__set__
_NEVER_CHANGE = (type(None), str, bool, int, float, bytes, Enum, datetime.date, datetime.timedelta)


def shallow_copy(model: _M) -> _M:
    """What ``model.model_copy()`` returns: a model of its own that shares its values."""
    if model.__pydantic_extra__ is not None or model.__pydantic_private__ is not None:
        return copy.copy(model)
    kind = type(model)
    made = kind.__new__(kind)
    set_fields(made, model.__dict__.copy())
    set_extra(made, None)
    set_fields_set(made, model.__pydantic_fields_set__.copy())
    set_private(made, None)
    return made


def set_field(model: BaseModel, name: str, value: object) -> None:
    """What an assignment does on a model that validates none."""
    model.__dict__[name] = value
    model.__pydantic_fields_set__.add(name)


def deep_copier(model: _M) -> Callable[[], _M]:
    """A function that returns what ``model.model_copy(deep=True)`` does.

    What has to be copied is found out once, here, so ``model`` and all that it holds must never
    change afterwards: keep it from whoever might change it.
    """
    kind = type(model)
    new, copied_fields = kind.__new__, model.__dict__.copy
    copied_fields_set = model.__pydantic_fields_set__.copy
    copiers = _copiers(model.__dict__.items())
    copied_extra = copier_of(model.__pydantic_extra__)
    copied_private = copier_of(_set_values(model.__pydantic_private__))

    def copied() -> _M:
        made = new(kind)
        fields = copied_fields()
        for name, copier in copiers:
            fields[name] = copier()
        set_fields(made, fields)
        set_extra(made, copied_extra and copied_extra())
        set_fields_set(made, copied_fields_set())
        set_private(made, copied_private and copied_private())
        return made

    return copied


def _set_values(private: dict[str, Any] | None) -> dict[str, Any] | None:
    """Private attributes that have been given a value; pydantic copies no others."""
    if private is None:
        return None
    return {name: value for name, value in private.items() if value is not PydanticUndefined}


def _container_copier(value: dict[Any, Any] | list[Any]) -> Callable[[], Any]:
    shallow: Callable[[], Any] = value.copy
    copiers = _copiers(value.items() if isinstance(value, dict) else enumerate(value))
    if not copiers:
        return shallow

    def copied() -> Any:
        made = shallow()
        for key, copier in copiers:
            made[key] = copier()
        return made

    return copied


def _copiers(items: Any) -> tuple[tuple[Any, Callable[[], Any]], ...]:
    """How to copy those of the values that are not the same for ever."""
    found = ((key, copier_of(value)) for key, value in items)
    return tuple((key, copier) for key, copier in found if copier is not None)


def copier_of(value: Any) -> Callable[[], Any] | None:
    """How to copy a value; ``None`` if it never changes."""
    if isinstance(value, _NEVER_CHANGE):
        return None
    if isinstance(value, BaseModel):
        return deep_copier(value)
    if type(value) is dict or type(value) is list:
        return _container_copier(value)
    if type(value) is set and all(isinstance(item, _NEVER_CHANGE) for item in value):
        return value.copy
    return partial(copy.deepcopy, value)
