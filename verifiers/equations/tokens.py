"""Cut a text into the tokens that arithmetic is made of; time linear in its length."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal, NamedTuple

Number = int | Fraction

Kind = Literal[
    "number",  # a literal that could be read
    "word",
    "operator",  # + - * / ^
    "percent",
    "open",
    "close",
    "equal",  # =
    "approx",  # about equal
    "verb",  # a word that may mean "=" and stands before a number
    "unknown",  # something that is or hides an operand: a bad number, an unknown command, a ratio
    "break",  # whatever no expression goes across
]


class Token(NamedTuple):
    """A piece of the text.

    Attributes:
        kind: what it can be in an expression.
        text: its canonical text (operators) or the source's.
        start, end: where it stands in the source.
        tight: no space between it and what stands before it.
        value: the exact value of a number.
        decimals: digits after the point of a number, None for a fraction sign.
        is_money: a money sign stands before it.
    """

    kind: Kind
    text: str
    start: int
    end: int
    tight: bool = True
    value: Number = 0
    decimals: int | None = None
    is_money: bool = False


MAX_DIGITS = 60
"""Longer numbers are not read: nothing a step says about them is judged."""

_PATTERN = re.compile(
    r"""
    (?P<space>(?:\s|\\[,;!:\ ]|\\q?quad\b|\\left\b|\\right\b|[~&$£€₹¥]|\\\$)+)
  | (?P<repeating>[0-9]*\.[0-9]+(?:\.\.\.?|…))
  | (?P<number>(?:[0-9]+(?:(?:[.,]|\{,\})[0-9]+)*|\.[0-9]+(?:[.,][0-9]+)*))
  | (?P<verb>\b(?:(?:is|are)\ equal\ to|equals?|equal\ to|is|are|makes|gives|leaves)
        (?=[ ]{1,2}(?:an?[ ]total[ ]of[ ])?[$£€]?\s?[0-9]))
  | (?P<word>(?:divided|multiplied)\ by\b|¢|[^\W\d_½-¾⅐-⅞²³]+(?:['\u2019&][^\W\d_½-¾⅐-⅞²³]+)*)
  | (?P<command>\\(?:[a-zA-Z]+|.))
  | (?P<break><<|>>|!=|<=|>=|=>|->|:=|[<>])
  | (?P<equal>={1,3})
  | (?P<approx>[≈≅≃]|~=)
  | (?P<operator>\*\*|[-+*/^\u00d7÷·⋅∙\u2217\u2212\u2013])
  | (?P<percent>%)
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<super>[²³])
  | (?P<vulgar>[½¼¾⅓⅔⅕⅖⅗⅘⅙⅛⅜⅝⅞])
  | (?P<unknown>[_√∛∞])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[1-9][0-9]{0,2}(?:(?:,|\{,\})[0-9]{3})+(?:\.[0-9]+)?|[0-9]*\.?[0-9]+")
_OPERATORS = {
    **dict.fromkeys("\u00d7·⋅∙\u2217", "*"),
    **dict.fromkeys("\u2212\u2013", "-"),
    "÷": "/",
}
_COMMANDS: dict[str, tuple[Kind, str]] = {
    r"\times": ("operator", "*"),
    r"\cdot": ("operator", "*"),
    r"\ast": ("operator", "*"),
    r"\div": ("operator", "/"),
    r"\approx": ("approx", "="),
    r"\simeq": ("approx", "="),
    r"\%": ("percent", "%"),
    r"\{": ("open", "("),
    r"\}": ("close", ")"),
    **{
        rf"\{name}": ("break", name) for name in ("neq", "ne", "leq", "le", "geq", "ge", "lt", "gt")
    },
    **{rf"\{name}": ("break", name) for name in ("to", "rightarrow", "Rightarrow", "implies")},
    **{rf"\{sign}": ("break", sign) for sign in "()[]\\"},
}
_FRACTION_COMMANDS = {r"\frac", r"\dfrac", r"\tfrac", r"\cfrac"}
_WRAPPERS = {
    rf"\{name}"
    for name in ("text", "textbf", "mathrm", "mathbf", "mbox", "boxed", "fbox", "displaystyle")
}
_VULGAR_VALUES = "1/2 1/4 3/4 1/3 2/3 1/5 2/5 3/5 4/5 1/6 1/8 3/8 5/8 7/8"
_VULGAR = dict(
    zip(
        "½¼¾⅓⅔⅕⅖⅗⅘⅙⅛⅜⅝⅞",
        map(
            Fraction,
            [
                "1/2",
                "1/4",
                "3/4",
                "1/3",
                "2/3",
                "1/5",
                "2/5",
                "3/5",
                "4/5",
                "1/6",
                "1/8",
                "3/8",
                "5/8",
                "7/8",
            ],
        ),
        strict=True,
    )
)
_MONEY = frozenset("$£€₹¥")
_ORDINALS = {"st", "nd", "rd", "th", "rds", "ths"}


def read_tokens(text: str) -> list[Token]:
    """The tokens of a text, spaces and money signs left out, brackets matched.

    A bracket that has no partner, or holds an equation or the end of a clause, comes as `break`;
    LaTeX fractions come as bracketed divisions.
    """
    return _match_brackets(_expand_fractions(_refine(_cut(text))))


def _cut(text: str) -> list[Token]:
    tokens: list[Token] = []
    tight, is_money = True, False
    for match in _PATTERN.finditer(text):
        group = match.lastgroup or "other"
        source, start, end = match.group(), match.start(), match.end()
        if group == "space":
            if "\n" in source:
                tokens.append(Token("break", "\n", start, end))
            # a money sign is no space, but it ends the number before it all the same
            tight, is_money = False, source.rstrip()[-1:] in _MONEY
            continue
        if source in _WRAPPERS:
            continue
        classified = _classify(group, source, start, end, tight)
        if is_money:
            classified[0] = classified[0]._replace(is_money=True)
        tokens.extend(classified)
        tight, is_money = True, False
    return tokens


def _classify(group: str, source: str, start: int, end: int, tight: bool) -> list[Token]:
    if group in ("number", "repeating"):
        return [_read_number(source, start, end, tight)]
    if group == "vulgar":
        return [Token("number", source, start, end, tight, _VULGAR[source])]
    if group == "super":
        exponent = 2 if source == "²" else 3
        power = Token("operator", "^", start, end, tight)
        return [power, Token("number", source, start, end, True, exponent)]
    if group == "command":
        if source in _FRACTION_COMMANDS:
            return [Token("unknown", r"\frac", start, end, tight)]
        kind, name = _COMMANDS.get(source, ("unknown", source))
        return [Token(kind, name, start, end, tight)]
    if group == "word" and source.lower() in ("percent", "divided by", "multiplied by"):
        kinds: dict[str, tuple[Kind, str]] = {"percent": ("percent", "%")}
        kind, name = kinds.get(source.lower(), ("operator", "/" if source[0] in "dD" else "*"))
        return [Token(kind, name, start, end, tight)]
    if source == "¢":
        return [Token("word", "cents", start, end, tight)]
    if group == "operator":
        return [Token("operator", _OPERATORS.get(source, source), start, end, tight)]
    return [Token("break" if group == "other" else group, source, start, end, tight)]  # type: ignore[arg-type]


def _read_number(source: str, start: int, end: int, tight: bool) -> Token:
    digits = source.rstrip(".…")
    is_code = len(source) > 1 and source[0] == "0" and source[1] != "."  # "0730 hours"
    if len(source) > MAX_DIGITS or is_code or not _NUMBER.fullmatch(digits):
        return Token("unknown", source, start, end, tight)
    whole, _, part = digits.replace("{,}", "").replace(",", "").partition(".")
    value: Number = int(whole) if not part else Fraction(int(whole + part), 10 ** len(part))
    return Token("number", source, start, end, tight, value, len(part))


def _refine(tokens: list[Token]) -> list[Token]:
    """Settle the tokens whose meaning depends on their neighbours."""
    nothing = Token("break", "", 0, 0)
    refined: list[Token] = []
    skip = False
    for i, token in enumerate(tokens):
        if skip:
            skip = False
            continue
        before = refined[-1] if refined else nothing
        after = tokens[i + 1] if i + 1 < len(tokens) else nothing
        kind, text = token.kind, token.text
        if kind == "break" and text == "\n" and after.kind in ("equal", "approx"):
            continue  # an aligned equation goes on in the next line
        if before.kind == "word" and token.tight:
            if kind == "number" and not _is_times(refined):
                continue  # "ft2", "x1"
            if text == "^" and after.kind == "number":
                skip = True  # "cm^3"
                continue
        if kind == "operator":
            settled = _settle_operator(token, before, after)
            if settled is None:
                continue
            token = settled
        elif kind == "break" and text == ":" and before.kind == after.kind == "number":
            if token.tight == after.tight:  # a ratio or a time; "Step 1: 2 + 3" is neither
                token = token._replace(kind="unknown")
        elif kind == "word" and token.tight and text in _ORDINALS and before.kind == "number":
            if len(refined) > 1 and refined[-2].text == "/":
                continue  # "2/3rds"
            refined[-1] = before._replace(kind="word")
        refined.append(token)
    return refined


def _is_times(tokens: list[Token]) -> bool:
    """Whether the last of the tokens is the x of `3 x4`."""
    if tokens[-1].text.lower() != "x" or len(tokens) < 2:
        return False
    return tokens[-2].kind in ("number", "close", "percent", "word")


def _settle_operator(token: Token, before: Token, after: Token) -> Token | None:
    """The operator, what it is instead of an operator, or None when it is only markup."""
    if token.text == "**":
        if before.kind in ("number", "close") and after.kind in ("number", "open"):
            return token._replace(text="^")
        return None  # emphasis
    if token.text not in ("-", "*", "+"):
        return token
    if before.kind == "break" and before.text in ("", "\n", "-") and not after.tight:
        return token._replace(kind="break") if token.text == "-" else None  # the mark of a list
    if token.text == "-" and token.tight and after.tight:
        if after.kind == "word" and before.kind in ("number", "word"):
            return None  # a hyphen
        if after.kind == "number" and before.kind == "word":
            return token._replace(kind="unknown")
    return token


def _expand_fractions(tokens: list[Token]) -> list[Token]:
    r"""Write `\frac{a}{b}` as ((a)/(b)) and `\frac12` as (1/2)."""
    if not any(t.text == r"\frac" for t in tokens):
        return tokens
    expanded: list[Token] = []
    roles: list[str] = []
    role = ""
    skip = False
    for i, token in enumerate(tokens):
        after = tokens[i + 1] if i + 1 < len(tokens) else None
        if skip:
            skip = False
        elif token.text == r"\frac" and after is not None and after.text == "{":
            expanded.append(token._replace(kind="open", text="frac"))
            role = "numerator"
        elif token.text == r"\frac" and after is not None and _is_two_digits(after):
            expanded.extend(_short_fraction(token, after))
            skip = True
        elif token.kind == "open":
            roles.append(role)
            role = ""
            expanded.append(token)
        elif token.kind == "close" and roles:
            closed = roles.pop()
            expanded.append(token)
            if closed == "numerator":
                is_pair = after is not None and after.text == "{"
                expanded.append(token._replace(kind="operator" if is_pair else "unknown", text="/"))
                role = "denominator" if is_pair else ""
            elif closed == "denominator":
                expanded.append(token)
        else:
            expanded.append(token)
    return expanded


def _is_two_digits(token: Token) -> bool:
    return token.kind == "number" and token.decimals == 0 and len(token.text) == 2


def _short_fraction(command: Token, digits: Token) -> list[Token]:
    top, bottom = digits.text[0], digits.text[1]
    at = digits._replace(tight=True)
    return [
        command._replace(kind="open", text="frac"),
        at._replace(text=top, value=int(top), end=at.start + 1),
        at._replace(kind="operator", text="/"),
        at._replace(text=bottom, value=int(bottom), start=at.start + 1),
        at._replace(kind="close", text=")"),
    ]


def _match_brackets(tokens: list[Token]) -> list[Token]:
    """Make a `break` of every bracket without a partner, or with more than an expression in it."""
    matched = list(tokens)
    pending: list[int] = []
    for i, token in enumerate(tokens):
        if token.kind == "open":
            pending.append(i)
        elif token.kind == "close" and pending:
            pending.pop()
        elif token.kind in ("close", "equal", "approx", "verb", "break"):
            for k in pending:
                matched[k] = matched[k]._replace(kind="break", text="(")
            pending.clear()
            if token.kind == "close":
                matched[i] = token._replace(kind="break")
    for k in pending:
        matched[k] = matched[k]._replace(kind="break", text="(")
    return matched
