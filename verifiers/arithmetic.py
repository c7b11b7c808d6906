"""Evaluate arithmetic exactly: postfix code of numbers, operators, percent and units of measure."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from stepsearch.verifiers.equation_tokens import Number

MAX_BITS = 2048
"""No numerator or denominator may grow longer: such an expression has no value."""


class Unit(NamedTuple):
    """A unit of measure that stands after a number: its size in the base unit of its family."""

    size: Number


Code = Sequence[Number | str | Unit]
"""Postfix: numbers, operators, `neg`, `%` and units, each applied to what stands before it."""

_FAMILIES: tuple[dict[str, Number], ...] = (
    {"cent": Fraction(1, 100), "penny": Fraction(1, 100), "pennies": Fraction(1, 100)},
    {"¢": Fraction(1, 100), "dollar": 1, "nickel": Fraction(1, 20), "dime": Fraction(1, 10)},
    {"second": Fraction(1, 60), "sec": Fraction(1, 60), "minute": 1, "min": 1, "hour": 60},
    {"hr": 60, "day": 1440, "week": 10080},
    {"month": 1, "year": 12, "decade": 120},
    {"inch": 1, "inches": 1, "foot": 12, "feet": 12, "ft": 12, "yard": 36, "mile": 63360},
    {"mm": Fraction(1, 1000), "cm": Fraction(1, 100), "meter": 1, "metre": 1, "km": 1000},
    {"centimeter": Fraction(1, 100), "millimeter": Fraction(1, 1000), "kilometer": 1000},
    {"ounce": 1, "oz": 1, "pound": 16, "lb": 16, "ton": 32000},
    {"mg": Fraction(1, 1000), "gram": 1, "kg": 1000, "kilogram": 1000},
    {"ml": Fraction(1, 1000), "milliliter": Fraction(1, 1000), "liter": 1, "litre": 1},
    {"cup": 8, "pint": 16, "quart": 32, "gallon": 128, "tablespoon": Fraction(1, 2)},
    {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9},
)
UNITS: dict[str, Number] = {}
for _family in _FAMILIES:
    UNITS |= _family | {name + "s": size for name, size in _family.items()}


def evaluate(code: Code, *, percent: bool = True, units: bool = False) -> Number | None:
    """The exact value, None when it has none that is small enough or rational.

    Args:
        code: what to evaluate.
        percent: take `20%` as 20/100; else as 20.
        units: multiply a number by the size of its unit.

    Raises:
        ZeroDivisionError: something is divided by zero.
    """
    stack: list[Number] = []
    for item in code:
        if not isinstance(item, str | Unit):
            stack.append(item)
            continue
        if isinstance(item, Unit):
            result: Number | None = stack[-1] * item.size if units else stack[-1]
        elif item == "%":
            result = Fraction(stack[-1], 100) if percent else stack[-1]
        elif item == "neg":
            result = -stack[-1]
        else:
            right = stack.pop()
            result = _apply(item, stack[-1], right)
        if result is None or _is_large(result):
            return None
        stack[-1] = result
    return stack[0]


def _apply(operator: str, a: Number, b: Number) -> Number | None:
    if operator in ("+", "mixed"):
        return a + b
    if operator == "-":
        return a - b
    if operator == "*":
        return a * b
    if operator == "/":
        return Fraction(a) / b
    bits = max(a.numerator.bit_length(), a.denominator.bit_length())
    if b.denominator != 1 or abs(Fraction(b)) * bits > MAX_BITS:
        return None
    power: Number = Fraction(a) ** b.numerator
    return power


def _is_large(value: Number) -> bool:
    if isinstance(value, int):
        return value.bit_length() > MAX_BITS
    return max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS
