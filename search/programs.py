"""From text to a program: where it stands, how it continues its prompt, which blocks it has.

Pure text: nothing is compiled or run here.
"""

from __future__ import annotations

import io
import re
import tokenize
from contextlib import suppress
from itertools import accumulate, pairwise

from stepsearch.search.answers import after_thinking
from stepsearch.search.fences import fenced

_MAX_LENGTH = 100_000
_DEFINES = re.compile(r"^(?:async\s+)?(?:def|class)\s", re.MULTILINE)
_GOES_ON = re.compile(r"(?:async\s+)?(?:def|class|import|from|@)|[)\]}#]")
_LEAVES = re.compile(r"(?:return|yield)\b")
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+(?:\([^)]*\)|[^\n]*)", re.MULTILINE)
_JOINED = frozenset({"else", "elif", "except", "finally"})
_HEADS = frozenset({"def", "class", "async"})
_ALIKE = {tokenize.INDENT: "\t", tokenize.NEWLINE: "\n"}
_SILENT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING})


def extract_program(text: str) -> str | None:
    """The program of a finished solution; None when there is none, or more than 100,000 characters.

    That is the last fenced block of Python with a definition, else the last such block, else the
    whole text. A text that begins as a program and then closes a fence is that program. Leading
    indentation stays: a text may go on inside a function.
    """
    text = after_thinking(text)
    found = [text[block.begin : block.end] for block in fenced(text) if block.tongue in _TONGUES]
    if found:
        defining = [body for body in found if _DEFINES.search(body)]
        text = (defining or found)[-1]
    program = re.sub(r"\A(?:[ \t]*\n)+", "", text).rstrip()
    return program if program.strip() and len(program) <= _MAX_LENGTH else None


_TONGUES = frozenset({"", "py", "python", "python3"})


def whole_program(prompt: str, answer: str, entry_point: str) -> str:
    """The prompt with the answer, which defines the entry point again or continues the prompt.

    An answer that continues the prompt may have lost its indentation, or that of its first line.
    It ends before the first unindented statement that begins no definition and no import, which is
    where a model without an end mark begins to write other things. An answer that defines the entry
    point, by a definition, an assignment or an import, may begin with imports from `__future__`.
    """
    indent = _body_indent(prompt)
    if _defines(answer, entry_point):
        stub = f"{indent}pass\n" if _opens(prompt) else ""
        future = "".join(f"{line}\n" for line in _FUTURE.findall(answer))
        return f"{future}{prompt.rstrip()}\n{stub}\n\n{_FUTURE.sub('', answer)}\n"
    return f"{prompt.rstrip()}\n{_as_body(answer, indent)}\n"


def _defines(answer: str, entry_point: str) -> bool:
    """Whether an answer defines the entry point, rather than a variable of a body by its name."""
    name = re.escape(entry_point)
    if re.search(rf"^\f?(?:(?:async\s+)?def|class)\s+{name}\b", answer, re.MULTILINE):
        return True
    bound = rf"^{name}\s*(?::[^=\n]+)?=(?!=)|^(?:from|import)\s(?:[^\n]*[\s,])?{name}\s*(?:[,#]|$)"
    if _indent_of(answer) or not re.search(bound, answer, re.MULTILINE):
        return False
    lines, inner = answer.split("\n"), _inner_rows(answer)
    begins = [line for i, line in enumerate(lines) if line.strip() and i not in inner]
    is_first_stripped = len(begins) > 1 and all(map(_indent_of, begins[1:]))
    return not (is_first_stripped or any(map(_LEAVES.match, begins)))


def _opens(prompt: str) -> bool:
    """Whether the prompt ends inside a definition."""
    return _indent_of(prompt.rstrip().rpartition("\n")[2]) != "" or prompt.rstrip().endswith(":")


def _body_indent(prompt: str) -> str:
    last = prompt.rstrip().rpartition("\n")[2]
    return _indent_of(last) + ("    " if last.endswith(":") else "")


