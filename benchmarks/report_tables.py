"""The tables of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np

from stepsearch.benchmarks.diagnostics import (
    auroc,
    auroc_within,
    calibration,
    calibration_error,
    correlation_within,
    coverage,
)
from stepsearch.benchmarks.equal_compute import Baseline, compare, take
from stepsearch.benchmarks.grading import Grader
from stepsearch.benchmarks.readout import Ballots, Reader, collect, values_of
from stepsearch.benchmarks.run_data import COSTS, Floats, Method
from stepsearch.benchmarks.run_folder import printable
from stepsearch.benchmarks.samples import SampledProblem, SampleSet, read_samples
from stepsearch.benchmarks.scorers import parse_scorer
from stepsearch.benchmarks.statistics import Estimate, PairedBootstrap, accuracies
from stepsearch.benchmarks.votes import NO_ANSWER
from stepsearch.search.task import Task

Table = list[dict[str, Any]]
_MAX_GROUPS = 10
bootstrap_of = lru_cache(maxsize=32)(PairedBootstrap)  # the draws depend on the count only
_COVERAGES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def accuracy_table(methods: Iterable[Method]) -> Table:
    """Accuracy and mean costs per problem, all with intervals over problems."""
    table = []
    for method in methods:
        bootstrap = bootstrap_of(len(method.ids()))
        row: dict[str, Any] = {
            "method": method.label,
            "series": method.series,
            "select": method.first.settings.get("select") or "default",
            "seeds": len(method.runs),
            "problems": len(method.ids()),
            "failed": len({name for run in method.runs for name in run.failed}),
        }
        row |= spread("accuracy", accuracies(method.outcomes())[0])
        row |= spread("pass", accuracies(method.outcomes("right_pass"))[0])
        row["undecided"] = float(method.outcomes().undecided.sum())
        for name in COSTS:
            cost = method.cost(name)
            if cost is not None:
                row |= spread(name, bootstrap.mean(cost))
        table.append(row)
    return table


def difficulty_table(methods: Iterable[Method]) -> Table:
    """Accuracy by what the data set knows about its problems."""
    table = []
    for method in methods:
        ids, outcomes = method.ids(), method.outcomes()
        told = {row["id"]: json.loads(row["meta"]) for row in method.first.rows}
        meta = [told[name] for name in ids]
        for key in sorted({key for entry in meta for key in entry}):
            values = [printable(str(entry.get(key))) for entry in meta]
            if not 1 < len(set(values)) <= min(_MAX_GROUPS, len(values) // 2):
                continue  # one group, or hardly more than a problem in each, as with a solution
            for value in sorted(set(values)):
                rows = [name for name, v in zip(ids, values, strict=True) if v == value]
                estimate = accuracies(take(outcomes, ids, rows))[0]
                table.append(
                    {"method": method.label, "by": key, "value": value, "problems": len(rows)}
                    | spread("accuracy", estimate)
                )
    return table


class Samples:
    """The samples of a method's first run, graded and scored; see `read_samples`.

    Args:
        method: the method.
        task: extracts and compares answers.

    Attributes:
        method: the method.
        found: the samples by problem.
        ballots: their answers.
    """

    def __init__(self, method: Method, task: Task) -> None:
        self.method = method
        self.found: SampleSet = read_samples(method.first.traces, task)
        ids = {row["id"] for row in method.first.rows}
        self.found.problems = [p for p in self.found.problems if printable(p.problem.id) in ids]
        self.ballots: Ballots = collect(self.found.problems, Grader(task))

    @property
    def problems(self) -> list[SampledProblem]:
        """The problems with their samples."""
        return self.found.problems

    @property
    def verifiers(self) -> list[str]:
        """Verifiers that scored the samples."""
        return sorted(self.found.sources)

    def baseline(self) -> Baseline:
        """The samples of independent sampling as a baseline at every number of samples."""
        reader = Reader(self.ballots)
        rows = [reader.passed(), reader.majority()]
        for name in self.verifiers:
            values = values_of(self.problems, parse_scorer(name), self.found.sources)
            rows.append(reader.best(name, values))
            if self.found.sources[name].range == "probability":
                rows.append(reader.weighted(name, values))
        return Baseline(
            method=self.method,
            ids=[printable(p.problem.id) for p in self.problems],
            rows=rows,
            num_samples=self.ballots.counts.tolist(),
        )

    def right(self) -> Floats:
        """Whether each sample is right: 1, 0, or NaN; shape (problems, width)."""
        verdicts: Floats = np.take_along_axis(self.ballots.right, self.ballots.answers, axis=1)
        return np.where(self.ballots.answers == NO_ANSWER, 0.0, verdicts)


def equal_table(method: Method, baseline: Baseline) -> Table:
    """A method against the readouts of a baseline at the same cost."""
    table = []
    for found in compare(method, baseline):
        row: dict[str, Any] = {
            "method": found.method,
            "baseline": found.readout,
            "equal": found.axis,
            "cost": found.cost,
            "samples": found.samples,
        }
        row |= spread("accuracy", found.accuracy)
        if found.baseline is None or found.difference is None:
            row["note"] = "the baseline has too few samples to cost as much"
        else:
            row |= spread("baseline_accuracy", found.baseline)
            row |= spread("difference", found.difference)
        table.append(row)
    return table


def samples_table(baseline: Baseline) -> Table:
    """Accuracy of each readout at every number of samples: over-optimisation shows as a fall."""
    return [
        {"method": baseline.method.label, "readout": row.label, "samples": k + 1}
        | spread("accuracy", estimate)
        for row in baseline.rows
        for k, estimate in enumerate(accuracies(row.outcomes))
    ]


def verifier_table(samples: Samples) -> tuple[Table, Table, Table]:
    """One row per verifier, its calibration bins, and its discrimination by depth."""
    summary, bins_table, depths = [], [], []
    right = samples.right()
    for name in samples.verifiers:
        values = values_of(samples.problems, parse_scorer(name), samples.found.sources)
        use = ~np.isnan(values) & ~np.isnan(right)
        if not use.any():
            continue
        scores, hits, problem = values[use], right[use] == 1, np.nonzero(use)[0]
        lengths = _lengths(samples.problems, right.shape)[use]
        key = {"method": samples.method.label, "verifier": name}
        row: dict[str, Any] = {
            **key,
            "samples": len(scores),
            "right": float(hits.mean()),
            "auroc": auroc(scores, hits),
            "auroc_within_problems": auroc_within(scores, hits, problem),
            "score_to_length": correlation_within(scores, lengths, problem),
            "right_to_length": correlation_within(hits.astype(float), lengths, problem),
        }
        if samples.found.sources[name].range == "probability":
            bins = calibration(scores, hits)
            row["calibration_error"] = calibration_error(bins)
            bins_table += [{**key, **asdict(b)} for b in bins]
        summary.append(row)
        depths += [{**key, **entry} for entry in _by_depth(samples, name, right)]
    return summary, bins_table, depths


def _lengths(problems: Sequence[SampledProblem], shape: tuple[int, ...]) -> Floats:
    """Characters of every sample."""
    lengths = np.zeros(shape)
    for row, problem in enumerate(problems):
        for column, sample in enumerate(problem.samples):
            lengths[row, column] = len(sample.text)
    return lengths


def _by_depth(samples: Samples, name: str, right: Floats) -> Table:
    """How well the score after so many steps tells how the chain will end."""
    found: dict[int, list[tuple[float, bool, int]]] = {}
    for row, problem in enumerate(samples.problems):
        for column, sample in enumerate(problem.samples):
            given = sample.scores.get(name) or ()
            if len(given) != len(sample.steps) or np.isnan(right[row, column]):
                continue
            for depth, score in enumerate(given, start=1):
                found.setdefault(depth, []).append((score, right[row, column] == 1, row))
    table = []
    for depth in sorted(found):
        scores, hits, rows = (np.array(part) for part in zip(*found[depth], strict=True))
        table.append(
            {
                "depth": depth,
                "steps": len(hits),
                "auroc": auroc(scores, hits),
                "auroc_within_problems": auroc_within(scores, hits, rows),
            }
        )
    return table


def coverage_table(methods: Iterable[Method]) -> Table:
    """Accuracy on the problems answered when the least certain are left unanswered.

    Shares are of all problems whose answers can be judged, answered or not.
    """
    table = []
    for method in methods:
        gradable = [r for r in method.first.rows if r["right"] != ""]
        answered = [r for r in gradable if r["score"] != "" and r["answer"] != ""]
        if not answered:
            table.append({"method": method.label, "coverage": 0.0, "accuracy": math.nan})
            continue
        scores = np.array([float(r["score"]) for r in answered])
        shares, accuracy = coverage(scores, np.array([r["right"] == "1" for r in answered]))
        shares *= len(answered) / len(gradable)
        places = np.searchsorted(shares, np.array(_COVERAGES) - 1e-9)
        for at in dict.fromkeys(np.minimum(places, len(shares) - 1).tolist()):
            table.append(
                {
                    "method": method.label,
                    "coverage": float(shares[at]),
                    "accuracy": float(accuracy[at]),
                }
            )
    return table


def spread(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as three columns."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
