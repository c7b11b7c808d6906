"""Find the arithmetic equations in a text and check them with exact fractions.

Only what can be read with certainty is judged. An equation with an unknown in it, or whose mismatch
could come from another reading of the sentence, is `unchecked`: a false alarm costs a search more
than a miss. The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple

from stepsearch.verifiers.equation_tokens import Number, Token, read_tokens
from stepsearch.verifiers.expressions import (
    UNITS,
    Code,
    Expression,
    Unit,
    evaluate,
    is_operand,
    parse_expression,
    word_set,
)

Verdict = Literal["right", "wrong", "unchecked"]


class Equation(NamedTuple):
    """One equation of two neighbouring sides.

    Attributes:
        text: both sides as they are written, without the words around them.
        verdict: `right`, `wrong`, or `unchecked` when it cannot be read with certainty.
        exact: the exact value of the left side, or of the right one where the left one is only a
            number; None when it has none or was not worked out.
    """

    text: str
    verdict: Verdict
    exact: Number | None = None


_MARK = re.compile(r"<<([^<>\n]*)>>")
_SIGNS = re.compile(
    r"[=≈≅≃]|\\(?:approx|simeq)|~=|\b(?:is|are|equals?|equal to|makes|gives|leaves)\b"
)
_FILLERS = {"a", "an", "total", "of", "exactly", "just", "only"}
_ABOUT = {"about", "approximately", "approx", "roughly", "around", "nearly", "almost"}
_RELATING = word_set(
    """than off twice thrice double triple half per every times plus minus over hour day week
    month year step part page"""
)
_SHARES = word_set(
    """half third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh
    eighth eighths ninth tenth tenths percent out product difference average mean"""
)
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


def check_equations(text: str) -> list[Equation]:
    r"""Check every equation in a text, each pair of neighbouring sides by itself.

    Read are + - * / ^ with their other signs (x, ÷, \times, \frac ...), brackets, units and words
    between the numbers, money, cents, thousands separators, fractions, mixed numbers and percent;
    "is", "equals" and the like only between a bare expression and a number. The result may stand
    first where no word says that it names something (`20 = 4 * 5`). The text in a calculator mark
    `<<3*4=12>>` is checked by itself.

    A result written with k decimals is right when it is the exact value rounded to k decimals, half
    up or half to even; a quotient whose further digits were cut is unchecked. After "≈" or "about"
    trailing zeros may be rounded too, and only what is more than a tenth off is wrong. Percent is a
    hundredth, or nothing where a side is one percentage or takes 100% (`5 / 20 * 100 = 25%`); units
    of one family are converted where the plain numbers do not agree (`$1 + 50 cents = $1.50`).
    Dividing by zero is wrong. What grows beyond a few hundred digits, or is irrational, is
    unchecked.
    """
    marks = _MARK.findall(text)
    found = list(_scan(_MARK.sub("", text) if marks else text))
    for mark in marks:
        found.extend(_scan(mark))
    return found


class _Relation(NamedTuple):
    """A sign between two sides that was read, with its left side (None when unreadable)."""

    left: Expression | None
    kind: str
    is_chained: bool


def _scan(text: str) -> Iterator[Equation]:
    if not _SIGNS.search(text):
        return
    tokens = read_tokens(text)
    left: Expression | None = None
    relation: _Relation | None = None
    words: tuple[str, ...] = ()
    is_dangling = is_chained = False
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if is_operand(tokens, i) and not (token.text == "+" and relation is None):
            side = parse_expression(tokens, i)
            if is_dangling or (left is not None and left.core == i and token.kind == "number"):
                side = side._replace(is_unknown=True)
            elif relation is None and _is_related(tokens, i, words, left, is_chained):
                side = side._replace(is_doubtful=True)
            if relation is not None and relation.left is not None:
                yield _check(text, tokens, relation, relation.left, side)
            is_chained = relation is not None
            left, relation, words, is_dangling = side, None, side.words, False
            i = side.stop
            continue
        relation = _relate(tokens, i, left, relation, is_chained)
        is_word = token.kind == "word"
        is_dangling = token.kind in ("operator", "unknown") or (
            is_dangling and (is_word or tokens[i - 1].kind == "operator")
        )
        words = (*words[-1:], token.text.lower()) if is_word else ()
        left = None
        i += 1


def _relate(
    tokens: Sequence[Token],
    i: int,
    left: Expression | None,
    relation: _Relation | None,
    is_chained: bool,
) -> _Relation | None:
    """The relation after token `i`, which begins no operand."""
    token = tokens[i]
    word = token.text.lower()
    if token.kind in ("equal", "approx"):
        return _Relation(left, token.kind, is_chained)
    if token.kind == "verb" and left is not None and left.num_operators and left.stop == left.core:
        return _Relation(left, token.kind, is_chained)
    if token.kind != "word" or relation is None:
        return None
    if word in _ABOUT:
        return relation._replace(kind="approx")
    return relation if word in _FILLERS else None


def _is_related(
    tokens: Sequence[Token],
    i: int,
    words: tuple[str, ...],
    left: Expression | None,
    is_chained: bool,
) -> bool:
    """Whether the words before token `i` may change what the expression there stands for."""
    token = tokens[i]
    if token.text == "-" and words:
        return True
    if token.kind == "number" and len(token.text) == 3 and i > 1 and tokens[i - 1].text == ",":
        return tokens[i - 2].kind == "number"  # "14, 400"
    if not words:
        return left is not None
    if words[-1] in _RELATING or (words[-1] == "of" and words[-2:-1] and words[-2] in _SHARES):
        return True
    if left is None:
        return False
    if left.num_operators and not is_chained and not left.is_tail_doubtful:
        return True  # "he adds 20 + 10 to the 29 + 24 = 83"
    is_fraction = i + 1 < len(tokens) and tokens[i + 1].text == "/"
    return (
        (words == ("of",))
        or (words == ("and",) and is_fraction)
        or (len(words) < 3 and words[-1] in ("for", "in", "at"))
    )


def _check(
    text: str, tokens: Sequence[Token], relation: _Relation, left: Expression, right: Expression
) -> Equation:
    if not right.num_operators and tokens[right.first].text.endswith(("..", "…")):
        relation = relation._replace(kind="approx")  # "66.666..."
    sign = " ≈ " if relation.kind == "approx" else " = "
    written = _quote(text, tokens, left) + sign + _quote(text, tokens, right)
    if left.is_unknown or left.is_tail_unknown or right.is_unknown or _is_cut(tokens, right):
        return Equation(written, "unchecked")
    try:
        is_first_a_result = not (left.num_operators or relation.is_chained) and right.num_operators
        exact = evaluate(right.code if is_first_a_result else left.code)
        holds = _holds(left, right, is_approximate=relation.kind == "approx")
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
    return Equation(written, verdict, exact)


def _quote(text: str, tokens: Sequence[Token], side: Expression) -> str:
    start, end = tokens[side.first].start, tokens[side.core - 1].end
    if start and text[start - 1] in "$£€":
        start -= 1
    return " ".join(text[start:end].split())


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
    relation: _Relation,
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
    return is_first and left.stop == left.core and not left.units


def _holds(left: Expression, right: Expression, *, is_approximate: bool) -> bool | None:
    """Whether the sides agree in some reading; None when a value could not be worked out."""
    readings = [(True, False)]
    if left.units or right.units:
        readings.append((True, True))
    if _is_percent_itself(left.code, right.code) or _is_percent_itself(right.code, left.code):
        readings.append((False, False))
    for percent, units in readings:
        a = evaluate(left.code, percent=percent, units=units)
        b = evaluate(right.code, percent=percent, units=units)
        if a is None or b is None:
            return None
        if a == b or _is_rounded(right, a, b, percent, units, is_approximate):
            return True
        if _is_rounded(left, b, a, percent, units, is_approximate):
            return True
        if is_approximate and abs(Fraction(a - b)) <= _NEAR * max(
            abs(Fraction(a)), abs(Fraction(b))
        ):
            return None
    return False


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
        last_place *= 10 ** (len(digits) - len(digits.rstrip("0")))
    code = [item if isinstance(item, str | Unit) else last_place for item in side.code]
    place = abs(Fraction(evaluate(code, percent=percent, units=units) or last_place))
    distance = abs(Fraction(exact - value)) / place
    if distance != Fraction(1, 2):
        return distance < Fraction(1, 2)
    return value * value > exact * exact or (value / place).numerator % 2 == 0


def _is_doubtful(
    tokens: Sequence[Token],
    relation: _Relation,
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
        or _mixes_units(left, right, exact)
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


def _mixes_units(left: Expression, right: Expression, exact: Number) -> bool:
    """Whether converting a unit, said or not, could explain the mismatch."""
    sizes = {UNITS[name] for name in left.units | right.units}
    if len(sizes) < 2:
        return False
    if any(op in side.code for side in (left, right) for op in "+-"):
        return True
    value = evaluate(right.code)
    return bool(value) and any(exact * a == value * b for a in sizes for b in sizes)  # type: ignore[operator]
