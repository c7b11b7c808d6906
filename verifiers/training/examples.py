"""Labelled solutions, and the ids, positions and labels that a scorer is trained on.

The encoders are those of the verifiers, so that what is trained on is what is read later, token for
token.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.encoders import chain_encoder, solution_encoder
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.stepwise import chain_of

Label = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One solution with its labels.

    Attributes:
        id: of the question.
        group: what is held out together.
        problem: the question's text.
        steps: the solution's steps.
        labels: one per step, from 0 (wrong) to 1 (right); None where nobody knows.
        outcome: whether the answer is right, as 0 or 1; None where unknown.
        answer: what the solution answers; None when it holds none.
    """

    id: str
    group: str
    problem: str
    steps: tuple[str, ...]
    labels: tuple[Label, ...]
    outcome: float | None
    answer: str | None = None


class Encoded(NamedTuple):
    """What a scorer is trained on.

    Attributes:
        ids: token ids.
        positions: where scores are read, increasing.
        labels: one per position.
        source: which of the solutions it is.
    """

    ids: list[int]
    positions: list[int]
    labels: list[Label]
    source: int


def labelled_of(
    rows: Iterable[dict[str, Any]], source: str | Path = "the labelled solutions"
) -> Iterator[Labelled]:
    """Labelled solutions of a labelled file: one row per question; see docs/training.md.

    Args:
        rows: of the file.
        source: the file, for messages.

    Raises:
        ConfigurationError: a row has another form, or a label is no number from 0 to 1.
    """
    for number, row in enumerate(rows, start=1):
        try:
            for solution in row["solutions"]:
                for label in (*solution["labels"], solution.get("outcome")):
                    _require_label(label, f"{source}, row {number}")
                yield Labelled(
                    id=str(row["id"]),
                    group=str(row.get("group", row["id"])),
                    problem=row["problem"],
                    steps=tuple(solution["steps"]),
                    labels=tuple(solution["labels"]),
                    outcome=solution.get("outcome"),
                    answer=solution.get("answer"),
                )
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{source}, row {number} has no {error}; `stepsearch label` writes rows of "
                '{"id", "problem", "solutions": [{"steps", "labels", "outcome"}]}'
            ) from error


def _require_label(label: Any, where: str) -> None:
    is_number = isinstance(label, int | float) and not isinstance(label, bool)
    if label is not None and not (is_number and 0 <= label <= 1):
        raise ConfigurationError(
            f"{where}: {label!r} is no label; a label is a number from 0 to 1, or null"
        )


def balanced(solutions: Sequence[Labelled], per_class: int, seed: int) -> list[Labelled]:
    """At most so many right and so many wrong solutions of every question, drawn by a hash.

    Where one class has fewer, the other is cut to as many or to one, whichever is more: questions
    that are always right or always wrong teach little about telling the two apart. Solutions of
    unknown outcome all stay. Equal texts count once.
    """
    by_question: dict[str, list[Labelled]] = defaultdict(list)
    for solution in dict.fromkeys(solutions):
        by_question[solution.id].append(solution)
    kept = []
    for name, many in by_question.items():
        rng = random.Random(blake2b(f"{seed}\x00{name}".encode(), digest_size=16).digest())
        rng.shuffle(many)
        right = [s for s in many if s.outcome is not None and s.outcome >= 0.5]
        wrong = [s for s in many if s.outcome is not None and s.outcome < 0.5]
        count = min(per_class, max(1, min(len(right), len(wrong))))
        kept += right[:count] + wrong[:count] + [s for s in many if s.outcome is None]
    return kept


Encoder = Callable[[Labelled], tuple[list[int], list[int], list[Label]] | ScoreFailure]


def step_encoder(format: StepFormat, tokenizer: PreTrainedTokenizerBase) -> Encoder:
    """Encodes all steps, each with its label at its mark."""
    encode, _ = chain_encoder(format, tokenizer)

    def encoder(solution: Labelled) -> tuple[list[int], list[int], list[Label]] | ScoreFailure:
        found = encode(chain_of(solution.problem, solution.steps))
        if isinstance(found, ScoreFailure):
            return found
        return found.ids, found.positions, list(solution.labels)

    return encoder


def outcome_encoder(format: OutcomeFormat, tokenizer: PreTrainedTokenizerBase) -> Encoder:
    """Encodes the whole solution, with the outcome at its last token."""
    encode, _ = solution_encoder(format, tokenizer)

    def encoder(solution: Labelled) -> tuple[list[int], list[int], list[Label]] | ScoreFailure:
        found = encode(chain_of(solution.problem, solution.steps))
        if isinstance(found, ScoreFailure):
            return found
        return found.ids, found.positions, [solution.outcome]

    return encoder


def encode_all(
    solutions: Sequence[Labelled], encoder: Encoder, max_length: int
) -> tuple[list[Encoded], Counter[str]]:
    """Encode solutions; says how many were left out and why, nothing is cut.

    Raises:
        ConfigurationError: a solution has not one label per step.
    """
    found, left_out = [], Counter[str]()
    for index, solution in enumerate(solutions):
        if len(solution.labels) != len(solution.steps):
            raise ConfigurationError(
                f"a solution of {solution.id!r} has {len(solution.steps)} steps and "
                f"{len(solution.labels)} labels"
            )
        encoded = encoder(solution) if solution.steps else ScoreFailure("malformed", "no steps")
        if isinstance(encoded, ScoreFailure):
            left_out[encoded.kind] += 1
        elif len(encoded[0]) > max_length:
            left_out["too_long"] += 1
        elif all(label is None for label in encoded[2]):
            left_out["unlabelled"] += 1
        else:
            found.append(Encoded(*encoded, index))
    return found, left_out
