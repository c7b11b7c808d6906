"""ProcessBench: does a verifier find the first wrong step?

The benchmark of Zheng et al. 2024 (arXiv:2412.06559). A case is a solution whose first wrong step a
person named, or found none. The verifier's answer is the first step whose score is below a
threshold, none when all are above. F1 is the harmonic mean of two accuracies: naming exactly the
wrong step where there is one, and naming none where there is none.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from stepsearch.conf.build import build_verifier
from stepsearch.search.background import background
from stepsearch.search.contracts import ScoreFailure, Verifier
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.stepwise import Scored, chain_of, score_steps

SPLITS = ("gsm8k", "math", "olympiadbench", "omnimath")
HUB_NAME = "Qwen/ProcessBench"
NO_ERROR = -1
_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A solution with its first wrong step.

    Attributes:
        id: names it.
        problem: the question.
        steps: text of every step, at least one.
        label: index of the first wrong step, counted from 0; -1 when all are right.
    """

    id: str
    problem: str
    steps: tuple[str, ...]
    label: int


class Threshold(NamedTuple):
    """A score below `value` says that a step is wrong.

    Attributes:
        value: the threshold.
        tuned_on: the split it was chosen on, which may not be reported then; None for a value that
            was known before.
    """

    value: float
    tuned_on: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How well first errors were found on one split; accuracies and F1 lie in [0, 1].

    Attributes:
        split: name of the split.
        threshold: what was used.
        num_wrong: cases with a wrong step.
        num_right: cases without one.
        num_failed: cases without scores; they count as misses.
        error_accuracy: share of the wrong cases where exactly the first wrong step was named.
        correct_accuracy: share of the right cases where no step was named.
    """

    split: str
    threshold: Threshold
    num_wrong: int
    num_right: int
    num_failed: int
    error_accuracy: float
    correct_accuracy: float

    @property
    def f1(self) -> float:
        """The harmonic mean of both accuracies, 0 when one of them is 0."""
        return harmonic_mean(self.error_accuracy, self.correct_accuracy)


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b), and 0 where both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0


def load(source: str | Path, split: str) -> list[Case]:
    """Read a split in the public layout: JSON objects with `problem`, `steps` and `label`.

    Args:
        source: a folder that holds `SPLIT.json` or `SPLIT.jsonl`, or the name of a data set on the
            hub.
        split: name of the split.

    Raises:
        ConfigurationError: there is no such file, or a row does not have that layout.
    """
    path = _find(source, split)
    text = path.read_text(encoding="utf-8")
    try:
        rows = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
        return [_case(row, f"{split}-{number}") for number, row in enumerate(rows)]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is not in the layout of ProcessBench (problem, steps, label): {error!r}"
        ) from error


def first_error(scores: Sequence[float], threshold: float) -> int:
    """The first step whose score is below the threshold; -1 when there is none."""
    return next((k for k, score in enumerate(scores) if score < threshold), NO_ERROR)


def measure(
    split: str, cases: Sequence[Case], scored: Sequence[Scored], threshold: Threshold
) -> Result:
    """The accuracies of a verifier's scores.

    Raises:
        ConfigurationError: the threshold was tuned on this very split, or the split has no wrong or
            no right cases.
    """
    if threshold.tuned_on == split:
        raise ConfigurationError(
            f"the threshold was tuned on split {split!r}, so a result on it would flatter; tune on "
            "another split, or report the others"
        )
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for case, scores in zip(cases, scored, strict=True):
        found = None if isinstance(scores, ScoreFailure) else first_error(scores, threshold.value)
        hits[case.label != NO_ERROR].append(found == case.label)
    if not hits[True] or not hits[False]:
        raise ConfigurationError(f"split {split!r} needs wrong and right cases for an F1")
    return Result(
        split=split,
        threshold=threshold,
        num_wrong=len(hits[True]),
        num_right=len(hits[False]),
        num_failed=sum(isinstance(scores, ScoreFailure) for scores in scored),
        error_accuracy=sum(hits[True]) / len(hits[True]),
        correct_accuracy=sum(hits[False]) / len(hits[False]),
    )


def tune(split: str, cases: Sequence[Case], scored: Sequence[Scored]) -> Threshold:
    """The threshold with the best F1 on a split; the lowest of several.

    A case with label k is met by thresholds above score k and not above any score before it, one
    without errors by thresholds not above any score; so each case is an interval, and one pass over
    the sorted ends finds the best place.

    Raises:
        ConfigurationError: the split has no scored wrong cases, or no right ones.
    """
    above, up_to, clean = [], [], []
    num_wrong = sum(case.label != NO_ERROR for case in cases)
    levels: set[float] = set()
    for case, scores in zip(cases, scored, strict=True):
        if isinstance(scores, ScoreFailure):
            continue
        levels.update(scores)
        num_before = len(scores) if case.label == NO_ERROR else case.label
        before = min(scores[:num_before], default=np.inf)
        if case.label == NO_ERROR:
            clean.append(before)
        elif scores[case.label] < before:
            above.append(scores[case.label])
            up_to.append(before)
    if not clean or not num_wrong:
        raise ConfigurationError(f"split {split!r} needs wrong and right cases with scores to tune")
    sorted_levels = np.array(sorted(levels))
    middles = (sorted_levels[:-1] + sorted_levels[1:]) / 2
    places = np.array([sorted_levels[0], *middles, np.nextafter(sorted_levels[-1], np.inf)])
    found = _below(above, places) - _below(up_to, places)
    kept = len(clean) - _below(clean, places)
    error, correct = found / num_wrong, kept / (len(cases) - num_wrong)
    f1 = 2 * error * correct / np.maximum(error + correct, 1e-300)
    return Threshold(float(places[int(np.argmax(f1))]), split)


def score_cases(verifier: Verifier, cases: Sequence[Case], name: str = "") -> list[Scored]:
    """One score for every step of every case, or why there is none.

    Raises:
        VerifierError: the verifier's backend failed for good.
    """
    scored: list[Scored] = []
    with tqdm(total=len(cases), desc=name or "scoring", leave=False, disable=None) as bar:
        for start in range(0, len(cases), _BATCH):
            batch = cases[start : start + _BATCH]
            chains = [chain_of(case.problem, case.steps) for case in batch]
            scored += background.submit(score_steps(verifier, chains)).result()
            bar.update(len(batch))
    return scored


def evaluate(
    verifier: Verifier,
    source: str | Path = HUB_NAME,
    splits: Sequence[str] = SPLITS,
    *,
    tuned_on: str | None = None,
    threshold: float | None = None,
) -> list[Result]:
    """Find first errors on some splits.

    Args:
        verifier: the verifier.
        source: see `load`.
        splits: what is reported.
        tuned_on: a split on which the threshold is chosen, not among `splits`.
        threshold: the threshold; None takes the verifier's own unless one is tuned.

    Raises:
        ConfigurationError: there is no threshold, there are two, or a split cannot be read.
        VerifierError: the verifier's backend failed for good.
    """
    own = verifier.spec.threshold if threshold is None else threshold
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigurationError(f"threshold={threshold} must be finite")
    if tuned_on in splits:
        raise ConfigurationError(f"split {tuned_on!r} cannot be tuned on and reported; drop one")
    if tuned_on is not None and threshold is not None:
        raise ConfigurationError(f"threshold={threshold} is given, so there is nothing to tune")
    data = {split: load(source, split) for split in splits}
    if tuned_on is not None:
        cases = load(source, tuned_on)
        chosen = tune(tuned_on, cases, score_cases(verifier, cases, tuned_on))
    elif own is not None:
        chosen = Threshold(own)
    else:
        raise ConfigurationError(
            f"verifier {verifier.spec.name!r} has no threshold of its own; tune one on a split "
            "that is not reported, or give one"
        )
    return [
        measure(split, cases, score_cases(verifier, cases, split), chosen)
        for split, cases in data.items()
    ]


def render(results: Sequence[Result]) -> str:
    """A table in percent, with the mean of the F1 values."""
    lines = ["| split | wrong | right | failed | error acc. | correct acc. | F1 |"]
    lines.append("|---|---|---|---|---|---|---|")
    lines += [
        f"| {r.split} | {r.num_wrong} | {r.num_right} | {r.num_failed} | "
        f"{100 * r.error_accuracy:.1f} | {100 * r.correct_accuracy:.1f} | {100 * r.f1:.1f} |"
        for r in results
    ]
    mean = 100 * sum(r.f1 for r in results) / len(results)
    value, tuned_on = results[0].threshold
    origin = "its own or given" if tuned_on is None else f"tuned on {tuned_on}"
    lines.append(f"| mean | | | | | | {mean:.1f} |")
    return "\n".join([*lines, f"threshold {value:.4g}, {origin}"])


def main(options: argparse.Namespace) -> int:
    """The command; returns the exit status."""
    verifier = build_verifier(options.overrides)
    splits = options.split or [split for split in SPLITS if split != options.tune]
    results = evaluate(
        verifier, options.source, splits, tuned_on=options.tune, threshold=options.threshold
    )
    if options.json:
        print(json.dumps([asdict(result) | {"f1": result.f1} for result in results]))
    else:
        print(render(results))
    return 0


def _below(ends: Sequence[float], places: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """How many of the ends lie below each place."""
    return np.searchsorted(np.sort(np.array(ends)), places, side="left").astype(np.int64)


def _find(source: str | Path, split: str) -> Path:
    folder = Path(source).expanduser()
    if folder.is_dir():
        for name in (f"{split}.json", f"{split}.jsonl"):
            if (folder / name).is_file():
                return folder / name
        there = sorted(path.stem for path in folder.glob("*.json*"))
        raise ConfigurationError(
            f"{folder} has neither {split}.json nor {split}.jsonl, but {', '.join(there) or 'none'}"
            "; name those to report by --split, without one that is tuned on (all four are"
            " reported otherwise)"
        )
    if str(source).count("/") != 1 or str(source).startswith((".", "/", "~")):
        raise ConfigurationError(f"{source} is neither a folder nor the name of a data set")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(str(source), f"{split}.json", repo_type="dataset"))
    except Exception as error:  # many kinds, of several libraries
        raise ConfigurationError(
            f"{split}.json of {source} was not found in the hub's cache and could not be fetched "
            f"({type(error).__name__}); give a folder that holds it"
        ) from error


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _case(row: dict[str, Any], default_id: str) -> Case:
    steps, label = tuple(row["steps"]), row["label"]
    name = str(row.get("id", default_id))
    if not steps or not all(isinstance(step, str) for step in steps):
        raise ValueError(f"{name} has no list of texts in steps")
    if not isinstance(label, int) or not NO_ERROR <= label < len(steps):
        raise ValueError(f"{name} has label {label!r} and {len(steps)} steps")
    return Case(id=name, problem=str(row["problem"]), steps=steps, label=label)
