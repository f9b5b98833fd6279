"""Whose a ``KeyboardInterrupt`` is: that of a person, or of code that raises one like any error.

Asyncio lets either end the loop, and with it every session of the process.
"""

from __future__ import annotations

import dis
import functools
import signal
from types import CodeType
from typing import Any

_RAISE = dis.opmap["RAISE_VARARGS"]


def is_from_keyboard(error: BaseException) -> bool:
    """Whether somebody wants the process to end; if in doubt, yes."""
    if not isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return False
    innermost, codes = error.__traceback__, {error.__traceback__.tb_frame.f_code}
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
        codes.add(innermost.tb_frame.f_code)
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        return _code_of(handler) in codes
    # Python's own handler raises it wherever the program just is, which is at no raise statement.
    return innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != _RAISE


def _code_of(handler: Any) -> CodeType | None:
    """What a handler runs; asyncio's own raises at the second Ctrl-C."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None
