"""Finished samples with their scores, from sample files or from our own traces."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from stepsearch.benchmarks.datasets import as_text
from stepsearch.benchmarks.run_folder import FAILED_STOPS
from stepsearch.search.aggregate import AGGREGATIONS, chain_scores
from stepsearch.search.contracts import Aggregation, Range, VerifierSpec
from stepsearch.search.errors import ConfigurationError, TraceError
from stepsearch.search.scores import bounds
from stepsearch.search.select import candidates
from stepsearch.search.task import Cutting, Task
from stepsearch.search.trace import Trace, from_json
from stepsearch.search.types import Problem

_log = logging.getLogger(__name__)

Scores = tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class Sample:
    """One solution, finished or cut.

    Attributes:
        steps: its text, cut into steps.
        answer: the extracted answer; None when it holds none, or its chain was left open.
        scores: a verifier's scores by step, or one score; None where scoring failed.
    """

    steps: tuple[str, ...]
    answer: str | None
    scores: dict[str, Scores | None]

    @property
    def text(self) -> str:
        """The whole solution."""
        return "".join(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProblem:
    """A problem with its samples."""

    problem: Problem
    samples: list[Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSource:
    """What is known about the scores of one verifier.

    Attributes:
        aggregation: how step scores become one number by default.
        range: what numbers they are.
        is_whole: there is one number for a solution, though the verifier judges steps: it was a
            member of an ensemble that does not guide.
    """

    aggregation: Aggregation = "last"
    range: Range = "probability"
    is_whole: bool = False

    def __str__(self) -> str:
        whole = ", one for a solution" if self.is_whole else ""
        return f"of range {self.range!r} and aggregation {self.aggregation!r}{whole}"


@dataclass(slots=True, kw_only=True)
class SampleSet:
    """All samples of a file.

    Attributes:
        problems: the problems.
        sources: verifiers by name.
        is_dependent: some samples come from a search in which they, or their number, depend on
            one another: a tree search, or one that stops when its answer is settled.
    """

    problems: list[SampledProblem]
    sources: dict[str, ScoreSource] = field(default_factory=dict)
    is_dependent: bool = False


def read_samples(path: Path, task: Task, separator: str = "\n") -> SampleSet:
    """Read a file with one problem per line.

    A line is a trace, or `{"id", "problem", "answer", "samples": [{"text", "scores"}]}`, where
    `scores` maps names of verifiers to a number or a list with one number per step. `verifiers`
    beside `samples` maps names to what is known of such scores: `range` and `aggregation`, and
    `is_whole` where it holds, as in `ScoreSource`; what has neither of the two is not ours and
    ignored. `is_dependent` is true where the samples depend on one another, as in `SampleSet`.

    Args:
        path: the file.
        task: extracts the answers.
        separator: ends a step of a sample's text, where the task does not know its steps.

    In a trace of independent sampling every chain is a sample, also one that was cut and holds no
    answer. In one of another search the candidates are: what it pruned was never an answer.

    Of a problem that failed and was tried again, the last trace counts; one that failed in the end
    is left out, and a warning says so. Traces stand in the order in which problems ended: they are
    sorted by id, so that seeded orders and a bootstrap are of the same problems every time.

    Raises:
        ConfigurationError: the file does not exist, is empty, a line is neither, two lines have
            the same id or say different things of a verifier, a score is outside the range that
            is said, or all problems failed.
        TraceError: a trace is of another version.
    """
    found = SampleSet(problems=[])
    by_id: dict[str, SampledProblem] = {}
    failed: set[str] = set()
    traced = False
    for sampled, trace in _problems(path, task, separator, found):
        name = sampled.problem.id
        traced = traced or trace is not None
        if name in by_id and not (trace and name in failed):
            raise ConfigurationError(
                f"{path}: the id {name!r} occurs on two lines; give every problem one line"
            )
        by_id[name] = sampled
        if trace and trace.stop in FAILED_STOPS:
            failed.add(name)
        else:
            failed.discard(name)
    if not by_id:
        raise ConfigurationError(f"{path} holds no samples")
    found.problems = _solved(path, by_id, failed)
    if traced:
        found.problems.sort(key=lambda sampled: sampled.problem.id)
    _check_ranges(path, found)
    for name in {name for p in found.problems for s in p.samples for name in s.scores}:
        found.sources.setdefault(name, ScoreSource(range=_observed_range(name, found)))
    return found


def _solved(
    path: Path, by_id: Mapping[str, SampledProblem], failed: set[str]
) -> list[SampledProblem]:
    if failed:
        _log.warning("%s: %d problems failed and are left out", path, len(failed))
    if len(failed) == len(by_id):
        raise ConfigurationError(f"{path}: all problems failed; solve them again")
    return [sampled for name, sampled in by_id.items() if name not in failed]


def _problems(
    path: Path, task: Task, separator: str, found: SampleSet
) -> Iterator[tuple[SampledProblem, Trace | None]]:
    """The problem of every line, with its trace where it has one."""
    for number, data in _lines(path):
        try:
            if "tree" in data:
                trace = from_json(data)
                yield _from_trace(trace, task, found), trace
            else:
                yield _from_row(data, task, separator, found), None
        except TraceError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(f"{path}, line {number}: {reason}") from error


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if path.is_dir():
        raise ConfigurationError(f"cannot read the samples in {str(path)!r}: give a file in it")
    if not path.is_file():
        raise ConfigurationError(f"cannot read the samples in {str(path)!r}: there is no such file")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except RecursionError as error:
                raise ConfigurationError(f"{path}, line {number}: nested too deeply") from error
            except ValueError as error:
                # A crash cuts a line of traces, or leaves zero bytes where it was to be.
                if line.endswith(b"\n") and b'"tree"' not in line and b"\0" not in line:
                    raise ConfigurationError(
                        f"{path}, line {number} is not JSON: {_fault(error)}"
                    ) from error
                _log.warning("%s: line %d is cut short and left out", path, number)
                continue
            if not isinstance(data, dict):
                raise ConfigurationError(f"{path}, line {number}: not a JSON object")
            yield number, data


def _fault(error: ValueError) -> str:
    """What is wrong with a line; the decoder counts lines within it, which would mislead."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {min(error.pos, len(error.doc.rstrip())) + 1}"
    return str(error)


