"""Problems whose answer is a Python function, right when it passes the problem's tests."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, Literal

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.instruction import Instructed
from stepsearch.search.programs import blocks, extract_program, same_program, whole_program
from stepsearch.search.sandbox import UNSAFE, Limits, Outcome, Sandbox, isolation

_MAX_MEMO = 1 << 12
_INSTRUCTION = "Complete this Python function.\n\n{question}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """What decides about a program: the gold answer of a code problem.

    Attributes:
        prompt: the beginning of the program: imports, signature, docstring.
        entry_point: name of the function.
        test: Python source that fails on wrong programs; if it defines `check`, that is called
            with the function.
        canonical_solution: a right answer, where one is known.
    """

    prompt: str
    entry_point: str
    test: str
    canonical_solution: str | None = None

    def as_gold(self) -> str:
        """As the text of a gold answer."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_gold(cls, gold: str) -> CodeTests:
        """Read from the text of a gold answer.

        Raises:
            ValueError: it is none.
        """
        data = json.loads(gold)
        if not isinstance(data, Mapping):
            raise ValueError("not a JSON object")
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(str(error)) from error


class Memo:
    """What came of programs: a run grades an answer once per selection that reads it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Outcome] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        # In another process programs are run again.
        return {k: v for k, v in vars(self).items() if k not in ("_found", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _found={}, _lock=Lock())

    def __repr__(self) -> str:
        return "Memo()"  # what a trace says of it, alike in every process

    def get(self, answer: str, gold: str) -> Outcome | None:
        """What came of a program; None when it was not run."""
        with self._lock:
            return self._found.get((answer, gold))

    def put(self, answer: str, gold: str, outcome: Outcome) -> None:
        """Remember; the oldest is forgotten first."""
        with self._lock:
            while len(self._found) >= _MAX_MEMO:
                del self._found[next(iter(self._found))]
            self._found[answer, gold] = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTask(Instructed):
    """Problems whose answer is a program in Python.

    The gold answer is a text of `CodeTests`. Programs run when they are graded, never during the
    search, and never in this process: see `sandbox`.

    Attributes:
        instruction: as in `Instructed`.
        limits: what a program may use.
        allow_unsafe: run programs without isolation where there is none. They can then do
            everything that this user can.
        memo: what came of programs that were run before.
    """

    instruction: str = _INSTRUCTION
    limits: Limits = field(default_factory=Limits)
    allow_unsafe: bool = False
    memo: Memo = field(default_factory=Memo, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The task's name."""
        return "python"

    @property
    def select(self) -> Literal["best"]:
        """The selection that fits where there is a verifier: programs rarely agree word by word."""
        return "best"

    @property
    def grader(self) -> str:
        """Who decides, with its version: to be stored with every result."""
        return f"tests, Python {platform.python_version()}, isolation: {self._sandbox().name}"

    def extract(self, text: str) -> str | None:
        """The program of a solution; see `extract_program`."""
        return extract_program(text)

    def steps(self, text: str) -> tuple[str, ...]:
        """A solution cut into steps: its logical blocks; see `blocks`."""
        return blocks(text)

    def equal(self, a: str, b: str) -> bool:
        """Whether two programs are the same but for comments and spaces; always decided."""
        return same_program(a, b)

    def grade(self, text: str, gold: str) -> bool | None:
        """Whether the solution's program passes the tests; see `Task.grade`."""
        if not gold.strip():
            return None
        answer = self.extract(text)
        return False if answer is None else self.right(answer, gold)

    def right(self, answer: str, gold: str) -> bool | None:
        """Whether a program passes the tests, within the limits; None when they could not be run.

        Raises:
            ConfigurationError: programs cannot be run apart on this machine.
        """
        outcome = self.outcome(answer, gold)
        return None if outcome is None else outcome.status == "passed"

    def outcome(self, answer: str, gold: str) -> Outcome | None:
        """What came of a program and its tests; None when they could not be run.

        Raises:
            ConfigurationError: programs cannot be run apart on this machine.
        """
        known = self.memo.get(answer, gold)
        if known is not None:
            return known
        tests = CodeTests.from_gold(gold)
        program = whole_program(tests.prompt, answer, tests.entry_point)
        found = self._sandbox().run(program, tests.test, tests.entry_point, self.limits)
        if found is not None:
            self.memo.put(answer, gold, found)
        return found

    def can_grade(self, gold: str) -> bool:
        """Whether tests can be read; where there is a solution of theirs, it has to pass them.

        Raises:
            ConfigurationError: programs cannot be run apart on this machine.
        """
        self._sandbox()
        try:
            tests = CodeTests.from_gold(gold)
        except ValueError:
            return False
        solution = tests.canonical_solution
        return solution is None or self.right(solution, gold) is True

    def _sandbox(self) -> Sandbox:
        try:
            return isolation()
        except ConfigurationError as error:
            if self.allow_unsafe:
                return UNSAFE
            raise ConfigurationError(f"task=python: {error}") from None