def _indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _as_body(answer: str, indent: str) -> str:
    lines, inner = answer.split("\n"), _inner_rows(answer)
    begins = [i for i, line in enumerate(lines) if line.strip() and i not in inner]
    if _indent_of(lines[0]):
        ends = (i for i in begins if lines[i][:1].strip() and not _GOES_ON.match(lines[i]))
        return "\n".join(lines[: next(ends, len(lines))])
    rest = next((len(_indent_of(lines[i])) for i in begins[1:]), 0)
    if rest > (len(indent) if lines[0].rstrip().endswith(":") else 0):
        return indent + answer  # the first line alone was stripped
    for i in begins:  # strings of several lines stay as they are
        lines[i] = indent + lines[i]
    return "\n".join(lines)


def _inner_rows(text: str) -> frozenset[int]:
    """The lines, from 0, that begin inside a statement: in a string or in brackets."""
    # Without indentation, which ends no string and could keep the text from being read.
    bare = "\n".join(line.lstrip() for line in text.split("\n"))
    found, first = set[int](), 0
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(bare).readline):
            if token.type == tokenize.NEWLINE and first:
                found.update(range(first, token.start[0]))
                first = 0
            elif token.type not in _SILENT:
                first = first or token.start[0]
    return frozenset(found)


def same_program(a: str, b: str) -> bool:
    """Whether two programs agree but for comments, blank lines and spaces between tokens."""
    return a == b or _normal_form(a) == _normal_form(b)


def _normal_form(program: str) -> list[str]:
    try:
        found = list(tokenize.generate_tokens(io.StringIO(program).readline))
    except (tokenize.TokenError, SyntaxError):
        return program.split()
    return [_ALIKE.get(token.type, token.string) for token in found if token.type not in _SILENT]


def blocks(text: str) -> tuple[str, ...]:
    """The logical blocks of a program: its steps. Joined, they are the text again.

    A block is a statement of the module or of the body of a definition there, with everything
    that is nested in it; a definition's head goes with its docstring, comments and decorators go
    with what follows them. Text around fences is part of the first and of the last block.
    """
    found = fenced(text)
    if not found:
        return _cut(text, _starts(text))
    _, begin, end = found[0]
    starts = [begin + start for start in _starts(text[begin:end])]
    return _cut(text, [*starts[1:], *([end] if text[end:].strip() else [])])


def _cut(text: str, starts: list[int]) -> tuple[str, ...]:
    edges = sorted({0, *starts, len(text)})
    return tuple(text[a:b] for a, b in pairwise(edges))


def _starts(text: str) -> list[int]:
    """Where blocks begin, as far as the text can be read as Python."""
    # Lines as tokenize counts them: str.splitlines ends some at a form feed or at U+2028 as well.
    offsets = list(accumulate(map(len, io.StringIO(text)), initial=0))
    return [offsets[row - 1] for row in _rows(text)]


def _rows(text: str) -> list[int]:
    """The numbers of the lines that begin blocks."""
    found: list[int] = []
    depth, line, head, waiting = 0, list[tokenize.TokenInfo](), "", 0
    before = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.INDENT:
                depth += 1
            elif token.type == tokenize.DEDENT:
                depth -= 1
            elif token.type == tokenize.COMMENT and not line:
                waiting = waiting or token.start[0]
            elif token.type not in _SILENT and token.type != tokenize.NEWLINE:
                line.append(token)
            elif token.type == tokenize.NEWLINE and line:
                first = line[0].string
                head = first if depth == 0 else head
                is_outer = depth == 0 or (depth == 1 and (head in _HEADS or not head))
                is_doc = line[0].type == tokenize.STRING and before in _HEADS
                if is_outer and first not in _JOINED and not is_doc and before != "@":
                    found.append(waiting or line[0].start[0])
                line, waiting, before = [], 0, first
    except (tokenize.TokenError, SyntaxError):
        if line:
            found.append(line[0].start[0])
    return found
