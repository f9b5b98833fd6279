"""Copies of pydantic models that are made field by field, when somebody first reads a field.

Every attempt gets the whole history as events of its own, and reads little of most of them. A late
copy therefore begins with the values that can never change; any other value is copied from the
original when it is first read. Whoever wants more than to read a field (write one, see all of
them, copy or serialise the model) gets an ordinary model: the late copy becomes one in its place.

* Nothing that can change is shared: values that cannot are put into the copy when it is made, all
  others are copies, and nobody is ever given the original.
* Reading shows what a whole copy would have shown: the original never changes.
* Nothing tells a late copy from a whole one, except ``type()``, which names a subclass until the
  copy has become an ordinary model.
"""

from __future__ import annotations

import threading
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel

from dex_agents_google_adk._model_copies import (
    copier_of,
    deep_copier,
    get_fields,
    get_private,
    set_extra,
    set_fields,
    set_fields_set,
    set_private,
)

_M = TypeVar("_M", bound=BaseModel)
_T = TypeVar("_T")
_set_class: Callable[[object, type], None] = object.__dict__["__class__"].__set__
# What a reader must not find half made, and what would change a copy that is not an ordinary model.
_SLOTS = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_METHODS = (
    "__setattr__",
    "__delattr__",
    "__copy__",
    "__deepcopy__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
)
# What ADK asks of every event of a session: lists of what is in its content, most of them empty.
_LISTS = {"get_function_calls": "content", "get_function_responses": "content"}
_late_kinds: dict[type[BaseModel], type[BaseModel]] = {}
# Of one process: an event may be read in the threads of several callbacks at once.
_lock = threading.RLock()


class Original(Generic[_M]):
    """A model that nobody may change any more, and that copies are made from.

    Args:
        model: The model. Keep it, and all that it holds, from whoever might change it.
    """

    __slots__ = ("_copiers", "_found", "_late_kind", "_parts", "lasting", "model")

    def __init__(self, model: _M) -> None:
        self.model = model
        self._late_kind = _late_kind(type(model))
        self._found: dict[Any, Any] = {}
        self.lasting: dict[str, Any] = {}
        self._copiers: dict[str, Callable[[], Any]] = {}
        self._parts: dict[str, Original[Any]] = {}
        for name, value in model.__dict__.items():
            if isinstance(value, BaseModel):
                part = self._parts[name] = Original(value)
                self._copiers[name] = part.copy
            elif (copier := copier_of(value)) is not None:
                self._copiers[name] = copier
            else:
                self.lasting[name] = value

    def copy(self) -> _M:
        """A late copy."""
        kind = self._late_kind
        made = kind.__new__(kind)
        set_fields(made, self.lasting.copy())
        set_private(made, self)
        return made

    def copy_field(self, name: str) -> Any:
        """A copy of a value that late copies begin without."""
        return self._copiers[name]()

    def whole_copy(self) -> _M:
        """An ordinary model."""
        return self.found(deep_copier)()

    def found(self, find: Callable[[_M], _T]) -> _T:
        """What ``find`` finds in the model; it is asked once, and must not give parts of it away."""
        found = self._found
        if find not in found:
            found.setdefault(find, find(self.model))
        return found[find]  # type: ignore[no-any-return]

    def part(self, name: str) -> Original[Any] | None:
        """The original of a model that a field holds."""
        return self._parts.get(name)


def original_of(model: _M) -> Original[_M] | None:
    """What a late copy is made from; ``None`` for an ordinary model."""
    kept = get_private(model)
    return kept if type(kept) is Original else None


def unread(model: _M) -> Original[_M] | None:
    """The original of a late copy of which nobody has read anything that can change."""
    kept = get_private(model)
    if type(kept) is Original and len(get_fields(model)) == len(kept.lasting):
        return kept
    return None


def untouched(model: BaseModel, name: str) -> Original[Any] | None:
    """The original of a model that a field holds, if nobody has read the field yet."""
    original = original_of(model)
    return None if original is None or name in get_fields(model) else original.part(name)


def peek(model: BaseModel, name: str) -> Any:
    """The value of a field, for a reader that neither changes it nor gives it to anybody."""
    original = original_of(model)
    if original is None or name in get_fields(model):
        return getattr(model, name)
    return getattr(original.model, name)


def _read(copy: BaseModel, name: str) -> Any:
    """The value of a field that has not been read before."""
    with _lock:
        original = original_of(copy)
        if original is None:  # another thread was faster
            return getattr(copy, name)
        fields = get_fields(copy)
        if name not in fields:
            fields[name] = original.copy_field(name)
        return fields[name]


def _become_ordinary(copy: BaseModel) -> None:
    """Copy all that has not been read, and make the late copy an ordinary model."""
    with _lock:
        original = original_of(copy)
        if original is None:
            return
        whole = original.whole_copy()
        fields = whole.__dict__
        fields.update(get_fields(copy))
        set_fields(copy, fields)
        set_fields_set(copy, whole.__pydantic_fields_set__)
        set_extra(copy, whole.__pydantic_extra__)
        set_private(copy, whole.__pydantic_private__)
        _set_class(copy, type(whole))


class _Field:
    """Stands for a field in the class of late copies; Python asks the copy's own values first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, copy: BaseModel | None, kind: type) -> Any:
        if copy is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {self._name!r}")
        return _read(copy, self._name)


class _Slot:
    """Stands for what all models have; whoever asks for it gets that of an ordinary model."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, copy: BaseModel | None, kind: type) -> Any:
        if copy is None:
            return self
        _become_ordinary(copy)
        return getattr(copy, self._name)

    def __set__(self, copy: BaseModel, value: Any) -> None:
        _become_ordinary(copy)
        object.__setattr__(copy, self._name, value)


def _method(name: str) -> Callable[..., Any]:
    def method(copy: BaseModel, *args: Any) -> Any:
        _become_ordinary(copy)
        return getattr(copy, name)(*args)

    method.__name__ = name
    return method


def _list(method: Callable[[Any], list[Any]], field: str) -> Callable[[Any], list[Any]]:
    """A method that lists what a field holds, and leaves the field unread if that is nothing."""

    def listed(copy: BaseModel) -> list[Any]:
        original = original_of(copy)
        if original is not None and field not in get_fields(copy) and not original.found(method):
            return []
        return method(copy)

    return listed


def _late_kind(kind: type[_M]) -> type[_M]:
    """The class of late copies of ``kind``, of the same layout, so that they can change to it."""
    if kind not in _late_kinds:
        namespace: dict[str, Any] = {
            "__slots__": (),
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "__class__": property(lambda copy: kind, _set_class),
            **{name: _Field(name) for name in kind.__pydantic_fields__},
            **{name: _Slot(name) for name in _SLOTS},
            **{name: _method(name) for name in _METHODS},
            **{
                name: _list(getattr(kind, name), field)
                for name, field in _LISTS.items()
                if hasattr(kind, name)
            },
        }
        # Past pydantic's own metaclass, to which a subclass is a new model with a schema of its own.
        made = ABCMeta.__new__(type(kind), kind.__name__, (kind,), namespace)
        _late_kinds.setdefault(kind, made)
    return cast(type[_M], _late_kinds[kind])
