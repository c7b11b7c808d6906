"""`stepsearch rerank`: verifiers against each other and against a vote, on the same samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepsearch.benchmarks.grading import Grader, extraction_alarm, gradable
from stepsearch.benchmarks.readout import Reader, Row, collect, values_of
from stepsearch.benchmarks.samples import SampleSet, read_samples
from stepsearch.benchmarks.scorers import Scorer, apply_link, parse_scorer, score_missing
from stepsearch.benchmarks.statistics import (
    Estimate,
    McNemar,
    PairedBootstrap,
    accuracies,
    mcnemar,
)
from stepsearch.search.aggregate import AGGREGATIONS
from stepsearch.search.contracts import Aggregation
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_separator
from stepsearch.search.task import get_task

_log = logging.getLogger(__name__)
SELECTIONS = ("weighted", "best", "ties")
_GOLD = (
    'lines of samples have it as "answer", traces when the problem had one (Problem(answer=...), '
    "`stepsearch bench`); how it is read depends on --task"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankSettings:
    """What to read out of which samples.

    Attributes:
        samples: the file.
        verifiers: expressions, see `scorers`.
        sizes: numbers of samples to show, the largest of which McNemar's test is about; empty for
            powers of 4 and the largest there is.
        aggregations: read out every expression with each of these; empty for the verifiers' own.
        selections: of `weighted`, `best` and `ties`; `pass` and `majority` are always there.
        links: `NAME=logistic` for scores that are no probabilities.
        against: label of the row that all others are compared with.
        task: extracts and compares answers.
        separator: ends a step of a sample's text.
        is_disjoint: the mean over disjoint groups of N samples instead of all subsets.
        num_orders: seeded orders for the rows without an exact mean.
        num_resamples: of the bootstrap.
        seed: of both.
        overrides: `NAME.SETTING=VALUE` of verifiers that are run.
    """

    samples: Path
    verifiers: Sequence[str] = ()
    sizes: Sequence[int] = ()
    aggregations: Sequence[Aggregation] = ()
    selections: Sequence[str] = SELECTIONS
    links: Sequence[str] = ()
    against: str = "majority"
    task: str = "math"
    separator: str = "\n"
    is_disjoint: bool = False
    num_orders: int = 256
    num_resamples: int = 10_000
    seed: int = 0
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_separator("--separator", self.separator)
        for name, given, known in (
            ("select", self.selections, SELECTIONS),
            ("aggregation", self.aggregations, AGGREGATIONS),
        ):
            if unknown := [value for value in given if value not in known]:
                raise ConfigurationError(
                    f"--{name} {unknown[0]!r} is not one of {', '.join(known)}"
                )
        if wrong := [size for size in self.sizes if size < 1]:
            raise ConfigurationError(f"--n {wrong[0]} must be at least 1")
        if self.seed < 0:
            raise ConfigurationError(f"--seed {self.seed} must be at least 0")
        for name in ("num_orders", "num_resamples"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row with its statistics; entry N - 1 of every list is for N samples.

    Attributes:
        row: the row.
        accuracy: with intervals over problems.
        difference: accuracy minus that of the row it is compared with, paired; empty for itself.
        test: McNemar's test against that row with the first samples as they stand, as many as the
            largest size, over the problems that both decided.
    """

    row: Row
    accuracy: list[Estimate]
    difference: list[Estimate]
    test: McNemar | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """The result.

    Attributes:
        settings: what was asked for.
        lines: one per row.
        num_problems: problems in the figures.
        excluded: ids of problems whose gold answer cannot be read.
        sizes: numbers of samples to show, in ascending order.
        max_samples: samples of the largest problem.
        num_short: problems with samples, but fewer than the largest has.
        num_empty: problems without any; they have no answer.
        num_samples, num_answers: samples, and those that hold an answer.
        unscored: by verifier, samples it has no score for.
        grader: who graded.
        notes: what a reader of the figures must know.
    """

    settings: RerankSettings
    lines: list[Line]
    num_problems: int
    excluded: tuple[str, ...]
    sizes: list[int]
    max_samples: int
    num_short: int
    num_empty: int
    num_samples: int
    num_answers: int
    unscored: Mapping[str, int]
    grader: str
    notes: list[str]


