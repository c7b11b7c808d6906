"""Training questions with worked solutions, and which of them are held out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.lines import read_lines

CALCULATOR_MARK = re.compile(r"<<[^<>]*>>")
_ANSWER = "####"
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A training question.

    Attributes:
        id: names it.
        group: questions of one group are held out together; a variant is in its original's.
        source: where it comes from, such as `gsm8k`, `variant` or `words`.
        problem: its text.
        answer: the gold answer.
        solution: worked solution, one step per line, `#### answer` at the end; may be empty.
    """

    id: str
    group: str
    source: str
    problem: str
    answer: str
    solution: str = ""

    def to_row(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def read_questions(path: str | Path) -> Iterator[Question]:
    """Questions of a JSON-lines file; `group`, `source` and `solution` may be missing.

    Raises:
        ConfigurationError: the file or a field is missing, or a text holds half a character.
    """
    for number, row in enumerate(read_lines(path), start=1):
        for name in ("id", "problem", "answer"):
            if name not in row:
                raise ConfigurationError(f"{path}, line {number} has no {name!r}")
        question = Question(
            id=str(row["id"]),
            group=str(row.get("group", row["id"])),
            source=str(row.get("source", "")),
            problem=str(row["problem"]),
            answer=str(row["answer"]),
            solution=str(row.get("solution", "")),
        )
        for name, text in question.to_row().items():
            if _HALF.search(text):
                raise ConfigurationError(
                    f"{path}, line {number}: {name!r} holds half a character ({text!a:.60}), which "
                    "no tokenizer reads; mend the text or leave the question out"
                )
        yield question


def from_gsm8k(rows: Iterator[Mapping[str, Any]], name: str = "gsm8k-train") -> Iterator[Question]:
    """Questions of the GSM8K layout (Cobbe et al. 2021), calculator marks kept in the solution."""
    for number, row in enumerate(rows):
        solution = str(row["answer"]).strip()
        yield Question(
            id=f"{name}-{number}",
            group=f"{name}-{number}",
            source="gsm8k",
            problem=str(row["question"]).strip(),
            answer=solution.rpartition(_ANSWER)[2].strip().replace(",", ""),
            solution=solution,
        )


def without_marks(solution: str) -> str:
    """The solution as it is read and written by models: no calculator marks, no blank lines."""
    lines = (line.strip() for line in CALCULATOR_MARK.sub("", solution).split("\n"))
    return "\n".join(line for line in lines if line)


def is_held_out(group: str, share: float) -> bool:
    """Whether a group belongs to the held-out part: decided by a hash of its name alone.

    So every stage agrees, whatever file it reads, and a larger share contains the smaller one.
    """
    digest = blake2b(f"held out\x00{group}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