def _from_row(
    row: Mapping[str, Any], task: Task, separator: str, found: SampleSet
) -> SampledProblem:
    samples = [
        Sample(
            steps=task.steps(sample["text"])
            if isinstance(task, Cutting)
            else split_steps(sample["text"], separator),
            answer=task.extract(sample["text"]),
            scores={name: as_scores(given) for name, given in sample.get("scores", {}).items()},
        )
        for sample in row["samples"]
    ]
    for name, told in _told(row):
        is_whole = told.get("is_whole") is True
        _declare(found, name, _source(told["range"], told["aggregation"], is_whole))
    found.is_dependent |= row.get("is_dependent") is True
    problem = Problem(text=row["problem"], id=str(row["id"]), answer=as_text(row["answer"]))
    return SampledProblem(problem=problem, samples=samples)


def _told(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What a row says of its verifiers; a field of that name with anything else is not ours."""
    given = row.get("verifiers")
    for name, told in given.items() if isinstance(given, dict) else ():
        if isinstance(told, dict) and {"range", "aggregation"} & told.keys():
            yield name, told


def _from_trace(trace: Trace, task: Task, found: SampleSet) -> SampledProblem:
    tree = trace.tree
    answers = {c.node: c.answer for c in candidates(tree, task, lambda node: None)}
    strategy = str(trace.provenance.get("strategy", {}).get("class", ""))
    is_independent = strategy.endswith((".BestOfN", ".Greedy"))
    samples = [
        Sample(
            steps=tuple(tree.chain(node).texts),
            answer=answers.get(node),
            scores={name: chain_scores(tree, node, name) for name in tree.scores},
        )
        for node in (tree.leaves() if is_independent else answers)
    ]
    verifier = trace.provenance.get("verifier")
    if verifier is not None:
        fold = trace.provenance["aggregation"]
        _declare(found, verifier["name"], _source(verifier["range"], fold))
        for name in (verifier.get("provenance") or {}).get("deciding_steps", ()):
            _declare(found, name, ScoreSource(is_whole=True))
    found.is_dependent |= not is_independent or trace.provenance.get("settle") is not None
    return SampledProblem(problem=trace.problem, samples=samples)


def _declare(found: SampleSet, name: str, source: ScoreSource) -> None:
    """Note what a line says of a verifier; scores of two meanings cannot be read out together."""
    earlier = found.sources.setdefault(name, source)
    if source != earlier:
        raise ValueError(
            f"the scores of {name!r} are {source}, on an earlier line {earlier}; "
            "put lines that differ into files of their own"
        )


def _check_ranges(path: Path, found: SampleSet) -> None:
    """Refuse scores outside the range that their lines declare, as in a search."""
    for name, source in found.sources.items():
        low, high = bounds(VerifierSpec(name=name, range=source.range))
        for sampled in found.problems:
            for score in (v for s in sampled.samples for v in s.scores.get(name) or ()):
                if not low <= score <= high:
                    raise ConfigurationError(
                        f"{path}: {score} of {name!r} (id {sampled.problem.id!r}) is outside the "
                        f"range {source.range!r} that the file declares"
                    )


def _source(kind: Any, fold: Any, is_whole: bool = False) -> ScoreSource:
    if kind not in get_args(Range) or fold not in AGGREGATIONS:
        raise ValueError(f"there are scores of range {kind!r} and aggregation {fold!r}")
    return ScoreSource(aggregation=fold, range=kind, is_whole=is_whole)


def split_steps(text: str, separator: str) -> tuple[str, ...]:
    """The text cut after every separator; blank pieces belong to the step before them."""
    steps: list[str] = []
    pieces = text.split(separator)
    for piece in [*(piece + separator for piece in pieces[:-1]), pieces[-1]]:
        if steps and not piece.strip():
            steps[-1] += piece
        elif piece:
            steps.append(piece)
    return tuple(steps)


def as_scores(given: Any) -> Scores | None:
    """Scores as they stand in a file; None for null, an empty list and what is not finite.

    Raises:
        ValueError: something else than numbers.
    """
    values = given if isinstance(given, list) else [given]
    if not all(value is None or type(value) in (int, float) for value in values):
        raise ValueError(f"a score must be a number or a list of numbers, not {given!r}")
    if not values or any(value is None for value in values):
        return None
    try:
        numbers = tuple(map(float, values))
    except OverflowError as error:
        raise ValueError("a score is an integer too large for a number") from error
    return numbers if all(map(math.isfinite, numbers)) else None


def _observed_range(name: str, found: SampleSet) -> Range:
    given = (s.scores.get(name) or () for p in found.problems for s in p.samples)
    return "probability" if all(0 <= v <= 1 for scores in given for v in scores) else "unbounded"
