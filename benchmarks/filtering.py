"""`stepsearch filter`: keeps the finished answers that a verifier is sure of."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepsearch.benchmarks.output import require_file
from stepsearch.benchmarks.run_folder import printable, replace_file
from stepsearch.benchmarks.samples import Sample, SampledProblem, read_samples
from stepsearch.benchmarks.scorers import apply_link, parse_scorer, score_missing
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_separator
from stepsearch.search.task import get_task


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """What to keep.

    Attributes:
        samples: the file, as `rerank` reads it.
        out: the file to write, as `rerank` reads it too; None where the caller writes.
        verifier: an expression, see `scorers`.
        minimum: keep samples whose number is at least this.
        links: `NAME=logistic` for scores that are no probabilities.
        task: extracts answers.
        separator: ends a step of a sample's text.
        overrides: `NAME.SETTING=VALUE` of verifiers that are run.

    Raises:
        ConfigurationError: the minimum is no finite number, or `out` is `samples` or cannot be
            written.
    """

    samples: Path
    out: Path | None
    verifier: str
    minimum: float
    links: Sequence[str] = ()
    task: str = "math"
    separator: str = "\n"
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_separator("--separator", self.separator)
        if not math.isfinite(self.minimum):
            raise ConfigurationError(f"--min {self.minimum} must be a finite number")
        if self.out is not None and self.out.resolve() == self.samples.resolve():
            raise ConfigurationError(f"--out {str(self.out)!r} would overwrite the samples")
        if self.out is not None:
            require_file("--out", self.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the samples: `samples` is the sum of those that follow it.

    Attributes:
        problems: in the file.
        problems_kept: with a sample that was kept; only they are written.
        samples: in the file.
        kept: with at least the minimum.
        below: with less.
        unscored: the verifier failed on them.
        no_answer: no answer can be read; their score does not matter.
    """

    problems: int
    problems_kept: int
    samples: int
    kept: int
    below: int
    unscored: int
    no_answer: int


def filter_samples(settings: FilterSettings) -> tuple[str, Counts]:
    """The samples that are kept, with their scores, in their old order, as JSON lines; counts.

    A sample that could not be scored is never kept, whatever the minimum.

    Raises:
        ConfigurationError: a file, verifier or expression does not exist or fit.
        VerifierError: a verifier's model could not be run.
    """
    scorer = parse_scorer(settings.verifier)
    found = read_samples(settings.samples, get_task(settings.task), settings.separator)
    score_missing(found, sorted(scorer.names), settings.overrides)
    for link in settings.links:
        apply_link(found, link)
    scorer.require_probabilities(found.sources)
    verifiers = {name: asdict(source) for name, source in found.sources.items()}
    fates: list[str] = []
    lines = []
    for problem in found.problems:
        kept = []
        for sample in problem.samples:
            value = scorer.value(sample, found.sources)
            fates.append(_fate(sample, value, settings.minimum))
            if fates[-1] == "kept":
                kept.append(_as_row(sample, value))
        if kept:
            row = _head(problem) | {"samples": kept, "verifiers": verifiers}
            row |= {"is_dependent": True} if found.is_dependent else {}
            lines.append(json.dumps(row) + "\n")
    counts = Counts(
        problems=len(found.problems),
        problems_kept=len(lines),
        samples=len(fates),
        **{name: fates.count(name) for name in ("kept", "below", "unscored", "no_answer")},
    )
    text = printable("".join(lines))
    if settings.out is not None:
        replace_file(settings.out, text)
    return text, counts


def _fate(sample: Sample, value: float, minimum: float) -> str:
    if sample.answer is None:
        return "no_answer"
    if math.isnan(value):
        return "unscored"
    return "kept" if value >= minimum else "below"


def _head(problem: SampledProblem) -> dict[str, Any]:
    of = problem.problem
    return {"id": of.id, "problem": of.text, "answer": of.answer}


def _as_row(sample: Sample, value: float) -> dict[str, Any]:
    scores = {name: list(given) if given else None for name, given in sample.scores.items()}
    return {"text": sample.text, "answer": sample.answer, "score": value, "scores": scores}


def render(counts: Counts, settings: FilterSettings) -> str:
    """The counts as a few lines of text."""
    share = counts.kept / counts.samples if counts.samples else 0.0
    return (
        f"{counts.kept} of {counts.samples} samples kept ({share:.1%}): "
        f"{settings.verifier} >= {settings.minimum:g}\n"
        f"dropped: {counts.below} below, {counts.unscored} without a score, "
        f"{counts.no_answer} without an answer\n"
        f"{counts.problems_kept} of {counts.problems} problems have one left"
    )


def as_json(counts: Counts) -> str:
    """The counts as one JSON object."""
    return json.dumps(asdict(counts))
