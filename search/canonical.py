r"""One normal form for mathematical answers, applied to prediction and gold alike.

The rules, the same in voting and in grading: a percent or degree sign, a currency and a unit after
a number are dropped (`28\%` equals 28, not 0.28; `13 cm` equals 13); a comma is a thousands mark
only in groups of three after a non-zero lead and outside brackets, else it separates (`0,1` is a
list); `\pm a` is the list of both.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

_EMPHASIS = (
    re.compile(r"(?<!\w)(\*\*\*|\*\*|__)(?=\S)([^\n]*?)(?<=\S)\1(?!\w)"),
    re.compile(r"(?<![\w*\\])([*_`])(?=[^\s*])([^*_`\n]*?)(?<=\S)\1(?![\w*])"),
)
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2012\u2013\u2014\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\t\r\n", " "),
        **dict.fromkeys('\u200b\ufeff"\u201c\u201d\u2018\u2019`€£¥', ""),
        "\u00d7": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "\u222a": r"\cup ",
        "∅": r"\emptyset ",
        "°": r"^\circ",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "²": "^2",
        "³": "^3",
    }
)


def _root(match: re.Match[str]) -> str:
    return rf"\sqrt{{{next(group for group in match.groups() if group is not None)}}}"


_TEXT = re.compile(
    r"\\(text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf|mathit)\s*\{([^{}]*)\}"
)
_SUBSTITUTIONS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|(?:display|text)style|limits|[Bb]igg?[lr]?)(?![A-Za-z])\.?", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\{,\}|(?<=\d)\\!,\\!(?=\d{3})", ","),
        (r"(?<=\d)(?:\\[,; ]|~)(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\\\$|\$|\\\(|\\\)|\\\[|(?<!\\)\\\]", ""),
        (r"\\[lr]brace(?![A-Za-z])", lambda m: r"\{" if m.group() == r"\lbrace" else r"\}"),
        (r"\^?\s*\\degree(?![A-Za-z])|\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?", r"^\\circ"),
        (r"\\(?:le|leq)slant(?![A-Za-z])|\\leq(?![A-Za-z])|<=", r"\\le "),
        (r"\\(?:ge|geq)slant(?![A-Za-z])|\\geq(?![A-Za-z])|>=", r"\\ge "),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*(?=\{)", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\w)", r"\1{\2}"),
        (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
        (r"√\s*(?:\(([^()]*)\)|(\w+))|(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", _root),
        (r"\b[Ii]nfinity\b|(?<![A-Za-z\\])oo(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset"),
        (r"\s+", " "),
        (r"(?<=\d) (?=\\)", ""),
        (r"\s*([-+*/=<>^_:(\[{|&!])\s*|\s+(?=[)}\]])", lambda m: m[1] or ""),
    )
)  # fmt: skip
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_CONJUNCTION = re.compile(r",?\s+(?:and|or)(?:\s+|(?=[-+(\\]))|;")
_CURRENCY = re.compile(r"(?:USD|US|EUR|GBP|Rs\.?)\s*(?=[\d.])")
_PERCENT = re.compile(r"(?<=[\d})])\s*\\?%$")
_DEGREE = re.compile(r"(.*[\d}])\^\\circ(?: ?[CF])?")
_SPACED_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?")
_WORDS_AFTER_NUMBER = re.compile(r"(.*?(?:[\d}]|\\pi))( ?)([A-Za-z][A-Za-z /.^\d-]*)")
_QUANTITY = re.compile(r"[-+\d./ ]*(?:\\sqrt\{\d+\}|\\pi|\\frac\{[^A-Za-z{}]*\}\{\d+\}| )+")
ASSIGNED = re.compile(r"(\\?[A-Za-z]+(?:_\w|_\{\w+\})?=)(?!.*=)")
_SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "lakh": 10**5,
    "lakhs": 10**5,
    "crore": 10**7,
    "crores": 10**7,
}
_OTHER_NUMBER = re.compile(  # "quarters" and "dozen" are left out: they are units as well
    "squared|cubed|half|halves|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|"
    "thousandth)s?"
)
_SHORT_UNIT = re.compile(
    "cm|mm|km|kg|mg|ml|cl|dl|ft|in|lbs?|oz|yd|mi|hrs?|mins?|sec|ms|mph|kph|rad|deg|per|of|st|nd|rd|th"
)
_NOT_UNIT = re.compile(
    "am|pm|and|or|if|mod|sin|cos|tan|cot|sec|csc|log|exp|sqrt|max|gcd|lcm|abc|xyz|pqr|"
    + "|".join(_SCALES)
)
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?P<value>\d+\.?\d*|\.\d+)"
    r"(?:e(?P<e>[-+]?\d{1,3})"
    r"|(?: ?\\times ?| ?\\cdot ?|\*)10\^(?:\{(?P<b>[-+]?\d{1,3})\}|(?P<p>-?\d{1,3})))?",
    re.IGNORECASE,
)
_RATIO = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>\d+)(?: (?=\d)| ?(?=\\frac)))?"
    r"(?:\\frac\{(?P<a>-?\d+\.?\d*)\}\{(?P<b>-?\d+\.?\d*)\}|(?P<c>\d+\.?\d*)/(?P<d>\d+\.?\d*))"
)
_MAX_DIGITS = 400
_MAX_LENGTH = 2000


class Number(NamedTuple):
    """A rational answer, and whether it was written as a decimal."""

    value: Fraction
    decimal: bool


def without_emphasis(text: str) -> str:
    """The text without the marks of Markdown emphasis and code spans."""
    for marks in _EMPHASIS:
        text = marks.sub(r"\2", text)
    return text


def parse_number(text: str) -> Number | None:
    """The exact value of an integer, decimal, fraction, mixed number or power-of-ten notation.

    None for everything else, for a zero denominator and for more than 400 characters.
    """
    if len(text) > _MAX_DIGITS:
        return None
    match = _NUMBER.fullmatch(text)
    if match:
        value = Fraction(match["value"])
        exponent = int(match["e"] or match["b"] or match["p"] or 0)
        if exponent:
            value *= Fraction(10) ** exponent
        return Number(-value if match["sign"] == "-" else value, not text.lstrip("+-").isdigit())
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    top, bottom = Fraction(match["a"] or match["c"]), Fraction(match["b"] or match["d"])
    if bottom == 0:
        return None
    value = Fraction(match["whole"] or 0) + top / bottom
    return Number(-value if match["sign"] == "-" else value, "." in text)


def split_list(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for token in re.finditer(r"\\begin|\\end|\\[{}]|[(\[{)\]},]", text):
        mark = token.group()
        if mark == "," and depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
        elif mark != ",":
            depth += 1 if mark in (r"\begin", r"\{", "(", "[", "{") else -1
    parts.append(text[start:].strip())
    return parts


def is_prose(text: str) -> bool:
    """Whether a normal form is words rather than mathematics, to be compared as text."""
    if re.search(r"[\\=<>^_{}+*/|]", text):
        return False
    words = [word.casefold() for word in re.findall(r"[A-Za-z]+", text)]
    return any(len(word) >= 4 or word in ("yes", "no", "odd", "am", "pm") for word in words)


@lru_cache(maxsize=65536)
def normalize(answer: str) -> str:
    """The answer in the notation that equality compares. Pure; see the module's rules.

    Above 2000 characters only white space is normalised.
    """
    if len(answer) > _MAX_LENGTH:
        return " ".join(answer.split())
    text = without_emphasis(answer.strip()).translate(_CHARACTERS)
    text = _strip_wrapping(_substitute(_unwrap_text(text)).rstrip(".,;: "))
    if _joins_answers(text):
        text = _CONJUNCTION.sub(", ", text)
    if not is_bracketed(text):
        text = _THOUSANDS.sub(lambda m: m.group().replace(",", ""), text)
        text = ",".join(_without_unit(part) for part in split_list(text))
    return _expand_signs(text)


@lru_cache(maxsize=65536)
def canonical(answer: str) -> str:
    r"""A cheap key: answers with the same canonical form are equal (the reverse need not hold).

    Numbers become reduced fractions (`0.50`, `1/2` and `\frac12` are all `1/2`), text loses case.
    """
    text = normalize(answer)
    numbers = [parse_number(part) for part in split_list(text)]
    values = [number.value for number in numbers if number is not None]
    if len(values) == len(numbers):
        return ",".join(map(str, sorted(values)))
    return text.casefold() if is_prose(text) else text


def _substitute(text: str) -> str:
    for pattern, replacement in _SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    return text.strip()


def _unwrap_text(text: str) -> str:
    """Replace text commands by their content, innermost first; drop a unit at the end."""
    while True:
        match = _TEXT.search(text)
        if match is None:
            return text
        before, after = text[: match.start()].rstrip(), text[match.end() :]
        if _is_unit(match, before, after):
            return before
        content = match[2] if len(match[2]) == 1 else f" {match[2]} "
        text = f"{text[: match.start()]}{content}{after}"


def _is_unit(match: re.Match[str], before: str, after: str) -> bool:
    command, content = match.groups()
    quantity = re.search(r"(?:[\d})%]|\\pi)(?:\\[,;: !]|~)*$", before)
    ends = re.fullmatch(r"\s*(?:\^\s*(?:\d|\{\d\}))?[\s.$]*", after)
    is_constant = command == "mathrm" and content in ("e", "i", "d")
    if not quantity or not ends or is_constant or not content.strip(" ."):
        return False
    words = re.findall(r"[a-z]+", content.lower())
    is_unit = not any(map(_NOT_UNIT.fullmatch, words)) and not _is_other_number(words)
    return is_unit and not re.search(r"[\d\\]", content)


def _without_unit(text: str) -> str:
    """Drop percent and degree signs, currencies and units in plain words; apply scales."""
    lhs = ASSIGNED.match(text)
    if lhs:
        return lhs[1] + _without_unit(text[lhs.end() :])
    text = _PERCENT.sub("", _CURRENCY.sub("", text, count=1))
    if _SPACED_THOUSANDS.fullmatch(text):
        return text.replace(" ", "")
    degrees = _DEGREE.fullmatch(text)
    if degrees and _is_quantity(degrees[1]):
        return degrees[1]
    match = _WORDS_AFTER_NUMBER.fullmatch(text)
    if match is None or not _is_quantity(match[1]):
        return text
    number = parse_number(match[1])
    words = re.sub(r"\^\{?\d\}?$|\.", "", match[3]).lower().replace("/", " per ").split()
    if _is_other_number(words):
        return text
    scale = _SCALES.get(words[0]) if words else None
    value = match[1]
    if scale is not None and number is not None:
        words, value = words[1:], str(number.value * scale)
    return value if all(_is_unit_word(word, bool(match[2])) for word in words) else text


def _is_other_number(words: list[str]) -> bool:
    """Whether words make another number of the one before them: "4 squared", "2 thirds of it".

    "25 squared inches" is 25, and so is "25 inches squared".
    """
    if not words or not _OTHER_NUMBER.fullmatch(words[0]):
        return False
    return not (words[0] in ("squared", "cubed") and len(words) > 1)


def _is_quantity(text: str) -> bool:
    return parse_number(text) is not None or _QUANTITY.fullmatch(text) is not None


def _is_unit_word(word: str, spaced: bool) -> bool:
    if _SHORT_UNIT.fullmatch(word):
        return True
    return spaced and word.isalpha() and len(word) >= 3 and not _NOT_UNIT.fullmatch(word)


def is_bracketed(text: str) -> bool:
    """Whether the text is one tuple, interval or set, from its first to its last character."""
    match = re.fullmatch(r"(?:\\\{|[(\[])(.*?)(?:\\\}|[)\]])", text)
    return match is not None and _is_balanced(match[1])


def _is_balanced(text: str) -> bool:
    depth = 0
    for token in re.finditer(r"\\[{}]|[(\[{]|[)\]}]", text):
        depth += 1 if token.group()[-1] in "([{" else -1
        if depth < 0:
            return False
    return depth == 0


def _strip_wrapping(text: str) -> str:
    """Take off a box, plain braces and parentheses around the whole of a single answer."""
    while True:
        match = re.fullmatch(r"(?:\\boxed|\\fbox)?\{(.*)\}|\((.*)\)", text)
        inner = (match[1] or match[2] or "").strip() if match else ""
        is_tuple = text.startswith("(") and len(split_list(inner)) > 1
        if not inner or is_tuple or not _is_balanced(inner):
            return text
        text = inner


def _joins_answers(text: str) -> bool:
    """Whether "and", "or" or semicolons stand between answers, not words or inequalities."""
    parts = [part.strip() for part in _CONJUNCTION.split(text)]
    if len(parts) == 1 or re.search(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])", text):
        return False
    return all(len(part) == 1 or re.search(r"[\d\\]", part) for part in parts)


def _expand_signs(text: str) -> str:
    r"""Write `a \pm b` as the list of both."""
    if r"\pm" not in text:
        return text
    if text.startswith(r"\{") and is_bracketed(text):
        return rf"\{{{_expand_signs(text[2:-2])}\}}"
    return ",".join(map(_both_signs, split_list(text)))


def _both_signs(text: str) -> str:
    before, sign, after = text.partition(r"\pm")
    if not sign or r"\pm" in after or r"\mp" in text:
        return text
    plus = "" if before == "" or before[-1] in "=({[,&" else "+"
    return f"{before}{plus}{after.strip()},{before}-{after.strip()}"
