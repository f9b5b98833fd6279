"""The query language: text to a tree. Grammar by lark; bounds against hostile queries here.

CustomerId = 'c-1' AND (Total >= 100 OR NOT Tags IN ('test', 'demo')) ORDER BY StartTime DESC
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

import msgspec
from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError

MAX_CHARACTERS = 16_384
MAX_CONDITIONS = 200
MAX_VALUES = 1_000
MAX_DEPTH = 20
MAX_ORDER = 8

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in", "between", "starts", "null"]

_GRAMMAR = r"""
start: [_condition] [order]

_condition: either | _all
either: _all (_OR _all)+
_all: both | _one
both: _one (_AND _one)+
_one: inverse | "(" _condition ")" | _comparison
inverse: _NOT _one

_comparison: compare | among | between | starts | null
compare: field OP value
among: field [NOT] _IN "(" value ("," value)* ")"
between: field [NOT] _BETWEEN value _AND value
starts: field [NOT] _STARTS_WITH value
null: field _IS [NOT] _NULL

order: _ORDER _BY order_field ("," order_field)*
order_field: field [ASC | DESC]

field: NAME | QUOTED_NAME
value: TEXT | NUMBER | TRUE | FALSE

OP: "!=" | "<>" | "<=" | ">=" | "=" | "<" | ">"
_OR.2: /OR(?![\w.\-\/])/i
_AND.2: /AND(?![\w.\-\/])/i
_NOT.2: /NOT(?![\w.\-\/])/i
NOT.3: /NOT(?=\s+(IN|BETWEEN|STARTS_WITH|NULL)(?![\w.\-\/]))/i
_IN.2: /IN(?![\w.\-\/])/i
_BETWEEN.2: /BETWEEN(?![\w.\-\/])/i
_STARTS_WITH.2: /STARTS_WITH(?![\w.\-\/])/i
_IS.2: /IS(?![\w.\-\/])/i
_NULL.2: /NULL(?![\w.\-\/])/i
_ORDER.2: /ORDER(?![\w.\-\/])/i
_BY.2: /BY(?![\w.\-\/])/i
ASC.2: /ASC(?![\w.\-\/])/i
DESC.2: /DESC(?![\w.\-\/])/i
TRUE.2: /TRUE(?![\w.\-\/])/i
FALSE.2: /FALSE(?![\w.\-\/])/i
NAME: /[^\W\d][\w.\-\/]*/
QUOTED_NAME: /`[^`]+`/
TEXT: /'(?:[^']|'')*'/ | /"(?:[^"]|"")*"/
NUMBER: /[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?/

%ignore /\s+/
"""


class QueryError(ValueError):
    """A query is not valid; the text has the position, counted from 1, and the way out."""

    def __init__(self, message: str, position: int | None = None) -> None:
        at = "" if position is None else f" at position {position + 1}"
        super().__init__(f"bad query{at}: {message}")


class Name(msgspec.Struct, frozen=True):
    """A field as written."""

    text: str
    position: int


class Written(msgspec.Struct, frozen=True):
    """A value as written in the query."""

    value: str | int | float | bool
    position: int


class Comparison(msgspec.Struct, frozen=True):
    field: Name
    operator: Operator
    values: tuple[Written, ...] = ()
    is_negated: bool = False  # still false for a Flow without the field, except for "null"


class Not(msgspec.Struct, frozen=True):
    part: Condition


class Group(msgspec.Struct, frozen=True):
    joint: Literal["AND", "OR"]
    parts: tuple[Condition, ...]


Condition: TypeAlias = Comparison | Not | Group


class Order(msgspec.Struct, frozen=True):
    field: Name
    is_descending: bool


class Query(msgspec.Struct, frozen=True):
    condition: Condition | None = None
    order: tuple[Order, ...] = ()


def parse(text: str) -> Query:
    """Read a query; an empty one finds everything.

    Raises:
        QueryError: It is not valid, or larger than the bounds of this module.
    """
    if len(text) > MAX_CHARACTERS:
        raise QueryError(
            f"it has {len(text)} characters, at most {MAX_CHARACTERS} are allowed. Ask in parts"
        )
    try:
        query = _parser().parse(text)
    except UnexpectedInput as error:
        raise _explained(error, text) from None
    except VisitError as error:
        if isinstance(error.orig_exc, QueryError):
            raise error.orig_exc from None
        raise
    assert isinstance(query, Query)
    if query.condition is not None:
        _check_bounds(query.condition)
    if len(query.order) > MAX_ORDER:
        raise QueryError(
            f"ORDER BY names {len(query.order)} fields, at most {MAX_ORDER} are allowed",
            query.order[MAX_ORDER].field.position,
        )
    return query


def _explained(error: UnexpectedInput, text: str) -> QueryError:
    position = error.pos_in_stream
    is_at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    if position is None or position < 0 or is_at_end:
        return QueryError(
            "it ends too early. A condition is a field, an operator and a value, such as "
            "CustomerId = 'c-1'",
            len(text),
        )
    found = text[position : position + 20].split()[0] if text[position].strip() else text[position]
    if found[0] in "'\"`":
        return QueryError(f"{found!r} is not expected here, or its quotes do not end", position)
    return QueryError(
        f"{found!r} is not expected here. Conditions look like CustomerId = 'c-1', joined by AND, OR "
        "and NOT; texts are in single quotes",
        position,
    )