def rerank(settings: RerankSettings) -> Reranking:
    """Read out the samples of a file in every way asked for.

    Raises:
        ConfigurationError: a file, verifier, selection or expression does not exist or fit.
        VerifierError: a verifier's model could not be run.
    """
    scorers = [
        parse_scorer(text, aggregation)
        for text in dict.fromkeys(settings.verifiers)
        for aggregation in settings.aggregations or (None,)
    ]
    grader = Grader(get_task(settings.task))
    found = read_samples(settings.samples, grader.task, settings.separator)
    names = sorted({name for scorer in scorers for name in scorer.names})
    kept = gradable([p.problem for p in found.problems], grader, hint=_GOLD)
    found.problems = [p for p in found.problems if p.problem.id not in set(kept.excluded)]
    sizes = _sizes(settings.sizes, max(1, *(len(p.samples) for p in found.problems)))
    score_missing(found, names, settings.overrides)
    for link in settings.links:
        apply_link(found, link)
    for scorer in scorers:
        scorer.require_steps(found.sources)
        scorer.require_probabilities(found.sources)
    samples = [sample for problem in found.problems for sample in problem.samples]
    _log.info("grading %d samples of %d problems", len(samples), len(found.problems))
    ballots = collect(found.problems, grader)
    reader = Reader(
        ballots,
        num_orders=settings.num_orders,
        seed=settings.seed,
        is_disjoint=settings.is_disjoint,
    )
    rows, notes = _rows(settings, reader, scorers, found)
    num_answers = sum(sample.answer is not None for sample in samples)
    if alarm := extraction_alarm(num_answers, len(samples)):
        notes.append(alarm)
    return Reranking(
        settings=settings,
        lines=_compare(rows, settings, sizes[-1]),
        num_problems=len(found.problems),
        excluded=kept.excluded,
        sizes=sizes,
        max_samples=ballots.width,
        num_short=sum(0 < len(p.samples) < ballots.width for p in found.problems),
        num_empty=sum(not p.samples for p in found.problems),
        num_samples=len(samples),
        num_answers=num_answers,
        unscored={name: sum(not s.scores.get(name) for s in samples) for name in names},
        grader=grader.name,
        notes=notes,
    )


def _sizes(asked: Sequence[int], largest: int) -> list[int]:
    """The sizes asked for, or 1, 4, 16, ... and the largest.

    Raises:
        ConfigurationError: no problem has so many samples.
    """
    if asked and max(asked) > largest:
        raise ConfigurationError(
            f"--n {max(asked)} is more than the {largest} samples of the largest problem"
        )
    powers = (4**i for i in range(largest.bit_length()))
    return sorted({*asked} or {*(n for n in powers if n < largest), largest})


def _rows(
    settings: RerankSettings, reader: Reader, scorers: Sequence[Scorer], found: SampleSet
) -> tuple[list[Row], list[str]]:
    rows, notes = [reader.passed(), reader.majority()], []
    if found.is_dependent:
        notes.append(
            "these samples come from a tree search, or from one that stops early, and depend on "
            "one another: figures for fewer than all of them are not those of a smaller search"
        )
    for scorer in scorers:
        values = values_of(found.problems, scorer, found.sources)
        for selection in settings.selections:
            if selection != "weighted":
                rows.append(getattr(reader, selection)(scorer.label, values))
            elif scorer.is_probability(found.sources):
                rows.append(reader.weighted(scorer.label, values))
            else:
                name = min(n for n in scorer.names if found.sources[n].range != "probability")
                notes.append(
                    f"no weighted vote by {scorer.label}: {name} has scores outside [0, 1]; "
                    f"give --link {name}=logistic"
                )
    return sorted(rows, key=lambda row: _ORDER.index(row.selection)), notes


_ORDER = ("pass", "majority", *SELECTIONS)


def _compare(rows: Sequence[Row], settings: RerankSettings, size: int) -> list[Line]:
    base = next((row for row in rows if row.label == settings.against), None)
    if base is None:
        raise ConfigurationError(
            f"--against {settings.against!r} is not one of: {', '.join(row.label for row in rows)}"
        )
    bootstrap = PairedBootstrap(
        len(base.in_order), num_resamples=settings.num_resamples, seed=settings.seed
    )
    return [
        Line(
            row=row,
            accuracy=accuracies(row.outcomes),
            difference=[] if row is base else bootstrap.difference(row.outcomes, base.outcomes),
            test=None if row is base else _test(row, base, size),
        )
        for row in rows
    ]


def _test(row: Row, base: Row, size: int) -> McNemar:
    a, b = row.in_order[:, size - 1], base.in_order[:, size - 1]
    decided = ~(np.isnan(a) | np.isnan(b))
    return mcnemar(a[decided] == 1, b[decided] == 1)


def as_json(result: Reranking) -> dict[str, Any]:
    """The whole result as plain data; lists have one entry per number of samples."""
    settings = asdict(result.settings)
    settings["samples"] = str(result.settings.samples)
    return {
        "settings": settings,
        "num_problems": result.num_problems,
        "excluded": list(result.excluded),
        "max_samples": result.max_samples,
        "mcnemar_samples": result.sizes[-1],
        "num_short": result.num_short,
        "num_empty": result.num_empty,
        "num_samples": result.num_samples,
        "num_answers": result.num_answers,
        "unscored": dict(result.unscored),
        "grader": result.grader,
        "notes": result.notes,
        "rows": [_line_as_json(line) for line in result.lines],
    }


def _line_as_json(line: Line) -> dict[str, Any]:
    undecided = line.row.outcomes.undecided.sum(axis=0)
    return {
        "label": line.row.label,
        "selection": line.row.selection,
        "verifier": line.row.scorer or None,
        "exact": line.row.is_exact,
        "accuracy": _lists(line.accuracy),
        "difference": _lists(line.difference),
        "mcnemar": None if line.test is None else asdict(line.test),
        "undecided": undecided.tolist(),
    }


def _lists(estimates: Sequence[Estimate]) -> dict[str, list[float | None]]:
    return {
        name: [None if np.isnan(v) else v for v in (getattr(e, name) for e in estimates)]
        for name in ("value", "low", "high")
    }
