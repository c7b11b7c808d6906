"""Values of users and other libraries as what JSON knows, so that nothing odd can lose a result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

_DEEPEST = 50
_MOST_BITS = 13_000
"""Of an integer that Python writes and reads as decimal."""


def plain(value: Any, depth: int = 0) -> Any:
    """The value as None, text, numbers, lists and mappings with text as keys.

    Numbers of other libraries become Python's. Whatever else JSON does not know becomes its text:
    objects, NaN and infinity, integers of thousands of digits, and what is nested too deeply.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        number = int(value)
        return number if number.bit_length() <= _MOST_BITS else hex(number)
    if isinstance(value, Real) and _is_finite(value):
        return float(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {_text(key): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return [plain(item, depth + 1) for item in value]
    return _text(value)


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # the object's own code
        return f"<{type(value).__qualname__}>"
