"""Tasks: how a question is worded, where the answer stands and when two answers are equal."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Literal, Protocol, runtime_checkable

from stepsearch.search.answers import choice_letter, extract_choice, extract_line, extract_math
from stepsearch.search.equality import MathEquality, shared_equality
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.instruction import Instructed
from stepsearch.search.python_task import PythonTask


class Task(Protocol):
    """Owns the wording of the question and everything about its answer."""

    @property
    def name(self) -> str:
        """The task's name in configurations and results."""
        ...

    def word(self, question: str) -> str:
        """The wording of the question that the policy reads."""
        ...

    def extract(self, text: str) -> str | None:
        """The answer of a finished solution; None when it holds none. None never votes."""
        ...

    def equal(self, a: str, b: str) -> bool | None:
        """Whether two answers are equal, in any order; None when it could not be decided."""
        ...

    def grade(self, text: str, gold: str) -> bool | None:
        """Whether a solution's answer equals the gold answer.

        False when no answer can be extracted; None when the gold answer is blank or equality could
        not be decided, which is neither right nor wrong and has to be counted apart.
        """
        ...


@runtime_checkable
class Judging(Protocol):
    """A task that knows more of its gold answers than whether another answer equals them."""

    @property
    def grader(self) -> str:
        """Who decides, with its version: to be stored with every result."""
        ...

    def right(self, answer: str, gold: str) -> bool | None:
        """Whether an answer is right; None when it could not be decided."""
        ...

    def can_grade(self, gold: str) -> bool:
        """Whether anything can be right by this gold answer."""
        ...


@runtime_checkable
class Selecting(Protocol):
    """A task with a selection of its own, used where there is a verifier and none is asked for."""

    @property
    def select(self) -> Literal["best", "weighted", "majority"]:
        """The selection."""
        ...


@runtime_checkable
class Cutting(Protocol):
    """A task that knows the steps of a text: better than a separator does."""

    def steps(self, text: str) -> tuple[str, ...]:
        """The text cut into steps; joined, they are the text."""
        ...


def _grade(task: Task, text: str, gold: str) -> bool | None:
    if not gold.strip():
        return None
    answer = task.extract(text)
    return False if answer is None else task.equal(answer, gold)


@dataclass(frozen=True, slots=True, kw_only=True)
class MathTask(Instructed):
    r"""Problems whose answer is a number or a formula.

    Attributes:
        instruction: as in `Instructed`.
        equality: decides on pairs of answers; all tasks share one by default.
    """

    equality: MathEquality = field(default_factory=shared_equality, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The task's name."""
        return "math"

    @property
    def grader(self) -> str:
        """Who decides where rules do not, with its version: to be stored with every result."""
        return f"math-verify {version('math-verify')}"

    def extract(self, text: str) -> str | None:
        r"""The last complete `\boxed{}`, else what follows `####`, else "the answer is"."""
        return extract_math(text)

    def equal(self, a: str, b: str) -> bool | None:
        """Whether two answers are equal; None when it could not be decided.

        Raises:
            ConfigurationError: math-verify is needed and cannot be started.
        """
        return self.equality(a, b)

    def grade(self, text: str, gold: str) -> bool | None:
        """Whether the solution's answer equals `gold`; see `Task.grade`."""
        return _grade(self, text, gold)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactTask(Instructed):
    """Problems whose answer is a text, equal when it agrees but for case, spaces and a full stop.

    Attributes:
        instruction: as in `Instructed`.
    """

    @property
    def name(self) -> str:
        """The task's name."""
        return "exact"

    def extract(self, text: str) -> str | None:
        """What follows `####`, else "the answer is", else the last line."""
        return extract_line(text)

    def equal(self, a: str, b: str) -> bool:
        """Whether the normalised texts agree; always decided."""
        return _plain(a) == _plain(b)

    def grade(self, text: str, gold: str) -> bool | None:
        """Whether the solution's answer equals `gold`; see `Task.grade`."""
        return _grade(self, text, gold)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultipleChoiceTask(Instructed):
    """Problems whose answer is one of the letters A to J.

    Attributes:
        instruction: as in `Instructed`.
    """

    @property
    def name(self) -> str:
        """The task's name."""
        return "multiple_choice"

    def extract(self, text: str) -> str | None:
        """The capital letter that was chosen."""
        return extract_choice(text)

    def equal(self, a: str, b: str) -> bool | None:
        """Whether two answers choose the same letter; None when one of them holds no letter."""
        x, y = choice_letter(a), choice_letter(b)
        return None if x is None or y is None else x == y

    def grade(self, text: str, gold: str) -> bool | None:
        """Whether the solution's answer equals `gold`; see `Task.grade`."""
        return _grade(self, text, gold)


_TASKS: dict[str, Callable[[], Task]] = {
    "math": MathTask,
    "exact": ExactTask,
    "multiple_choice": MultipleChoiceTask,
    "python": PythonTask,
}


def get_task(name: str) -> Task:
    """A task by name, with its defaults.

    Raises:
        ConfigurationError: there is no task of that name.
    """
    if name in _TASKS:
        return _TASKS[name]()
    near = difflib.get_close_matches(name, _TASKS, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigurationError(f"task={name!r} is not known; {hint}Known: {', '.join(_TASKS)}")


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".").rstrip().casefold()
