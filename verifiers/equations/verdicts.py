"""Judge one equation whose sides were read: right, wrong, or not certain enough to say."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple

from stepsearch.verifiers.equations.arithmetic import Code, Unit, evaluate
from stepsearch.verifiers.equations.context import (
    is_listed,
    is_time_of_day_or_date,
    says_rounding,
    takes_power_in_words,
)
from stepsearch.verifiers.equations.expressions import Expression
from stepsearch.verifiers.equations.tokens import Number, Token
from stepsearch.verifiers.equations.units import contradict, mixes_units
from stepsearch.verifiers.equations.words import is_operand

Verdict = Literal["right", "wrong", "unchecked"]

_COMPARING = {
    "more",
    "less",
    "fewer",
    "times",
    "than",
    "of",
    "percent",
    "or",
    "out",
    "off",
    "dozen",
}
_NEAR = Fraction(1, 10)
_COARSE = Fraction(1, 20)
"""Rounding to a whole number that changes more than this share of a value proves nothing."""


class Relation(NamedTuple):
    """A sign between two sides that was read, with its left side (None when unreadable)."""

    left: Expression | None
    kind: str
    is_chained: bool


def judge(
    tokens: Sequence[Token], relation: Relation, left: Expression, right: Expression
) -> tuple[Verdict, Number | None]:
    """The verdict on two sides, and the exact value of the one that is worked out.

    That is the left side, or the right one where the left one is only a number; None when it has no
    value or was not worked out.
    """
    if left.is_unknown or left.is_tail_unknown or right.is_unknown or _is_cut(tokens, right):
        return "unchecked", None
    try:
        is_first_a_result = not (left.num_operators or relation.is_chained) and right.num_operators
        exact = evaluate(right.code if is_first_a_result else left.code)
        holds = _holds(
            left,
            right,
            is_approximate=relation.kind == "approx",
            is_contradiction=contradict(tokens, left, right),
        )
    except ZeroDivisionError:
        exact, holds = None, False
    if not left.num_operators and not right.num_operators:
        verdict = _judge_restated(tokens, relation, left, right, holds)
    elif holds is None:
        verdict = "unchecked"
    elif holds:
        verdict = "right"
    else:
        verdict = "unchecked" if _is_doubtful(tokens, relation, left, right, exact) else "wrong"
    if verdict == "wrong" and _may_mean_otherwise(tokens, left, right):
        verdict = "unchecked"
    return verdict, exact


def _may_mean_otherwise(tokens: Sequence[Token], left: Expression, right: Expression) -> bool:
    """Whether the words in or behind the equation explain a mismatch."""
    return (
        takes_power_in_words(right)
        or says_rounding(tokens, left, right)
        or is_time_of_day_or_date(tokens, left, right)
    )


def _is_cut(tokens: Sequence[Token], right: Expression) -> bool:
    """Whether the right side goes on with something that is not readable."""
    if right.stop >= len(tokens) or right.stop != right.core:
        return False
    token = tokens[right.stop]
    return token.kind == "unknown" or (
        token.kind == "operator" and not _is_dash(tokens, right.stop)
    )


def _is_dash(tokens: Sequence[Token], i: int) -> bool:
    after = tokens[i + 1] if i + 1 < len(tokens) else tokens[i]
    return tokens[i].text == "-" and not tokens[i].tight and not after.tight


def _judge_restated(
    tokens: Sequence[Token],
    relation: Relation,
    left: Expression,
    right: Expression,
    holds: bool | None,
) -> Verdict:
    """`= 5 = 5.00`: numbers alone prove nothing, and two of them may have different units."""
    if holds is None:
        return "unchecked"
    if not relation.is_chained:  # "5 = 5" is no reason for anything, "26 = 21" is none for trust
        is_bare = _stands_alone(tokens, left) and not right.words and len(right.code) == 1
        return "wrong" if is_bare and len(left.code) == 1 and not holds else "unchecked"
    if holds:
        return "right"
    is_same_unit = not left.words or (len(left.words) == 1 and left.words == right.words[:1])
    is_doubtful = left.is_doubtful or left.is_tail_doubtful or right.is_doubtful
    return "wrong" if is_same_unit and not is_doubtful else "unchecked"


def _stands_alone(tokens: Sequence[Token], left: Expression) -> bool:
    """Whether the left side is a number without words before or behind it: it names nothing."""
    is_first = left.first == 0 or tokens[left.first - 1].kind == "break"
    is_alone = is_first and not is_listed(tokens, left.first)
    return is_alone and left.stop == left.core and not left.units


def _holds(
    left: Expression, right: Expression, *, is_approximate: bool, is_contradiction: bool
) -> bool | None:
    """Whether the sides agree in some reading.

    None when a value could not be worked out, or when they agree only in a way that proves nothing.
    """
    readings = [(True, False)]
    if left.units or right.units:
        readings.append((True, True))
    if _is_percent_itself(left.code, right.code) or _is_percent_itself(right.code, left.code):
        readings.append((False, False))
    found: list[bool | None] = []
    for percent, units in readings:
        a = evaluate(left.code, percent=percent, units=units)
        b = evaluate(right.code, percent=percent, units=units)
        if a is None or b is None:
            return None
        agrees = _agree(left, right, (a, b), percent, units, is_approximate)
        found.append(None if agrees and is_contradiction and not units else agrees)
    if True in found:
        return True
    return None if None in found else False


def _agree(
    left: Expression,
    right: Expression,
    values: tuple[Number, Number],
    percent: bool,
    units: bool,
    is_approximate: bool,
) -> bool | None:
    """Whether the sides agree in one reading; None when that cannot be told from a mistake."""
    a, b = values
    if a == b:
        return True
    if _is_rounded(right, a, b, percent, units, is_approximate) or _is_rounded(
        left, b, a, percent, units, is_approximate
    ):
        return None if _is_coarse(left, right, a, b) else True
    return None if is_approximate and _differ(a, b) <= _NEAR else False


def _differ(a: Number, b: Number) -> Fraction:
    """How far two unequal numbers are apart, as a share of the larger one."""
    return abs(Fraction(a - b)) / max(abs(Fraction(a)), abs(Fraction(b)))


def _is_coarse(left: Expression, right: Expression, a: Number, b: Number) -> bool:
    """Whether rounding left too little of the value to tell it from a mistake: `5 * 0.05 = 0`."""
    is_whole = 0 in (left.decimals, right.decimals)
    return not (a and b) or (is_whole and _differ(a, b) > _COARSE)


def _is_percent_itself(code: Code, other: Code) -> bool:
    """Whether `%` in `code` may mean nothing: a result in percent, or percent plus percent."""
    if "%" not in code:
        return False
    is_result = len(code) == 2 and "%" not in other
    is_factor = all(b != "%" or a == 100 for a, b in pairwise(code))  # "3 / 12 * 100% = 25"
    is_sum = not any(op in side for side in (code, other) for op in ("*", "/", "^"))
    return is_result or is_factor or (is_sum and not _mixes_percent(code))


def _is_rounded(
    side: Expression, exact: Number, value: Number, percent: bool, units: bool, is_approximate: bool
) -> bool:
    """Whether `side` is one written number of this `value` and that is `exact` rounded."""
    if side.decimals is None:
        return False
    last_place = Fraction(1, 10**side.decimals)
    if is_approximate and side.leading and not side.decimals:
        digits = str(side.leading)
        num_zeros = len(digits) - len(digits.rstrip("0"))
        if num_zeros and _differ(exact, value) > _NEAR:
            return False
        last_place *= 10**num_zeros
    code = [item if isinstance(item, str | Unit) else last_place for item in side.code]
    place = abs(Fraction(evaluate(code, percent=percent, units=units) or last_place))
    distance = abs(Fraction(exact - value)) / place
    if distance != Fraction(1, 2):
        return distance < Fraction(1, 2)
    return value * value > exact * exact or (value / place).numerator % 2 == 0


def _is_doubtful(
    tokens: Sequence[Token],
    relation: Relation,
    left: Expression,
    right: Expression,
    exact: Number | None,
) -> bool:
    """Whether a mismatch may come from reading the sentence in a way that was not meant."""
    if left.is_doubtful or left.is_tail_doubtful or right.is_doubtful:
        return True
    if right.stop < len(tokens) and tokens[right.stop].kind in ("operator", "unknown"):
        return True
    is_chained = relation.is_chained
    if not is_chained and _is_label(tokens, left):
        return True
    if _is_range(tokens, left, right):
        return True
    if relation.kind == "verb" and (right.num_operators or set(right.words[:2]) & _COMPARING):
        return True
    if right.has_share or (right.words == ("and",) and is_operand(tokens, right.stop)):
        return True  # "= 1/3 of $150", "= 5 and 2/3"
    if exact is None:
        return False
    if right.num_operators and right.leading == exact and (left.num_operators or is_chained):
        return True  # "2 + 3 = 5 + 4 = 9" works on from its first result
    return (
        any(map(_mixes_percent, (left.code, right.code)))
        or _is_percent_meant(left, right)
        or _is_truncated(left, right, exact)
        or _is_truncated(right, left, evaluate(right.code))
        or mixes_units(left, right, exact)
    )


def _is_percent_meant(left: Expression, right: Expression) -> bool:
    """Whether the sides agree when `%` means nothing."""
    if "%" not in left.code:
        return False
    value = evaluate(left.code, percent=False)
    return value is not None and (
        value == evaluate(right.code) or _is_truncated(left, right, value)
    )


def _is_truncated(quotient: Expression, result: Expression, exact: Number | None) -> bool:
    """Whether digits of a quotient were cut instead of rounded, as in `20 / 3 = 6.66`."""
    if exact is None or result.decimals is None or "/" not in quotient.code:
        return False
    scale = 10**result.decimals
    return evaluate(result.code) == Fraction(int(exact * scale), scale)


def _is_label(tokens: Sequence[Token], left: Expression) -> bool:
    """Whether the left side may name what the right side works out: `1/3 = 20`, `Day 2 = 3 * 4`."""
    if not left.num_operators:
        return not _stands_alone(tokens, left)
    if left.core - left.first != 3:
        return False
    top, slash, bottom = tokens[left.first : left.core]
    return slash.text == "/" and slash.tight and top.value < bottom.value <= 10


def _is_range(tokens: Sequence[Token], left: Expression, right: Expression) -> bool:
    """Whether the left side is the first and last of as many as the right side says: `3-5`."""
    if left.core - left.first != 3:
        return False
    low, dash, high = tokens[left.first : left.core]
    distance = high.value - low.value
    return dash.text == "-" and dash.tight and evaluate(right.code) in (distance, distance + 1)


def _mixes_percent(code: Code) -> bool:
    """`$100 + 5%` may mean 105."""
    num_percent = sum(item == "%" for item in code)
    if not num_percent or not ("+" in code or "-" in code):
        return False
    return num_percent != sum(not isinstance(item, str | Unit) for item in code)
