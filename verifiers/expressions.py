"""Read one arithmetic expression with the words between its numbers, and evaluate it exactly.

Reading is operator precedence with an explicit stack, so that depth costs no recursion; every token
is visited a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from stepsearch.verifiers.equation_tokens import Number, Token

MAX_BITS = 2048
"""No numerator or denominator may grow longer: such an expression has no value."""


def word_set(words: str) -> frozenset[str]:
    """The words of a list that is written as one text."""
    return frozenset(words.split())


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

_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, "^": 4, "mixed": 5}
_WORD_OPERATORS = {"x": "*", "times": "*", "of": "*", "plus": "+", "minus": "-"}
_ARTICLES = {"the", "a", "an", "her", "his", "their", "its", "those", "these", "usd"}
_CLAUSE_WORDS = word_set(
    """and or so then thus therefore hence if but because since which that who is are was were
    has have had gets get makes make means i she he they it we you there this when where
    while equals now also after before gives give leaves leave plus minus times more less
    fewer than as"""
)
_UNIT_LETTERS = set("gmlhsdkLK")
_MAX_WORDS = 8


class Expression(NamedTuple):
    """An expression as it stands in the text.

    Attributes:
        code: what to evaluate; empty when it could not be read.
        first, core, stop: the tokens [first, core) are the expression with the units inside it,
            [core, stop) the words that follow.
        num_operators: binary operators in it.
        decimals: digits after the point when it is a single number as it is written, else None.
        leading: the number it begins with, None when it begins with something else.
        words: the words that follow, in lower case.
        units: units of measure that occur in it.
        has_share: it takes a share of something, as `20% of 50` does.
        is_unknown: it holds something that has no known value.
        is_doubtful: it may have been meant in another way.
        is_tail_unknown, is_tail_doubtful: the same when the words that follow belong to it too.
    """

    code: Code
    first: int
    core: int
    stop: int
    num_operators: int = 0
    decimals: int | None = None
    leading: Number | None = None
    words: tuple[str, ...] = ()
    units: frozenset[str] = frozenset()
    has_share: bool = False
    is_unknown: bool = False
    is_doubtful: bool = False
    is_tail_unknown: bool = False
    is_tail_doubtful: bool = False


def is_operand(tokens: Sequence[Token], i: int) -> bool:
    """Whether an operand can begin at token `i`, a sign allowed."""
    if i < len(tokens) and tokens[i].kind == "operator" and tokens[i].text in "+-":
        i += 1
    return i < len(tokens) and tokens[i].kind in ("number", "open")


def parse_expression(tokens: Sequence[Token], first: int) -> Expression:
    """Read the longest expression that begins at token `first`, where `is_operand` holds."""
    return _Reader(tokens, first).read()


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


class _Reader:
    """Reads one expression; a class only because reading has this much state."""

    def __init__(self, tokens: Sequence[Token], first: int) -> None:
        self.tokens = tokens
        self.first = self.i = self.core = first
        self.code: list[Number | str | Unit] = []
        self.stack: list[str] = []
        self.depth = self.num_operators = 0
        self.decimals: list[int | None] = []
        self.words: tuple[str, ...] = ()
        self.units: set[str] = set()
        self.has_of = self.unknown = self.doubtful = False
        self.tail_unknown = self.tail_doubtful = False

    def read(self) -> Expression:
        while self._operand() and self._operator():
            pass
        if self.depth:
            return self._skip_group()
        while self.stack:
            self.code.append(self.stack.pop())
        return Expression(
            code=self.code,
            first=self.first,
            core=self.core,
            stop=self.i,
            num_operators=self.num_operators,
            decimals=self.decimals[0] if len(self.decimals) == 1 else None,
            leading=self._leading(),
            words=self.words,
            units=frozenset(self.units),
            has_share=self.has_of,
            is_unknown=self.unknown,
            is_doubtful=self.doubtful,
            is_tail_unknown=self.tail_unknown,
            is_tail_doubtful=self.tail_doubtful,
        )

    def _skip_group(self) -> Expression:
        """The brackets hold more than an expression: go on after the outermost of them."""
        i, depth = self.i, self.depth
        while depth:
            depth += {"open": 1, "close": -1}.get(self.tokens[i].kind, 0)
            i += 1
        return Expression((), self.first, i, i, is_unknown=True)

    def _leading(self) -> Number | None:
        token = self.tokens[self.first]
        return token.value if token.kind == "number" else None

    def _kind(self, i: int) -> str:
        return self.tokens[i].kind if i < len(self.tokens) else "break"

    def _operand(self) -> bool:
        """Read signs, opening brackets and a number; False when no number is there."""
        while True:
            kind = self._kind(self.i)
            if kind == "open":
                self.stack.append("(")
                self.depth += 1
            elif kind == "operator" and is_operand(self.tokens, self.i):
                if self.tokens[self.i].text == "-":
                    self.stack.append("neg")
            elif kind == "number":
                self._number()
                return True
            else:
                return False
            self.i += 1

    def _number(self) -> None:
        token = self.tokens[self.i]
        self.code.append(token.value)
        self.decimals.append(token.decimals)
        self.i += 1
        fraction = None
        if token.decimals == 0 and self._kind(self.i) == "number":
            fraction = _proper_fraction(self.tokens, self.i)
        if fraction is not None:
            value, num_tokens = fraction
            self.code[-1] = token.value + value
            self.decimals.append(None)
            self.i += num_tokens
        self.core = self.i

    def _operator(self) -> bool:
        """Read what follows an operand; True when an operand follows in its turn."""
        while True:
            kind = self._kind(self.i)
            if kind == "percent":
                self.code.append("%")
                self.i += 1
                self.core = self.i
            elif kind == "close" and self.depth:
                self._close()
            elif kind == "open" and not self._skip_words_in_brackets():
                return self._multiply_implicitly()
            elif kind == "operator" and not self._is_per():
                return self._binary(self.tokens[self.i].text, self.i + 1)
            elif kind in ("word", "operator"):
                operator = self._read_words()
                if operator:
                    return self._binary(operator, self.i + 1)
            elif kind != "open":
                # two numbers side by side are no number that could be told
                self.unknown |= kind == "number" and self.i == self.core
                return False

    def _close(self) -> None:
        while (top := self.stack.pop()) != "(":
            self.code.append(top)
        self.depth -= 1
        self.i += 1
        self.core = self.i

    def _skip_words_in_brackets(self) -> bool:
        """Skip `(of eggs)`; False when a number is in it."""
        i, depth = self.i, 0
        is_factor = i == self.core and self.tokens[i].tight
        while True:
            kind = self.tokens[i].kind
            if kind in ("number", "unknown"):
                return False
            depth += {"open": 1, "close": -1}.get(kind, 0)
            i += 1
            if not depth:
                self.i = i
                self.unknown |= is_factor  # "2(number of eggs)"
                return True

    def _multiply_implicitly(self) -> bool:
        r"""`2(3 + 4)`, and the mixed number `1\frac{1}{2}`."""
        token = self.tokens[self.i]
        if self.i != self.core:
            return False
        if token.text == "frac" and self.tokens[self.i - 1].kind == "number":
            self._push("mixed")
            return True
        self.doubtful |= not token.tight
        return self._binary("*", self.i)

    def _binary(self, operator: str, i: int) -> bool:
        """Take a binary operator when an operand follows at `i`, articles before it allowed."""
        j = self._skip_articles(i)
        if not is_operand(self.tokens, j):
            return False
        self.doubtful |= j > i or (operator in "+-" and self.has_of)
        self.doubtful |= self.tokens[j].text == "+"
        self.doubtful |= operator == "/" and self._is_tight_fraction(j)
        self.doubtful |= operator == "^" and "neg" in self.stack[-1:]
        self._push(operator)
        self.i = j
        return True

    def _skip_articles(self, i: int) -> int:
        j = i
        while j < i + 2 and self._kind(j) == "word" and self.tokens[j].text.lower() in _ARTICLES:
            j += 1
        return j

    def _is_tight_fraction(self, i: int) -> bool:
        """Whether the divisor is written as in `3 / 1/2`."""
        return (
            not (self.tokens[i - 1].tight and self.tokens[i].tight)
            and self._kind(i + 1) == "operator"
            and self.tokens[i + 1].text == "/"
            and self.tokens[i + 1].tight
        )

    def _push(self, operator: str) -> None:
        strength = _PRECEDENCE[operator]
        while self.stack and (
            _PRECEDENCE[self.stack[-1]] > strength
            or (_PRECEDENCE[self.stack[-1]] == strength and operator != "^")
        ):
            self.code.append(self.stack.pop())
        self.stack.append(operator)
        self.num_operators += 1

    def _read_words(self) -> str:
        """Read a run of words; returns the operator when one of them is an operator."""
        start = self.i
        run: list[str] = []
        operator = ""
        while True:
            kind = self._kind(self.i)
            if kind == "word":
                word = self.tokens[self.i].text
                operator = self._word_operator(word.lower(), len(run))
                if operator:
                    break
                run.append(word)
            elif kind == "open" and self._skip_words_in_brackets():
                continue
            elif not self._is_per():
                break
            else:
                self.unknown |= _is_variable(self.tokens[self.i + 1].text)
            self.i += 1
        if run:
            is_inside = bool(operator) or is_operand(self.tokens, self.i + 1)
            is_inside &= kind in ("operator", "word")
            self._note_first_word(run[0], start)
            self._note_words(run, is_inside=is_inside)
        return operator

    def _is_per(self) -> bool:
        """Whether the slash of `eggs/day` is next."""
        return (
            self._kind(self.i) == "operator"
            and self.tokens[self.i].text == "/"
            and self._kind(self.i + 1) == "word"
        )

    def _word_operator(self, word: str, num_words: int) -> str:
        operator = _WORD_OPERATORS.get(word, "")
        following = self.i + 1
        if word == "x" and self._kind(following) in ("number", "open"):
            at, after = self.tokens[self.i], self.tokens[following]
            self.doubtful |= at.tight and after.tight and after.kind == "open"
            return operator
        if word == "of":
            is_taken = is_operand(self.tokens, self._skip_articles(following))
            if num_words or not is_taken or not self._is_share():
                return ""
            self.has_of = True
        elif word == "x" or not is_operand(self.tokens, following):
            return ""
        return operator

    def _is_share(self) -> bool:
        """Whether what stands before "of" is a fraction or a percentage."""
        last = self.tokens[self.i - 1]
        if last.kind != "number":
            return last.kind in ("percent", "close")
        before = self.tokens[self.i - 2] if self.i - 2 >= self.first else None
        return last.decimals != 0 or (before is not None and before.text == "/")

    def _note_first_word(self, word: str, start: int) -> None:
        if len(word) == 1 and (word not in "aI" or self.tokens[start].tight):
            self.unknown |= word not in _UNIT_LETTERS
            self.doubtful = True
        if word.lower() in UNITS:
            self.units.add(word.lower())
            if start == self.core:
                self._apply_unit(word.lower())

    def _apply_unit(self, name: str) -> None:
        while self.stack and self.stack[-1] in ("^", "neg", "mixed"):
            self.code.append(self.stack.pop())
        size = UNITS[name]
        tokens = self.tokens[max(self.core - 3, self.first) : self.core]
        is_denominator = (
            [t.kind for t in tokens] == ["number", "operator", "number"]
            and tokens[1].text == "/"
            and tokens[1].tight
        )
        # half an hour, written 1/2 hour, is 1 / (2 / 60) minutes to the evaluation
        self.code.append(Unit(1 / Fraction(size) if is_denominator else size))

    def _note_words(self, run: list[str], *, is_inside: bool) -> None:
        words = [word.lower() for word in run]
        is_doubtful = len(run) > _MAX_WORDS or not _CLAUSE_WORDS.isdisjoint(words)
        is_unknown = any(map(_is_variable, run))
        if is_inside:
            self.units.update(filter(UNITS.__contains__, words))
            self.doubtful |= is_doubtful
            self.unknown |= is_unknown
        else:
            self.words = tuple(words)
            self.tail_doubtful |= is_doubtful
            self.tail_unknown |= is_unknown


def _is_variable(word: str) -> bool:
    return len(word) == 1 and word not in "aAI" and word not in _UNIT_LETTERS


def _proper_fraction(tokens: Sequence[Token], i: int) -> tuple[Number, int] | None:
    """The fraction of a mixed number and its tokens: the half of `1 1/2` or `1½`."""
    first, *rest = tokens[i : i + 3]
    if first.decimals is None:
        return (first.value, 1) if first.tight else None
    if [t.kind for t in rest] != ["operator", "number"] or rest[0].text != "/":
        return None
    is_written_so = rest[0].tight and rest[1].tight and first.decimals == rest[1].decimals == 0
    if is_written_so and 0 < first.value < rest[1].value:
        return Fraction(first.value) / rest[1].value, 3
    return None
