"""Read one arithmetic expression with the words between its numbers.

Reading is operator precedence with an explicit stack, so that depth costs no recursion; every token
is visited a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from stepsearch.verifiers.equations.arithmetic import Code
from stepsearch.verifiers.equations.tokens import Number, Token
from stepsearch.verifiers.equations.words import WordReader, is_operand

_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, "^": 4, "mixed": 5}


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
        is_money: a money sign stands before one of its numbers.
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
    is_money: bool = False
    has_share: bool = False
    is_unknown: bool = False
    is_doubtful: bool = False
    is_tail_unknown: bool = False
    is_tail_doubtful: bool = False


def parse_expression(tokens: Sequence[Token], first: int) -> Expression:
    """Read the longest expression that begins at token `first`, where `is_operand` holds."""
    return _Reader(tokens, first).read()


class _Reader(WordReader):
    """Reads one expression; a class only because reading has this much state."""

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
            is_money=self.is_money,
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

    def _operand(self) -> bool:
        """Read signs, opening brackets and a number; False when no number is there."""
        while True:
            kind = self.kind_at(self.i)
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
        self.is_money |= token.is_money
        self.i += 1
        fraction = None
        if token.decimals == 0 and self.kind_at(self.i) == "number":
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
            kind = self.kind_at(self.i)
            if kind == "percent":
                self.code.append("%")
                self.i += 1
                self.core = self.i
            elif kind == "close" and self.depth:
                self._close()
            elif kind == "open" and not self.skip_words_in_brackets():
                return self._multiply_implicitly()
            elif kind == "operator" and not self.is_per():
                return self._binary(self.tokens[self.i].text, self.i + 1)
            elif kind in ("word", "operator"):
                operator = self.read_words()
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
        j = self.skip_articles(i)
        if not is_operand(self.tokens, j):
            return False
        self.doubtful |= j > i or (operator in "+-" and self.has_of)
        self.doubtful |= self.tokens[j].text == "+"
        self.doubtful |= operator == "/" and self._is_tight_fraction(j)
        self.doubtful |= operator == "^" and "neg" in self.stack[-1:]
        self._push(operator)
        self.i = j
        return True

    def _is_tight_fraction(self, i: int) -> bool:
        """Whether the divisor is written as in `3 / 1/2`."""
        return (
            not (self.tokens[i - 1].tight and self.tokens[i].tight)
            and self.kind_at(i + 1) == "operator"
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
