"""Blocks between fences of Markdown, as models write them around programs.

Pure text: nothing is compiled or run here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# What lines of a program are made of; a fence inside a string of several lines is part of it, but
# such a string does not reach over a fence that names its language: then it was never closed.
_PIECES = r"""
    (?:
        (?P<quotes>\"{3}|'{3}) (?:\\.|(?!^```\w)[^\\])*? (?P=quotes)
        | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
        | \#[^\n]*
        | \\. | [^\n"'\#\\]+ | ["'\\]
    )*
"""
_LINES = rf"(?:(?![ \t]*```|\Z){_PIECES}(?:\n|\Z))*"
_HEAD = re.compile(_LINES, re.DOTALL | re.MULTILINE | re.VERBOSE)
_FENCED = re.compile(
    r"^[ \t]*```[ \t]*(?P<tongue>\w*)[^\n]*\n"
    rf"(?P<body>{_LINES})(?P<closing>[ \t]*```(?!\w))?",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_INDENTED = re.compile(r"\s*^(?: {2}|\t)[ \t]*\S", re.MULTILINE)
_CODE = re.compile(
    r"\s*^(?:(?:async|def|class|return|if|for|while|import|from|try|with|raise|yield)\b|@\w"
    r"|[\w.,\[\] ]+=)",
    re.MULTILINE,
)


class Block(NamedTuple):
    """A block of a text: its language, "" where none is named, and where it stands."""

    tongue: str
    begin: int
    end: int


def fenced(text: str) -> list[Block]:
    """The blocks between fences, the last of which may lack its end.

    Where the first fence ends a program that began with the text, as after a prompt that opened a
    fence, that program is the only block.
    """
    head = _HEAD.match(text)
    begin = head.end() if head else 0
    found = list(_FENCED.finditer(text, begin))
    if found and _is_end(text[:begin], found[0]):
        return [Block("", 0, begin)]
    return [Block(match["tongue"].lower(), *match.span("body")) for match in found]


def _is_end(head: str, fence: re.Match[str]) -> bool:
    """Whether the first fence closes what stands before it rather than opens a block."""
    if fence["tongue"]:
        return False
    return bool(_INDENTED.match(head) or (fence["closing"] is None and _CODE.match(head)))
