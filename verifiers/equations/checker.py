"""Find the arithmetic equations in a text and check them with exact fractions.

Only what can be read with certainty is judged. An equation with an unknown in it, or whose mismatch
could come from another reading of the sentence, is `unchecked`: a false alarm costs a search more
than a miss. The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stepsearch.verifiers.equations.context import is_denied, with_minus
from stepsearch.verifiers.equations.expressions import Expression, parse_expression
from stepsearch.verifiers.equations.tokens import Number, Token, read_tokens
from stepsearch.verifiers.equations.verdicts import Relation, Verdict, judge
from stepsearch.verifiers.equations.words import is_operand, word_set


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
_NAMES = (("a",), ("an",), ("total",))
"""Fillers that may name something."""
_ABOUT = {"about", "approximately", "approx", "roughly", "around", "nearly", "almost"}
_RELATING = word_set(
    """than off twice thrice double triple half per every times plus minus over hour day week
    month year step part page room chapter route highway not sqrt root log ln sin cos tan"""
)
_REFUSALS = {("wrong", "that"), ("incorrect", "that"), ("false", "that"), ("instead", "of")}
_SHARES = word_set(
    """half third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh
    eighth eighths ninth tenth tenths percent out product difference average mean root logarithm"""
)


def check_equations(text: str) -> list[Equation]:
    r"""Check every equation in a text, each pair of neighbouring sides by itself.

    Read are + - * / ^ with their other signs (x, ÷, \times, \frac ...), brackets, units and words
    between the numbers, money, cents, thousands separators, fractions, mixed numbers and percent;
    "is", "equals" and the like only between a bare expression and a number. The result may stand
    first where no word says that it names something (`20 = 4 * 5`). The text in a calculator mark
    `<<3*4=12>>` is checked by itself.

    A result written with k decimals is right when it is the exact value rounded to k decimals, half
    up or half to even; a quotient whose further digits were cut is unchecked, and so is a whole
    number that is more than a twentieth off, or zero. After "≈" or "about" trailing zeros may be
    rounded too, and only what is more than a tenth off is wrong. Percent is a hundredth, or nothing
    where a side is one percentage or takes 100% (`5 / 20 * 100 = 25%`); units of one family are
    converted where the plain numbers do not agree (`$1 + 50 cents = $1.50`), and where a result in
    another unit agrees only without converting it proves nothing (`50 cents * 2 = $100`). A minus
    that may be the mark of a list is either. Unchecked are the arguments of a function (`sqrt(9)`),
    powers in words, times of day, and a mismatch that is denied or said to be rounded.
    Dividing by zero is wrong. What grows beyond a few hundred digits, or is irrational, is
    unchecked.
    """
    marks = _MARK.findall(text)
    found = list(_scan(_MARK.sub("", text) if marks else text))
    for mark in marks:
        found.extend(_scan(mark))
    return found


def _scan(text: str) -> Iterator[Equation]:
    if not _SIGNS.search(text):
        return
    tokens = read_tokens(text)
    left: Expression | None = None
    relation: Relation | None = None
    words: tuple[str, ...] = ()
    is_dangling = is_chained = False
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if is_operand(tokens, i) and not (token.text == "+" and relation is None):
            side = parse_expression(tokens, i)
            if is_dangling or _is_named(token, relation, words) or _is_hidden(tokens, i, left):
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
    relation: Relation | None,
    is_chained: bool,
) -> Relation | None:
    """The relation after token `i`, which begins no operand."""
    token = tokens[i]
    word = token.text.lower()
    if token.kind in ("equal", "approx"):
        return Relation(left, token.kind, is_chained)
    if token.kind == "verb" and left is not None and left.num_operators and left.stop == left.core:
        return Relation(left, token.kind, is_chained)
    if token.kind != "word" or relation is None:
        return None
    if word in _ABOUT:
        return relation._replace(kind="approx")
    return relation if word in _FILLERS else None


def _is_named(token: Token, relation: Relation | None, words: tuple[str, ...]) -> bool:
    """Whether a sign goes on from what a word names, as in "= total - 30"; not "= about -2"."""
    return relation is not None and words[-1:] in _NAMES and token.text in "+-"


def _is_hidden(tokens: Sequence[Token], i: int, left: Expression | None) -> bool:
    """Whether what begins at token `i` is only a part of something that was not read."""
    token = tokens[i]
    if token.kind == "number":
        return left is not None and left.core == i  # "1 234"
    if token.kind != "open":
        return False
    if left is not None and left.stop == i and not left.is_tail_doubtful:
        return True  # the remark of "10 apples (5 red) + 5"
    return i > 0 and token.tight and tokens[i - 1].kind == "word"  # "sqrt(9 + 16)"


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
    if words[-1] in _RELATING or words[-2:] in _REFUSALS:
        return True
    if words[-1] == "of" and words[-2:-1] and words[-2] in _SHARES:
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
    text: str, tokens: Sequence[Token], relation: Relation, left: Expression, right: Expression
) -> Equation:
    if not right.num_operators and tokens[right.first].text.endswith(("..", "…")):
        relation = relation._replace(kind="approx")  # "66.666..."
    written = _write(text, tokens, relation, left, right)
    if is_denied(tokens, right):
        return Equation(written, "unchecked")
    verdict, exact = judge(tokens, relation, left, right)
    negative = with_minus(tokens, left) if verdict == "wrong" else None
    if negative is not None:
        other = judge(tokens, relation, negative, right)
        if other[0] != "wrong":
            verdict, exact = other
            written = _write(text, tokens, relation, negative, right)
    return Equation(written, verdict, exact)


def _write(
    text: str, tokens: Sequence[Token], relation: Relation, left: Expression, right: Expression
) -> str:
    sign = " ≈ " if relation.kind == "approx" else " = "
    return _quote(text, tokens, left) + sign + _quote(text, tokens, right)


def _quote(text: str, tokens: Sequence[Token], side: Expression) -> str:
    start, end = tokens[side.first].start, tokens[side.core - 1].end
    if start and text[start - 1] in "$£€":
        start -= 1
    return " ".join(text[start:end].split())
