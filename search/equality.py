r"""Equality of mathematical answers: exact and cheap where it can be, math-verify where it must be.

Lists and sets (`1,2`, `\{1,2\}`) are compared without order, tuples and intervals with it. Numbers
are compared exactly; only against a fraction that has no finite decimal form (`1/3`) or a constant
(`\pi`) does a decimal match within a relative tolerance of 1e-6.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

from stepsearch.search.canonical import (
    ASSIGNED,
    Number,
    canonical,
    is_bracketed,
    is_prose,
    normalize,
    parse_number,
    split_list,
)
from stepsearch.search.equality_pool import WorkerPool

_TOLERANCE = Fraction(1, 10**6)
_MAX_MEMO = 1 << 16
_MAX_LENGTH = 1000
_MAX_DEPTH = 30
_MAX_POWER_DIGITS = 20_000
_MAX_FACTORIAL = 5_000
_MAX_UNORDERED = 8
_RELATION = re.compile(r"[<>=]|\\(?:le|ge|ne|in)(?![A-Za-z])")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_SET_OR_MATRIX = re.compile(
    r"[<>]|\\(?:le|ge|ne|in|cup|cap|setminus|mathbb|begin|emptyset|varnothing)(?![A-Za-z])"
)
_BASED = re.compile(r"(\d+)_(?:\{(\d+)\}|(\d+))")
_PLAIN_WORD = re.compile(r"(?<![\\A-Za-z])(?:and|or|if)(?![A-Za-z])")
_POWER = re.compile(r"(\d+)(?:\.\d+)?\^(?:\{([-+]?)(\d+)\}|(\d+))(?![\d^])")
_FACTORIAL = re.compile(r"(\d+)!")


class _Shape(NamedTuple):
    """A normal form taken apart: its brackets ("" for a bare list, None for one value)."""

    brackets: str | None
    parts: list[str]


def _shape(text: str) -> _Shape:
    if is_bracketed(text):
        width = 2 if text.startswith("\\") else 1
        end = 2 if text.endswith("\\}") else 1
        return _Shape(text[width - 1] + text[-1], split_list(text[width:-end]))
    parts = split_list(text)
    return _Shape("" if len(parts) > 1 else None, parts)


def is_too_large(text: str) -> bool:
    """Whether evaluating a normal form could exhaust time or memory: the guard before a process.

    True for texts of more than 1000 characters or 30 nested brackets, powers of more than 20,000
    digits (towers included) and factorials above 5000.
    """
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    if len(text) > _MAX_LENGTH or deepest > _MAX_DEPTH:
        return True
    previous = ""
    while previous != text:
        previous = text
        for match in _POWER.finditer(text):
            exponent = int(match[3] or match[4])
            if exponent * math.log10(max(int(match[1]), 2)) > _MAX_POWER_DIGITS:
                return True
        text = _POWER.sub(_capped_power, text, count=1)
        text = re.sub(r"\((\d+)\)", r"\1", text)
    return any(int(m[1]) > _MAX_FACTORIAL for m in _FACTORIAL.finditer(text))


def _capped_power(match: re.Match[str]) -> str:
    """The value of a power, or 10^7 in its place: as an exponent that is too large already."""
    digits = int(match[3] or match[4]) * math.log10(max(int(match[1]), 2))
    value = 10**7 if digits > 7 else int(match[1]) ** int(match[3] or match[4])
    return str(value)


def _equal_numbers(a: Number, b: Number) -> bool:
    if a.value == b.value:
        return True
    if not (a.decimal or b.decimal) or (_is_finite_decimal(a) and _is_finite_decimal(b)):
        return False
    return abs(a.value - b.value) <= _TOLERANCE * max(abs(a.value), abs(b.value))


def _is_finite_decimal(number: Number) -> bool:
    denominator = number.value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _equal_based(a: str, b: str) -> bool | None:
    """Compare numerals of which one at least has its base as a subscript, which is optional."""
    x, y = _BASED.fullmatch(a), _BASED.fullmatch(b)
    if x is None or y is None:
        return (x[1] if x else a) == (y[1] if y else b)
    try:
        return int(x[1], int(x[2] or x[3])) == int(y[1], int(y[2] or y[3]))
    except ValueError:
        return None


class MathEquality:
    """Whether two mathematical answers are equal. Symmetric, thread-safe, remembers decisions.

    Args:
        num_workers: processes for what cannot be decided cheaply; started when first needed.
        timeout: seconds of computation after which a comparison is given up as undecided.
    """

    def __init__(self, num_workers: int = 1, timeout: float = 5.0) -> None:
        self._pool = WorkerPool(num_workers, timeout)
        self._memo: dict[tuple[str, str], bool] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        # In another process decisions are made again, by processes of its own.
        return {k: v for k, v in vars(self).items() if k not in ("_memo", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _memo={}, _lock=Lock())

    def __call__(self, a: str, b: str) -> bool | None:
        """True, False, or None when it could not be decided; None is never remembered.

        Raises:
            ConfigurationError: math-verify is needed and cannot be started.
        """
        key_a, key_b = canonical(a), canonical(b)
        if key_a == key_b:
            return True
        if not key_a or not key_b:
            return False
        return self._compare(normalize(a), normalize(b))

    def close(self) -> None:
        """End the processes; they start anew when they are needed again."""
        self._pool.close()

    def _compare(self, a: str, b: str) -> bool | None:
        x, y = _shape(a), _shape(b)
        if x.brackets is None and y.brackets is None:
            return self._compare_values(a, b)
        if x.brackets is None or y.brackets is None:
            return self._compare_value_with_list(*((a, y, b) if x.brackets is None else (b, x, a)))
        if len(x.parts) != len(y.parts):
            return False
        kinds = {x.brackets, y.brackets}
        if kinds <= {"", "{}"} and not _is_labelled(x.parts) ^ _is_labelled(y.parts):
            return self._compare_unordered(x.parts, y.parts)
        if len(kinds - {""}) > 1:
            return False
        return _all(self._compare(p, q) for p, q in zip(x.parts, y.parts, strict=True))

    def _compare_value_with_list(self, value: str, shape: _Shape, text: str) -> bool | None:
        label = _label(value)
        if label:
            return self._compare(value[len(label) :], text)
        if len(shape.parts) == 1:
            return self._compare(value, shape.parts[0])
        return self._ask(value, text) if _SET_OR_MATRIX.search(value) else False

    def _compare_values(self, a: str, b: str) -> bool | None:
        if canonical(a) == canonical(b):
            return True
        x, y = parse_number(a), parse_number(b)
        if x is not None and y is not None:
            return _equal_numbers(x, y)
        if _BASED.fullmatch(a) or _BASED.fullmatch(b):
            return _equal_based(a, b)
        label_a, label_b = _label(a), _label(b)
        if label_a == label_b != "":
            return self._compare(a[len(label_a) :], b[len(label_b) :])
        if label_a and not _RELATION.search(b):
            return self._compare(a[len(label_a) :], b)
        if label_b and not _RELATION.search(a):
            return self._compare(a, b[len(label_b) :])
        return False if is_prose(a) or is_prose(b) else self._ask(a, b)

    def _compare_unordered(self, a: Sequence[str], b: Sequence[str]) -> bool | None:
        rest = list(b)
        left = []
        for part in a:
            twin = next((p for p in rest if canonical(p) == canonical(part)), None)
            if twin is None:
                left.append(part)
            else:
                rest.remove(twin)
        if len(left) > _MAX_UNORDERED:
            return None
        table = [[self._compare(part, other) for other in rest] for part in left]
        if _can_pair([[cell is True for cell in row] for row in table]):
            return True
        return None if _can_pair([[cell is not False for cell in row] for row in table]) else False

    def _ask(self, a: str, b: str) -> bool | None:
        """Ask a process; in one order, so that equality is symmetric whatever it does."""
        key = (a, b) if a <= b else (b, a)
        known = self._memo.get(key)
        if known is not None:
            return known
        if any(is_too_large(text) or _PLAIN_WORD.search(text) for text in key):
            return None
        equal = self._pool.compare(*key)
        if equal is not None:
            with self._lock:
                while len(self._memo) >= _MAX_MEMO:
                    del self._memo[next(iter(self._memo))]
                self._memo[key] = equal
        return equal


def _label(text: str) -> str:
    r"""The `x=` or `x \in` that a value begins with, or nothing."""
    match = _MEMBER.match(text) or ASSIGNED.match(text)
    return match.group() if match else ""


def _is_labelled(parts: Sequence[str]) -> bool:
    """Whether every part names another unknown, as in `x=1,y=2`, which gives a list an order."""
    labels = [_label(part) for part in parts]
    return "" not in labels and len(set(labels)) == len(labels)


def _can_pair(fits: Sequence[Sequence[bool]]) -> bool:
    """Whether every row can have a column of its own that fits (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, is_fit in enumerate(fits[row]):
            if is_fit and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(fits)))


def _all(results: Iterable[bool | None]) -> bool | None:
    """False as soon as one is, None when one is undecided, else True."""
    is_certain = True
    for result in results:
        if result is False:
            return False
        is_certain &= result is not None
    return True if is_certain else None


@cache
def shared_equality() -> MathEquality:
    """The equality that tasks share by default: one process, 5 seconds."""
    return MathEquality()
