"""Where the answer stands in a finished solution: pure text, no mathematics and no model."""

from __future__ import annotations

import re

from stepsearch.search.canonical import without_emphasis

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_EMPTY_BOX = re.compile(r"(?:\\(?:[lc]?dots|square|quad|[,;:! ])|[\s~.?_$])*")
_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*((?=\S)(?:(?!####).)+?)[ \t]*$", re.MULTILINE)
_HEADING = re.compile(
    r"\W*(?:step|part|case|solution|conclusion|explanation|method|(?:final )?answer)\b",
    re.IGNORECASE,
)
_OPENING_THINK = re.compile(r"<think>", re.IGNORECASE)
_CLOSING_THINK = re.compile(r"</think>", re.IGNORECASE)
_PHRASES = (
    re.compile(r"\bfinal\s+answer\b(?:\s+is\b)?\s*[:=]?\s*(?=(\S.*))", re.IGNORECASE),
    re.compile(r"\banswer\b[^.\n:=]{0,60}?\s+is\b\s*:?\s*(?=(\S.*))", re.IGNORECASE),
    re.compile(r"\banswer\s*[:=]\s*(?=(\S.*))", re.IGNORECASE),
)
_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|\$(?!\s)([^$]*[^$\s\\])\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_MORE_FORMULAS = re.compile(r"\s*(?:,|;|,?\s*(?:and|or)\b)\s*(?:\$|\\\()")
_CLAUSE_END = re.compile(
    r"[.!?]\s+(?=\D)|[,;]?\s+(?:because|since|which|where|so|as|for|if)\b|\s*\((?=[a-z]{2})"
)
_NO_ANSWER = re.compile(
    r"(?:not|unknown|unclear|to|that|in|we|you|it|correct|wrong|incorrect|right|given|found|obtained"
    r"|as|when|obviously|therefore)\b",
    re.IGNORECASE,
)
_MAX_PROSE_WORDS = 5


def after_thinking(text: str) -> str:
    """The part of a solution that is answer text.

    What stands before the last closing `</think>`, or after an opening `<think>` that was never
    closed, is reasoning.
    """
    if "<" not in text:
        return text
    closing = list(_CLOSING_THINK.finditer(text))
    if closing:
        text = text[closing[-1].end() :]
    opening = _OPENING_THINK.search(text)
    return text[: opening.start()] if opening else text


def boxed(text: str) -> list[str]:
    r"""Contents of the complete, non-empty `\boxed{}` of a text, in the order they begin.

    Escaped braces (`\{`) are characters of the answer. One pass, linear in the text's length.
    """
    open_braces: list[int | None] = []
    spans: list[tuple[int, int]] = []
    for token in _BRACES.finditer(text):
        if token.group() == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None:
                spans.append((start, token.start()))
        elif token.group().endswith("{") and token.group() != r"\{":
            open_braces.append(token.end() if "box" in token.group() else None)
    contents = (text[start:end].strip() for start, end in sorted(spans))
    return [content for content in contents if not _EMPTY_BOX.fullmatch(content)]


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete, non-empty `\boxed{}`."""
    contents = boxed(text) if "box" in text else ()
    return contents[-1] if contents else None


def after_hashes(text: str) -> str | None:
    """What follows the last `####` on its line; Markdown headings are passed over."""
    begin = text.find("####")
    if begin < 0:
        return None
    found = [m.group(1) for m in _HASHES.finditer(text, begin) if not _HEADING.match(m.group(1))]
    return found[-1] if found else None


def after_phrase(text: str) -> str | None:
    """What follows "Final Answer:", "the answer is" or "Answer:", in this order of preference.

    The last occurrence of the first phrase that introduces an answer counts. Markdown emphasis is
    removed. Prose that cannot be an answer ("the answer is not clear yet") is passed over.
    """
    plain = without_emphasis(text)
    for phrase in _PHRASES:
        for match in reversed(list(phrase.finditer(plain))):
            formula = _FORMULA.match(plain, match.start(1))
            if formula and not _MORE_FORMULAS.match(plain, formula.end()):
                return next(group for group in formula.groups() if group is not None).strip()
            answer = _first_clause(match.group(1))
            if answer is not None:
                return answer
    return None


def _first_clause(rest: str) -> str | None:
    end = _CLAUSE_END.search(rest)
    clause = (rest[: end.start()] if end else rest).strip().rstrip(".,;:!").strip()
    if not clause or _NO_ANSWER.match(clause):
        return None
    is_prose = not re.search(r"[\d\\]", clause)
    return None if is_prose and len(clause.split()) > _MAX_PROSE_WORDS else clause


def extract_math(text: str) -> str | None:
    r"""The answer of a mathematical solution as it was written; None when there is none.

    In this order: the last complete non-empty `\boxed{}`; what follows the last `####`; what
    follows "Final Answer:", "the answer is" or "Answer:". A number that merely stands in the text
    is never taken for the answer.
    """
    text = after_thinking(text)
    return last_boxed(text) or after_hashes(text) or after_phrase(text)


def extract_line(text: str) -> str | None:
    """What follows the last `####`, else "the answer is", else the last line that is not blank."""
    text = after_thinking(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return after_hashes(text) or after_phrase(text) or (lines[-1] if lines else None)


_LETTER = r"(?:\\text(?:bf|rm)?\s*\{)?[\s(\[{*\"']*([A-J])(?![A-Za-z0-9'])"
_CHOICE = re.compile(rf"\s*(?:(?:option|choice)\s*)?{_LETTER}", re.IGNORECASE)
_CHOICE_PHRASES = (
    re.compile(
        rf"\banswer\b[^.\n:=]{{0,60}}?(?:\bis\b|[:=])\s*(?:option|choice)?\s*:?\s*\$?{_LETTER}"
    ),
    re.compile(rf"\b(?:[Oo]ption|[Cc]hoice)\s+(?:is\s+)?\$?{_LETTER}"),
    re.compile(r"\(([A-J])\)"),
    re.compile(r"^\s*([A-J])\s*[.)]?\s*\Z", re.MULTILINE),
)
_ARTICLE = re.compile(r"\s+(?!(?:because|since|as|which|and|for|is)\b)[a-z]")


def choice_letter(answer: str) -> str | None:
    r"""The letter that an answer such as `B`, `(b)`, `\text{B}` or `B. Paris` begins with."""
    match = _CHOICE.match(answer)
    if match is None or (match.group(1) in "AIai" and _ARTICLE.match(answer, match.end())):
        return None
    return match.group(1).upper()


def extract_choice(text: str) -> str | None:
    """The capital letter, A to J, that a solution chooses; None when it chooses none.

    In this order: the last box that holds one; `#### B`; "the answer is B"; "option B"; the last
    "(B)"; a last line that is only a letter.
    """
    text = after_thinking(text)
    marked = [*reversed(boxed(text)), after_hashes(text) or ""]
    for answer in marked:
        letter = choice_letter(answer)
        if letter:
            return letter
    plain = without_emphasis(re.sub(r"\b(?:ANSWER|Answer)\b", "answer", text))
    for phrase in _CHOICE_PHRASES:
        for match in reversed(list(phrase.finditer(plain))):
            if match.group(1) not in "AI" or not _ARTICLE.match(plain, match.end(1)):
                return match.group(1)
    return None
