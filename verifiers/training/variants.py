"""The same question with other numbers; answers recomputed through the calculator marks.

GSM8K's solutions mark every calculation, `<<48/2=24>>`, so that with other numbers in the question
the whole solution can be worked out again. Only what is certain is changed: a number stays when it
may be a constant (a dozen, 60 minutes), when it stands in a fraction, a percentage, a time or a
name, or when no calculation uses it as it is written. A question is left out when a number could
be two things.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from hashlib import blake2b

from stepsearch.verifiers.equations.checker import check_equations
from stepsearch.verifiers.training.questions import Question, without_marks

_MARK = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
_FIXED = frozenset({1, 2, 3, 4, 5, 7, 10, 12, 24, 30, 31, 52, 60, 100, 360, 365, 1000})
_WORDS = dict(
    zip(
        [
            "six",
            "eight",
            "nine",
            "eleven",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
            "forty",
            "fifty",
            "seventy",
            "eighty",
            "ninety",
        ],
        (6, 8, 9, 11, 13, 14, 15, 16, 17, 18, 19, 20, 40, 50, 70, 80, 90),
        strict=True,
    )
)
_TRIES = 30
Values = dict[Fraction, Fraction]


def variants(question: Question, count: int, seed: int = 0) -> list[Question]:
    """Up to `count` variants of a question with marks; fewer when numbers do not allow more."""
    changeable = _changeable(question)
    if changeable is None:
        return []
    key = f"{seed}\x00{question.id}".encode()
    rng = random.Random(blake2b(key, digest_size=16).digest())
    found: dict[str, Question] = {}
    for _ in range(_TRIES):
        if len(found) == count:
            break
        made = _variant(question, _draw(changeable, rng), f"{question.id}-v{len(found)}")
        if made is not None and made.problem != question.problem:
            found.setdefault(made.problem, made)
    return list(found.values())


def _changeable(question: Question) -> list[Fraction] | None:
    """Numbers of the question that can be changed, ascending; None when there is none."""
    used = {
        _value(token)
        for expression, _ in _MARK.findall(question.solution)
        for token in _NUMBER.findall(expression)
    }
    results = {_value(r) for _, r in _MARK.findall(question.solution) if _NUMBER.fullmatch(r)}
    plain = {_value(token) for token in _NUMBER.findall(without_marks(question.solution))}
    asked = {_value(token) for token in _NUMBER.findall(question.problem)}
    if plain - used - results - asked:
        return None  # a number that nothing explains, which could not be worked out again
    told = {_WORDS[w] for w in re.findall(r"[a-z]+", question.problem.lower()) if w in _WORDS}
    found: set[Fraction] = set()
    for match in _NUMBER.finditer(question.problem):
        value = _value(match.group())
        if value in _FIXED or value not in used or value in results or value in told:
            continue
        if _is_bound(question.problem, match):
            return None
        found.add(value)
    return sorted(found) or None


def _is_bound(text: str, match: re.Match[str]) -> bool:
    """Whether a number is part of a percentage, fraction, time, ordinal or name."""
    before, after = text[: match.start()][-1:], text[match.end() :][:8]
    return bool(
        before in ("/", ":", "#", "-")
        or before.isalnum()
        or re.match(r"\s*(%|percent)|/\d|:\d|(st|nd|rd|th)\b|[A-Za-z]", after)
    )


def _draw(values: list[Fraction], rng: random.Random) -> Values:
    """New values in the order of the old ones, each from half to twice and as round as it was."""
    drawn: Values = {}
    low = Fraction(0)
    for value in values:
        step = _roundness(value)
        least, most = max(value / 2, low + step), value * 2
        first, last = -(-least // step), most // step
        if last < first:
            return {}
        drawn[value] = low = step * rng.randint(int(first), int(last))
    return drawn


def _roundness(value: Fraction) -> Fraction:
    for step in (Fraction(1000), Fraction(100), Fraction(10), Fraction(5), Fraction(1)):
        if value % step == 0 and value >= 2 * step:
            return step
    return Fraction(1) if value.denominator == 1 else Fraction(1, value.denominator)


def _variant(question: Question, drawn: Values, name: str) -> Question | None:
    if not drawn or set(drawn.values()) & _FIXED:
        return None
    values = dict(drawn)
    if not _recompute(question.solution, values):
        return None
    problem = _substitute(question.problem, drawn)
    solution = _substitute(without_marks(question.solution), values)
    answer = solution.rpartition("####")[2].strip().replace(",", "")
    wrong = any(equation.verdict == "wrong" for equation in check_equations(solution))
    if wrong or not _NUMBER.fullmatch(answer) or _value(answer) in (0, _value(question.answer)):
        return None
    return replace(
        question, id=name, source="variant", problem=problem, solution=solution, answer=answer
    )


def _recompute(solution: str, values: Values) -> bool:
    """Add every result to `values`; False when one cannot be worked out or could be two things."""
    for expression, result in _MARK.findall(solution):
        if not _NUMBER.fullmatch(result.strip()):
            return False
        old, new = evaluate(expression, {}), evaluate(expression, values)
        stated = _value(result.strip())
        if old is None or new is None or old != stated or new <= 0:
            return False
        if old.denominator == 1 and new.denominator != 1:
            return False
        if (new * 100).denominator != 1 or values.get(old, new) != new:
            return False
        if old in _FIXED and new != old:
            return False  # the same digits may be a constant elsewhere
        values[old] = new
    return bool(values)


def evaluate(expression: str, values: Mapping[Fraction, Fraction]) -> Fraction | None:
    """The value of a calculator mark's left side, its numbers replaced where `values` says so.

    Only numbers, + - * / and brackets are read; None for anything else and for a division by zero.
    """
    tokens = re.findall(r"\d[\d,]*\.?\d*|\.\d+|[-+*/()]|\S", expression)
    rest: Iterator[str] = iter([*tokens, "end"])
    try:
        reader = _Reader(rest, values)
        value = reader.sum()
        return value if reader.next == "end" else None
    except (ValueError, ZeroDivisionError, StopIteration):
        return None


class _Reader:
    """Recursive descent over the tokens of an expression."""

    def __init__(self, tokens: Iterator[str], values: Mapping[Fraction, Fraction]) -> None:
        self._tokens, self._values = tokens, values
        self.next = next(tokens)

    def _take(self) -> str:
        token, self.next = self.next, next(self._tokens)
        return token

    def sum(self) -> Fraction:
        value = self._product()
        while self.next in ("+", "-"):
            value = value + self._product() if self._take() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._atom()
        while self.next in ("*", "/"):
            value = value * self._atom() if self._take() == "*" else value / self._atom()
        return value

    def _atom(self) -> Fraction:
        if self.next == "-":
            self._take()
            return -self._atom()
        if self.next == "(":
            self._take()
            value = self.sum()
            if self.next != ")":
                raise ValueError("no closing bracket")
            self._take()
            return value
        value = _value(self._take())
        return self._values.get(value, value)


def _substitute(text: str, values: Mapping[Fraction, Fraction]) -> str:
    def changed(match: re.Match[str]) -> str:
        old = _value(match.group())
        new = values.get(old)
        return match.group() if new is None or new == old else _written(new, match.group())

    return _NUMBER.sub(changed, text)


def _written(value: Fraction, like: str) -> str:
    """A number as another one was written: with commas and two decimals where that had them."""
    if value.denominator == 1 and "." not in like:
        return f"{value.numerator:,}" if "," in like else str(value.numerator)
    if len(like.partition(".")[2]) == 2 or (value * 10).denominator != 1:
        return f"{float(value):,.2f}" if "," in like else f"{float(value):.2f}"
    return f"{float(value):g}"


def _value(token: str) -> Fraction:
    return Fraction(token.replace(",", ""))
