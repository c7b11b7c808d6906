"""Evaluate arithmetic exactly: postfix code of numbers, operators, percent and units of measure."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from stepsearch.verifiers.equations.tokens import Number

MAX_BITS = 2048
"""No numerator or denominator may grow longer: such an expression has no value."""


class Unit(NamedTuple):
    """A unit of measure that stands after a number: its size in the base unit of its family."""

    size: Number


Code = Sequence[Number | str | Unit]
"""Postfix: numbers, operators, `neg`, `%` and units, each applied to what stands before it."""


class Scale(NamedTuple):
    """What a unit measures (`length`), in which system (`inch`), and its size in that system."""

    quantity: str
    system: str
    size: Fraction


_SYSTEMS = {
    ("money", "dollar"): "cent 1/100 penny 1/100 pennies 1/100 nickel 1/20 dime 1/10 quarter 1/4 "
    "dollar 1",
    ("time", "minute"): "second 1/60 sec 1/60 minute 1 min 1 hour 60 hr 60 day 1440 week 10080",
    ("time", "month"): "month 1 year 12 decade 120",
    ("length", "inch"): "inch 1 inches 1 foot 12 feet 12 ft 12 yard 36 mile 63360",
    ("length", "meter"): "mm 1/1000 cm 1/100 meter 1 metre 1 km 1000 millimeter 1/1000 "
    "centimeter 1/100 kilometer 1000",
    ("mass", "ounce"): "ounce 1 oz 1 pound 16 lb 16 ton 32000",
    ("mass", "gram"): "mg 1/1000 gram 1 kg 1000 kilogram 1000",
    ("volume", "liter"): "ml 1/1000 milliliter 1/1000 liter 1 litre 1",
    ("volume", "ounce"): "teaspoon 1/6 tablespoon 1/2 cup 8 pint 16 quart 32 gallon 128",
    ("data", "megabyte"): "mb 1 megabyte 1 gb 1024 gigabyte 1024 tb 1048576 terabyte 1048576",
    ("count", "one"): "dozen 12 hundred 100 thousand 1000 million 1000000 billion 1000000000",
}


def _read_scales() -> dict[str, Scale]:
    scales: dict[str, Scale] = {}
    for (quantity, system), listed in _SYSTEMS.items():
        names = listed.split()
        for name, size in zip(names[::2], names[1::2], strict=True):
            scale = Scale(quantity, system, Fraction(size))
            scales |= {name: scale, name + "s": scale}
    return scales


SCALES = _read_scales()
"""The scale of each unit of measure, by its name in lower case, singular and plural."""


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
