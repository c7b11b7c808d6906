"""What in and around an equation may turn its meaning: denial, rounding, dates, list marks."""

from __future__ import annotations

from collections.abc import Sequence

from stepsearch.verifiers.equations.expressions import Expression
from stepsearch.verifiers.equations.tokens import Token
from stepsearch.verifiers.equations.words import POWERS

_DENIALS = {"wrong", "incorrect", "false", "untrue", "mistaken"}
_ASSENTS = {"right", "correct", "true", "possible"}
_COPULAS = {"is", "was", "be", "are", "not"}
_ROUNDING = {"rounded", "rounding"}
_DIRECTIONS = {"up", "down", "off", "to"}
_DAY_TIMES = {"am", "pm", "noon", "midnight", "o'clock", "o\u2019clock"}
_CALENDAR_UNITS = {"day", "days", "week", "weeks", "month", "months"}
_REACH = 5
"""How many tokens after an equation may still speak about it."""


def is_denied(tokens: Sequence[Token], right: Expression) -> bool:
    """Whether the words behind an equation say that it does not hold: `"3 + 4 = 8" is wrong`."""
    before = ""
    for token in tokens[right.core : right.core + _REACH]:
        word = token.text.lower()
        if token.kind in ("equal", "approx", "number") or word in ("\n", ".", ";"):
            return False
        if word in _DENIALS and (before in _COPULAS or before in ("(", "[")):
            return True
        if (word in _ASSENTS and before == "not") or word in ("isn't", "isn\u2019t"):
            return True
        before = word
    return False


def says_rounding(tokens: Sequence[Token], left: Expression, right: Expression) -> bool:
    """Whether a result is said to be rounded: `17 / 5 = 4 (rounded up)`, `which rounds to 3`."""
    words = [token.text.lower() for token in tokens[left.first : right.stop + _REACH]]
    return any(
        word in _ROUNDING or (word in ("round", "rounds") and after in _DIRECTIONS)
        for word, after in zip(words, [*words[1:], ""], strict=True)
    )


def is_time_of_day_or_date(tokens: Sequence[Token], left: Expression, right: Expression) -> bool:
    """Whether it counts on a clock or a calendar: `9 am + 5 hours = 2 pm`, `12/25 + 7 days = 1/1`.

    Those are taken modulo something, which the numbers do not show.
    """
    is_clock = any(
        token.text.lower() in _DAY_TIMES and before.kind == "number"
        for before, token in zip(
            tokens[left.first : right.stop], tokens[left.first + 1 : right.stop + 1], strict=False
        )
    )
    is_calendar = not _CALENDAR_UNITS.isdisjoint(left.units)
    return is_clock or (is_calendar and _begins_as_date(tokens, left.first, right.first))


def _begins_as_date(tokens: Sequence[Token], *starts: int) -> bool:
    return all(i + 1 < len(tokens) and tokens[i + 1].text == "/" for i in starts)


def takes_power_in_words(right: Expression) -> bool:
    """Whether the result goes on as in `= 5 squared`."""
    return bool(right.words) and right.words[0] in POWERS


def is_listed(tokens: Sequence[Token], first: int) -> bool:
    """Whether the number at `first` is the last of several: the 6 of `1, 2, 3, 6 = 4`."""
    return first > 1 and tokens[first - 1].text == "," and tokens[first - 2].kind == "number"


def with_minus(tokens: Sequence[Token], left: Expression) -> Expression | None:
    """The side with the list mark `- ` before it taken as a minus sign, None without such a mark.

    It is unknown where the sign would not go to the first number alone.
    """
    mark = tokens[left.first - 1] if left.first else None
    if mark is None or mark.kind != "break" or mark.text != "-":
        return None
    if left.leading is None or "^" in left.code or "mixed" in left.code:
        return left._replace(is_unknown=True)
    code = (*left.code[:1], "neg", *left.code[1:])
    return left._replace(code=code, first=left.first - 1)