def _check_bounds(condition: Condition) -> None:
    conditions = values = 0
    level: list[Condition] = [condition]
    for depth in range(1, MAX_DEPTH + 2):
        below: list[Condition] = []
        for part in level:
            if isinstance(part, Comparison):
                conditions += 1
                values += len(part.values)
                if conditions > MAX_CONDITIONS or values > MAX_VALUES:
                    raise QueryError(
                        f"at most {MAX_CONDITIONS} conditions with {MAX_VALUES} values are allowed. "
                        "Ask in parts, or use IN",
                        part.field.position,
                    )
            elif isinstance(part, Not):
                below.append(part.part)
            else:
                below += part.parts
        if not below:
            return
        if depth > MAX_DEPTH:
            raise QueryError(
                f"conditions are nested deeper than {MAX_DEPTH} levels. Ask for less at once"
            )
        level = below


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


class _Build(Transformer[Token, Any]):
    """The tree, built while lark parses: nothing here recurses."""

    def start(self, items: list[Any]) -> Query:
        condition = order = None
        for item in items:
            if isinstance(item, tuple):
                order = item
            elif item is not None:
                condition = item
        return Query(condition, order or ())

    def either(self, items: list[Any]) -> Group:
        return Group("OR", tuple(items))

    def both(self, items: list[Any]) -> Group:
        return Group("AND", tuple(items))

    def inverse(self, items: list[Any]) -> Condition:
        (part,) = items
        if isinstance(part, Not):
            return part.part
        return Not(part)

    def compare(self, items: list[Any]) -> Comparison:
        field, operator, value = items
        if operator in ("!=", "<>"):
            return Comparison(field, "=", (value,), is_negated=True)
        return Comparison(field, operator.value, (value,))

    def among(self, items: list[Any]) -> Comparison:
        field, negation, *values = items
        return Comparison(field, "in", tuple(values), negation is not None)

    def between(self, items: list[Any]) -> Comparison:
        field, negation, *values = items
        return Comparison(field, "between", tuple(values), negation is not None)

    def starts(self, items: list[Any]) -> Comparison:
        field, negation, value = items
        return Comparison(field, "starts", (value,), negation is not None)

    def null(self, items: list[Any]) -> Comparison:
        field, negation = items
        return Comparison(field, "null", (), negation is not None)

    def order(self, items: list[Any]) -> tuple[Order, ...]:
        return tuple(items)

    def order_field(self, items: list[Any]) -> Order:
        field, direction = items
        return Order(field, direction is not None and direction.type == "DESC")

    def field(self, items: list[Any]) -> Name:
        (token,) = items
        name = token.value[1:-1] if token.type == "QUOTED_NAME" else token.value
        return Name(name, token.start_pos)

    def value(self, items: list[Any]) -> Written:
        (token,) = items
        value: str | int | float | bool
        if token.type == "TEXT":
            value = _unquoted(token.value)
        elif token.type == "NUMBER":
            digits = token.value
            if len(digits) > 400:
                raise QueryError("this number has too many digits", token.start_pos)
            is_whole = digits.lstrip("+-").isdigit()
            value = int(digits) if is_whole else float(digits)
            if not is_whole and not -float("inf") < value < float("inf"):
                raise QueryError("this number is too large", token.start_pos)
        else:
            value = token.type == "TRUE"
        return Written(value, token.start_pos)


@functools.cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", transformer=_Build(), maybe_placeholders=True)
