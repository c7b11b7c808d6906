"""Word problems made on the spot: nothing to download, solutions known step by step.

Whether a problem belongs to training or test is decided by a hash of its equations, whatever the
seed. So no test problem can ever be met in training, not even under other names.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stepsearch.benchmarks.stories import Story, events_for
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import whole
from stepsearch.search.types import Problem

Split = Literal["train", "test"]
_TEST_BYTES = 64  # of 256: a quarter of all problems
_MAX_TRIES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WordProblems:
    """Problems about one quantity that changes step by step.

    Attributes:
        name: begins the id of every problem.
        split: `train` or `test`; the two have no problem in common, whatever the seeds.
        limit: how many problems.
        seed: which ones; problem i is the same for every `limit`.
        steps: fewest and most equations of a solution.
        operations: which of `+-*/` may occur.
        distractors: fewest and most sentences with numbers that do not matter.
        difficulty: lowest and highest size of the numbers, 1 (to 10) to 3 (to 500).

    Raises:
        ConfigurationError: a setting is out of range.

    `Problem.meta` tells `steps`, `distractors`, `difficulty`, `operations` and the `solution`, one
    step per line with `#### answer` at the end.
    """

    name: str = "words"
    split: Split = "test"
    limit: int = 200
    seed: int = 0
    steps: Sequence[int] = (2, 5)
    operations: str = "+-*/"
    distractors: Sequence[int] = (0, 2)
    difficulty: Sequence[int] = (1, 3)

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise ConfigurationError(f"benchmark.split={self.split!r} must be train or test")
        whole("benchmark.limit", self.limit, least=1)
        if not self.operations or set(self.operations) - set("+-*/"):
            raise ConfigurationError(f"benchmark.operations={self.operations!r} must be of +-*/")
        for key, low, high in (("steps", 1, 12), ("distractors", 0, 8), ("difficulty", 1, 3)):
            given = getattr(self, key)
            if len(given) != 2 or not low <= given[0] <= given[1] <= high:
                raise ConfigurationError(
                    f"benchmark.{key}={list(given)} must be [fewest, most] within {low} and {high}"
                )

    def problems(self) -> list[Problem]:
        """The problems, no question twice.

        Raises:
            ConfigurationError: the settings do not allow so many different problems.
        """
        found: dict[str, Problem] = {}
        for number in range(self.limit):
            for story in self._stories(number):
                if story.question not in found:
                    found[story.question] = self._problem(number, story)
                    break
        return list(found.values())

    def _stories(self, number: int) -> Iterator[Story]:
        """Stories of this split, tried one after the other."""
        for attempt in range(_MAX_TRIES):
            key = f"{self.split}\x00{self.seed}\x00{number}\x00{attempt}"
            rng = random.Random(hashlib.blake2b(key.encode(), digest_size=16).digest())
            story = self._story(rng)
            if story is not None and split_of(story.equations) == self.split:
                yield story
        raise ConfigurationError(
            f"benchmark.limit={self.limit}: these settings do not give so many different problems; "
            "allow more steps, operations or difficulty"
        )

    def _story(self, rng: random.Random) -> Story | None:
        """A story, or None when it ran into numbers that nothing can be done with."""
        story = Story(rng, rng.randint(*self.difficulty))
        steps = rng.randint(*self.steps)
        while (left := steps - len(story.equations)) > 0:
            events = events_for(story, self.operations, left)
            if not events:
                return None
            rng.choice(events)(story)
        story.finish(rng.randint(*self.distractors))
        return story

    def _problem(self, number: int, story: Story) -> Problem:
        return Problem(
            text=story.question,
            id=f"{self.name}-{self.split}-{self.seed}-{number}",
            answer=str(story.amount),
            meta={
                "steps": len(story.equations),
                "distractors": story.num_distractors,
                "difficulty": story.level,
                "operations": "".join(sorted({e.split()[1] for e in story.equations})),
                "solution": "\n".join([*story.solution, f"#### {story.amount}"]),
            },
        )


def split_of(equations: Sequence[str]) -> Split:
    """The split that a problem with these equations belongs to."""
    digest = hashlib.blake2b(";".join(equations).encode(), digest_size=1).digest()
    return "test" if digest[0] < _TEST_BYTES else "train"
