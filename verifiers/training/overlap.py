"""Nothing of a test set in training: questions that share a run of words with it are left out.

The check of Brown et al. (2020, appendix C) with n-grams of words: letters and numbers only, in
lower case. Numbers count as they are, and once more all alike, so that a test question with other
numbers is found too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepsearch.verifiers.training.questions import Question

_WORD = re.compile(r"[a-z]+|\d[\d,.]*")
Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What the check found.

    Attributes:
        n: words of an n-gram; a test question with fewer counts as one n-gram.
        num_checked: training questions.
        num_tests: questions by test set.
        found: one entry per overlapping training question: `id`, `source`, `test` (name of the
            set), `index` (of the test question, from 0) and `words`, what they share.
    """

    n: int
    num_checked: int
    num_tests: Mapping[str, int]
    found: Sequence[Mapping[str, Any]]

    @property
    def ids(self) -> set[str]:
        """Ids of the questions to leave out."""
        return {str(entry["id"]) for entry in self.found}

    def to_row(self) -> dict[str, Any]:
        """The report as plain data."""
        counts = Counter((str(e["source"]), str(e["test"])) for e in self.found)
        return {
            "n": self.n,
            "checked": self.num_checked,
            "tests": dict(self.num_tests),
            "left_out": len(self.found),
            "by_source": {f"{s} ~ {t}": count for (s, t), count in sorted(counts.items())},
            "found": list(self.found),
        }


def find_overlap(
    questions: Iterable[Question], tests: Mapping[str, Sequence[str]], n: int = 13
) -> Overlap:
    """Check training questions against the questions of test sets.

    Args:
        questions: for training.
        tests: texts of the test questions by name of their set.
        n: words of an n-gram.
    """
    known: dict[Gram, tuple[str, int]] = {}
    for name, texts in tests.items():
        for index, text in enumerate(texts):
            for gram in _grams(text, n):
                known.setdefault(gram, (name, index))
    found, checked = [], 0
    for question in questions:
        checked += 1
        hit = next((gram for gram in _grams(question.problem, n) if gram in known), None)
        if hit is not None:
            name, index = known[hit]
            found.append(
                {
                    "id": question.id,
                    "source": question.source,
                    "test": name,
                    "index": index,
                    "words": " ".join(hit),
                }
            )
    sizes = {name: len(texts) for name, texts in tests.items()}
    return Overlap(n=n, num_checked=checked, num_tests=sizes, found=found)


def _grams(text: str, n: int) -> Iterator[Gram]:
    words = [word.rstrip(".,").replace(",", "") for word in _WORD.findall(text.lower())]
    masked = ["0" if word[0].isdigit() else word for word in words]
    for sequence in (words, masked):
        for start in range(max(1, len(sequence) - n + 1)):
            yield tuple(sequence[start : start + n])
