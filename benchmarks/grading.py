"""Right, wrong or unknown: grading that names its grader and counts what it could not decide."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from stepsearch.search.canonical import canonical, is_bracketed, is_prose, normalize, parse_number
from stepsearch.search.canonical import split_list as split
from stepsearch.search.equality_pool import WorkerPool
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.provenance import version
from stepsearch.search.task import Judging, MathTask, Task
from stepsearch.search.types import Problem

_log = logging.getLogger(__name__)
MIN_EXTRACTION_RATE = 0.8


class Grader:
    """Compares answers with gold answers.

    Mathematics is compared in processes that can be killed, so that no answer can hang a run. What
    could not be decided is None: neither right nor wrong.

    Args:
        task: extracts and compares answers.

    Attributes:
        name: the grader and its version, to be stored with every result.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        decides = task.grader if isinstance(task, MathTask | Judging) else task.name
        self.name = f"stepsearch {version()} {decides}"

    def right(self, answer: str | None, gold: str) -> bool | None:
        """Whether an extracted answer is right; no answer is wrong, None is unknown."""
        if answer is None:
            return False
        if isinstance(self.task, Judging):
            return self.task.right(answer, gold)
        return self.task.equal(answer, gold)

    def can_grade(self, gold: str | None) -> bool:
        """Whether anything can equal this gold answer; if not, its problem has to be left out."""
        if gold is None or not gold.strip():
            return False
        if isinstance(self.task, MathTask):
            return bool(canonical(gold)) and _is_mathematics(normalize(gold))
        if isinstance(self.task, Judging):
            return self.task.can_grade(gold)
        return self.task.equal(gold, gold) is True


@cache
def _parser() -> WorkerPool:
    return WorkerPool(num_workers=1, timeout=10.0)


def _is_mathematics(text: str) -> bool:
    """Whether a normal form can be read: as a number, as words, or by math-verify."""
    inner = text.strip("()[]") if is_bracketed(text) and not text.startswith("\\") else text
    if all(parse_number(part) is not None or is_prose(part) for part in split(inner)):
        return True
    return _parser().compare(text, text) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradable:
    """Problems split by whether their gold answer can be graded.

    Attributes:
        problems: those that can.
        excluded: ids of those that cannot; they are in no figure.
    """

    problems: tuple[Problem, ...]
    excluded: tuple[str, ...]


def gradable(
    problems: Iterable[Problem], grader: Grader, *, hint: str = "check benchmark.answer and task"
) -> Gradable:
    """Leave out the problems whose gold answer cannot be read; they would count as wrong.

    Args:
        problems: the problems.
        grader: reads the gold answers.
        hint: what to do when none of them can be read.

    Raises:
        ConfigurationError: no gold answer can be read.
    """
    kept, excluded, is_silent = [], [], True
    for problem in problems:
        is_silent &= problem.answer is None
        if grader.can_grade(problem.answer):
            kept.append(problem)
        else:
            excluded.append(problem.id)
    if not kept:
        raise ConfigurationError(
            f"none of the {len(excluded)} problems has a gold answer; {hint}"
            if is_silent
            else f"none of the {len(excluded)} gold answers can be read as "
            f"task={grader.task.name!r}; {hint}"
        )
    if excluded:
        _log.warning(
            "%d gold answers cannot be read; left out: %s", len(excluded), ", ".join(excluded[:5])
        )
    return Gradable(problems=tuple(kept), excluded=tuple(excluded))


def extraction_alarm(num_answers: int, num: int, what: str = "samples") -> str | None:
    """A warning when so few held an answer that accuracy says little; else None.

    Args:
        num_answers: those with an answer.
        num: all of them.
        what: they are; `problems` have none when their budget ended before any chain did, too.
    """
    if num == 0 or num_answers >= MIN_EXTRACTION_RATE * num:
        return None
    budget = " or the budget, which may end before any chain does" if what == "problems" else ""
    return (
        f"only {num_answers} of {num} {what} ({num_answers / num:.0%}) hold an answer that can be "
        f"read; check the task, the prompt format and the token limits{budget}"
    )


def step_alarm(steps: Sequence[int | None]) -> str | None:
    """A warning when no chain of any problem has a second step to be judged; else None.

    Args:
        steps: of the longest chain of every problem; None where steps are not judged.
    """
    known = [number for number in steps if number is not None]
    if not known or max(known) > 1:
        return None
    return (
        f"no chain of {len(known)} problems has a second step, so that the verifier judges whole "
        "solutions and a search has nothing to prune; check the policy's separator, and that the "
        "model writes it"
    )
