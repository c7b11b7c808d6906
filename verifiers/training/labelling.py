"""The stage `label`: from samples, or from hand-made labels, to labelled solutions."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from tqdm import tqdm

from stepsearch.search.background import background
from stepsearch.search.batching import each
from stepsearch.search.contracts import Policy, SamplingParams
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_separator
from stepsearch.search.task import Task
from stepsearch.verifiers.training.hand import DEFAULT, Layout, Taxonomy, from_hand, load_taxonomy
from stepsearch.verifiers.training.lines import Journal, Row, read_lines
from stepsearch.verifiers.training.monte_carlo import RolloutLabels, Value
from stepsearch.verifiers.training.outcome import OutcomeLabels, Steps
from stepsearch.verifiers.training.rollouts import Rollouts, write_all
from stepsearch.verifiers.training.settings import settings_of_policy, settings_of_task
from stepsearch.verifiers.training.workers import label_apart

_log = logging.getLogger(__name__)
Method = Literal["outcome", "checker", "both", "monte_carlo", "bisection", "hand"]
_WITH_MODEL = ("monte_carlo", "bisection")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """What is labelled and how.

    Attributes:
        samples: file of samples; of labelled steps with `method=hand`.
        out: the file that is written.
        method: see `OutcomeLabels` for the first three, `RolloutLabels` for the next two.
        task: extracts and compares answers.
        separator: ends a step of a text.
        workers: processes for the methods without a model.
        k: continuations per prefix.
        value: `soft` or `hard`.
        seed: of the continuations.
        concurrency: most questions in progress at once.
        layout: of hand-made labels.
        taxonomy: YAML file with the values of named labels; None takes good, neutral and bad.
        sampling: of the continuations.
    """

    samples: str
    out: str
    method: Method
    task: Task
    separator: str = "\n"
    workers: int = 1
    k: int = 4
    value: Value = "soft"
    seed: int = 0
    concurrency: int = 8
    layout: Layout = "prm800k"
    taxonomy: str | None = None
    sampling: SamplingParams

    def __post_init__(self) -> None:
        check_separator("separator", self.separator)
        if self.method not in get_args(Method):
            raise ConfigurationError(
                f"method={self.method!r} must be one of {', '.join(get_args(Method))}"
            )


def label(
    settings: LabelSettings, load_policy: Callable[[], Policy], policy_config: Mapping[str, Any]
) -> Path:
    """Label all samples that are not labelled yet; returns the file.

    Args:
        settings: what and how.
        load_policy: gives the policy; called for the methods with rollouts only.
        policy_config: what it is built from.

    Raises:
        ConfigurationError: a setting or file does not fit.
        PolicyError: the policy failed.
    """
    depends_on = _depends_on(settings)
    policy = load_policy() if settings.method in _WITH_MODEL else None
    if policy is not None:
        depends_on["policy"] = settings_of_policy(policy, policy_config)
    with Journal(settings.out, depends_on) as journal:
        if policy is not None:
            _label_by_rollouts(settings, journal, policy)
        elif settings.method == "hand":
            _label_by_hand(settings, journal)
        else:
            labels = OutcomeLabels(
                task=settings.task, steps=cast(Steps, settings.method), separator=settings.separator
            )
            for labelled in _apply(labels, _left(settings, journal), settings.workers):
                journal.append(labelled)
        _tell(journal.path)
        return journal.path


def _depends_on(settings: LabelSettings) -> dict[str, Any]:
    skipped = ("samples", "out", "task", "workers", "concurrency", "sampling")
    plain = {k: getattr(settings, k) for k in settings.__slots__ if k not in skipped}
    if settings.method == "hand":
        plain["taxonomy"] = _taxonomy(settings)
    return plain | {
        "task": settings_of_task(settings.task),
        "sampling": asdict(settings.sampling),
    }


def _taxonomy(settings: LabelSettings) -> Taxonomy:
    return DEFAULT if settings.taxonomy is None else load_taxonomy(settings.taxonomy)


def _left(settings: LabelSettings, journal: Journal) -> list[Row]:
    left = journal.left(read_lines(settings.samples))
    empty = sum(not sample["text"].strip() for row in left for sample in row["samples"])
    if empty:
        _log.warning("%s: %d samples without a text are left out", settings.samples, empty)
    return left


def _label_by_hand(settings: LabelSettings, journal: Journal) -> None:
    rows = from_hand(read_lines(settings.samples), settings.layout, _taxonomy(settings))
    for row in journal.left(rows):
        journal.append(row)


def _label_by_rollouts(settings: LabelSettings, journal: Journal, policy: Policy) -> None:
    rollouts = Rollouts(policy=policy, sampling=settings.sampling)
    labels = RolloutLabels(
        rollouts=rollouts,
        task=settings.task,
        seed=settings.seed,
        k=settings.k,
        value=settings.value,
        bisects=settings.method == "bisection",
    )
    left = _left(settings, journal)
    work = write_all(each(labels, left, settings.concurrency), journal, len(left))
    background.submit(work).result()
    spent = rollouts.usage()
    if labels.num_full:
        spent["every_prefix"] = labels.num_full
    _log.info("%s: %s", journal.path, spent)
    if settings.method == "bisection" and labels.num_full:
        saved = 1 - rollouts.num_rollouts / labels.num_full
        _log.info(
            "bisection took %d rollouts instead of %d: %.0f%% saved",
            *(rollouts.num_rollouts, labels.num_full, 100 * saved),
        )


def _apply(labels: OutcomeLabels, rows: list[Row], workers: int) -> Iterator[Row]:
    bar = functools.partial(tqdm, total=len(rows), desc="label", unit="question", mininterval=5)
    if workers <= 1:
        yield from bar(map(labels, rows))
        return
    yield from bar(label_apart(labels, rows, workers))


def _tell(path: Path) -> None:
    """How many solutions and labels there are, and how many of them are right."""
    counts = Counter[str]()
    for row in read_lines(path):
        counts.update(_counts(row["solutions"]))
    _log.info("%s: %s", path, ", ".join(f"{n} {what}" for what, n in counts.items()) or "no rows")


def _counts(solutions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for solution in solutions:
        yield "solutions"
        if solution["outcome"] is None:
            yield "of unknown outcome"
        elif solution["outcome"] >= 0.5:
            yield "right"
        for value in solution["labels"]:
            yield "steps unlabelled" if value is None else "steps labelled"
            if value is not None and value >= 0.5:
                yield "steps right"
