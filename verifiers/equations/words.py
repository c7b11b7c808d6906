"""What the words between the numbers of an expression mean: units, operators, or doubt."""

from __future__ import annotations

from collections.abc import Sequence

from stepsearch.verifiers.equations.arithmetic import SCALES, Unit
from stepsearch.verifiers.equations.tokens import Number, Token


def word_set(words: str) -> frozenset[str]:
    """The words of a list that is written as one text."""
    return frozenset(words.split())


_WORD_OPERATORS = {"x": "*", "times": "*", "of": "*", "plus": "+", "minus": "-"}
_ARTICLES = {"the", "a", "an", "her", "his", "their", "its", "those", "these", "usd"}
_CLAUSE_WORDS = word_set(
    """and or so then thus therefore hence if but because since which that who is are was were
    has have had gets get makes make means i she he they it we you there this when where
    while equals now also after before gives give leaves leave plus minus times more less
    fewer than as"""
)
POWERS = {"squared", "cubed"}
_UNIT_LETTERS = set("gmlhsdkLK")
_MAX_WORDS = 8


def is_operand(tokens: Sequence[Token], i: int) -> bool:
    """Whether an operand can begin at token `i`, a sign allowed."""
    if i < len(tokens) and tokens[i].kind == "operator" and tokens[i].text in "+-":
        i += 1
    return i < len(tokens) and tokens[i].kind in ("number", "open")


class WordReader:
    """Where the reading of an expression stands, and how it goes on over words."""

    def __init__(self, tokens: Sequence[Token], first: int) -> None:
        self.tokens = tokens
        self.first = self.i = self.core = first
        self.code: list[Number | str | Unit] = []
        self.stack: list[str] = []
        self.depth = self.num_operators = 0
        self.decimals: list[int | None] = []
        self.words: tuple[str, ...] = ()
        self.units: set[str] = set()
        self.has_of = self.is_money = self.unknown = self.doubtful = False
        self.tail_unknown = self.tail_doubtful = False

    def kind_at(self, i: int) -> str:
        """What token `i` is; behind the last one there is a break."""
        return self.tokens[i].kind if i < len(self.tokens) else "break"

    def read_words(self) -> str:
        """Read a run of words; returns the operator when one of them is an operator."""
        start = self.i
        run: list[str] = []
        operator = ""
        while True:
            kind = self.kind_at(self.i)
            if kind == "word":
                word = self.tokens[self.i].text
                operator = self._word_operator(word.lower(), len(run))
                if operator:
                    break
                run.append(word)
            elif kind == "open" and self.skip_words_in_brackets():
                continue
            elif not self.is_per():
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

    def is_per(self) -> bool:
        """Whether the slash of `eggs/day` is next."""
        return (
            self.kind_at(self.i) == "operator"
            and self.tokens[self.i].text == "/"
            and self.kind_at(self.i + 1) == "word"
        )

    def skip_words_in_brackets(self) -> bool:
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

    def skip_articles(self, i: int) -> int:
        """The first token from `i` on that is no article, of which two at most are passed."""
        j = i
        while j < i + 2 and self.kind_at(j) == "word" and self.tokens[j].text.lower() in _ARTICLES:
            j += 1
        return j

    def _word_operator(self, word: str, num_words: int) -> str:
        operator = _WORD_OPERATORS.get(word, "")
        following = self.i + 1
        if word == "x" and self.kind_at(following) in ("number", "open"):
            at, after = self.tokens[self.i], self.tokens[following]
            is_glued = at.tight and after.tight
            is_hexadecimal = self.tokens[self.i - 1].text == "0"
            self.doubtful |= is_glued and (after.kind == "open" or is_hexadecimal)
            return operator
        if word == "of":
            is_taken = is_operand(self.tokens, self.skip_articles(following))
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
        if word.lower() in SCALES:
            self.units.add(word.lower())
            if start == self.core:
                self._apply_unit(word.lower())

    def _apply_unit(self, name: str) -> None:
        while self.stack and self.stack[-1] in ("^", "neg", "mixed"):
            self.code.append(self.stack.pop())
        size = SCALES[name].size
        tokens = self.tokens[max(self.core - 3, self.first) : self.core]
        is_denominator = (
            [t.kind for t in tokens] == ["number", "operator", "number"]
            and tokens[1].text == "/"
            and tokens[1].tight
        )
        # half an hour, written 1/2 hour, is 1 / (2 / 60) minutes to the evaluation
        self.code.append(Unit(1 / size if is_denominator else size))

    def _note_words(self, run: list[str], *, is_inside: bool) -> None:
        words = [word.lower() for word in run]
        is_doubtful = len(run) > _MAX_WORDS or not _CLAUSE_WORDS.isdisjoint(words)
        is_unknown = words[0] in POWERS or any(map(_is_variable, run))
        if is_inside:
            self.units.update(filter(SCALES.__contains__, words))
            self.doubtful |= is_doubtful
            self.unknown |= is_unknown
        else:
            self.words = tuple(words)
            self.tail_doubtful |= is_doubtful
            self.tail_unknown |= is_unknown


def _is_variable(word: str) -> bool:
    return len(word) == 1 and word not in "aAI" and word not in _UNIT_LETTERS
