"""The questions that training starts from: worked ones, variants of them, and made ones.

Nothing of a test split is in them: what shares an n-gram of words with a test question is left out,
and the report of that check is kept beside them.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from stepsearch.benchmarks.datasets import rows_of
from stepsearch.benchmarks.word_problems import WordProblems
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.lines import write_lines
from stepsearch.verifiers.training.overlap import Overlap, find_overlap
from stepsearch.verifiers.training.questions import Question, from_gsm8k, without_marks
from stepsearch.verifiers.training.variants import variants

_log = logging.getLogger(__name__)
_COLUMNS = ("question", "input", "problem")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuestions:
    """What questions are collected.

    Attributes:
        out: the file that is written; `OUT.overlap.json` is the report beside it.
        gsm8k: a training split in the layout of GSM8K; None for none.
        variants: most variants with other numbers of each of its questions.
        words: made problems of the training split of the generator; None for none.
        tests: files of test questions by name, which are kept out.
        ngram: words that two questions must share to be left out.
        seed: of the variants.
    """

    out: str
    gsm8k: str | None = None
    variants: int = 2
    words: WordProblems | None = None
    tests: Mapping[str, str] | None = None
    ngram: int = 10
    seed: int = 0

    def write(self) -> Path:
        """Collect, check and write; returns the file.

        Raises:
            ConfigurationError: there is nothing to collect, or a file does not fit.
        """
        questions = [*self._worked(), *self._made()]
        if not questions:
            raise ConfigurationError("give gsm8k=FILE, words.limit=COUNT or both")
        tests = {name: _texts(Path(path)) for name, path in (self.tests or {}).items()}
        overlap = find_overlap(questions, tests, self.ngram)
        kept = [question for question in questions if question.id not in overlap.ids]
        out = Path(self.out).expanduser()
        write_lines(out, (question.to_row() for question in kept))
        _write_report(out, overlap, kept)
        return out

    def _worked(self) -> Iterator[Question]:
        if self.gsm8k is None:
            return
        path = Path(self.gsm8k).expanduser()
        if not path.is_file():
            raise ConfigurationError(f"gsm8k={self.gsm8k}: there is no such file")
        rows = rows_of(path)
        for question in tqdm([*from_gsm8k(rows)], desc="variants", disable=None, leave=False):
            yield _plain(question)
            yield from variants(question, self.variants, self.seed)

    def _made(self) -> Iterator[Question]:
        if self.words is None:
            return
        if self.words.split != "train":
            raise ConfigurationError("words.split must be train")
        for problem in self.words.problems():
            yield Question(
                id=problem.id,
                group=problem.id,
                source="words",
                problem=problem.text,
                answer=str(problem.answer),
                solution=str(problem.meta["solution"]),
            )


def _plain(question: Question) -> Question:
    row = question.to_row() | {"solution": without_marks(question.solution)}
    return Question(**row)


def _texts(path: Path) -> Sequence[str]:
    """The questions of a test file."""
    found = []
    for row in rows_of(path):
        column = next((name for name in _COLUMNS if name in row), None)
        if column is None:
            raise ConfigurationError(f"{path} has none of the columns {', '.join(_COLUMNS)}")
        found.append(str(row[column]))
    return found


def _write_report(out: Path, overlap: Overlap, kept: Sequence[Question]) -> None:
    report = overlap.to_row() | {"kept": dict(Counter(q.source for q in kept))}
    path = out.with_name(out.name + ".overlap.json")
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _log.info("%s: %s; %d left out, see %s", out, report["kept"], report["left_out"], path.name)
