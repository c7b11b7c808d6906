"""Bias audit: what moves a verifier's scores and should not, and what should and does not.

Right solutions are edited in ways that leave them right and in ways that make a step wrong. Every
edited solution is compared with its original, so that neither the problem nor the policy matters.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from stepsearch.search.aggregate import aggregate
from stepsearch.search.background import background
from stepsearch.search.contracts import ScoreFailure, Verifier
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import MathTask, Task
from stepsearch.verifiers.stepwise import chain_of, score_steps
from stepsearch.verifiers.training.edits import HARMFUL, NEUTRAL

_RESAMPLES = 2000
_BATCH = 16
_FORMATS = (".png", ".svg", ".pdf")
_CALCULATOR_MARKS = re.compile(r"<<[^>]*>>")


class Solved(NamedTuple):
    """A question and the steps of a right solution."""

    question: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one edit does to the value of a solution.

    Attributes:
        edit: its name.
        is_harmful: whether the edited solutions have a wrong or missing step.
        num_solutions: solutions that were edited and scored, before and after.
        num_failed: solutions that the verifier could not score before or after.
        before: mean value of the originals.
        change: mean change of the value.
        low, high: 95% interval of the mean change (percentile bootstrap over solutions).
        effect_size: mean change over the standard deviation of the changes (Cohen's d of paired
            samples); None when all changes are equal and not 0.
        fell, rose: share of solutions whose value fell or rose.
    """

    edit: str
    is_harmful: bool
    num_solutions: int
    num_failed: int
    before: float
    change: float
    low: float
    high: float
    effect_size: float | None
    fell: float
    rose: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What all edits do.

    Attributes:
        verifier: its name.
        aggregation: how step scores became the value of a solution.
        effects: one an edit.
        separation: how often a harmful edit lowers a solution's value more than a neutral one does,
            over all pairs of edits of one solution, ties counting half; 0.5 is chance. None when no
            solution had both.
    """

    verifier: str
    aggregation: str
    effects: tuple[Effect, ...]
    separation: float | None


def audit(verifier: Verifier, solutions: Sequence[Solved], *, seed: int = 0) -> Audit:
    """Compare right solutions with their edited versions.

    Args:
        verifier: any verifier; the value of a solution is by its own aggregation.
        solutions: right solutions, one a problem, so that they are independent.
        seed: of edits and bootstrap.

    Raises:
        ConfigurationError: the seed is negative, there are no solutions, or not one could be
            scored.
        VerifierError: the verifier's backend failed for good.
    """
    if seed < 0:
        raise ConfigurationError(f"--seed {seed} must be at least 0")
    if not solutions:
        raise ConfigurationError("there are no right solutions to edit")
    before = _values(verifier, solutions, "as they are")
    if all(value is None for value in before):
        raise ConfigurationError(f"verifier {verifier.spec.name!r} could score no solution")
    effects: list[Effect] = []
    changes: dict[str, dict[int, float]] = {}
    for name, edit in {**NEUTRAL, **HARMFUL}.items():
        edited: dict[int, Solved] = {}
        for index, solved in enumerate(solutions):
            steps = edit(solved.steps, random.Random(f"{seed}/{name}/{index}"))
            if steps is not None:
                edited[index] = Solved(solved.question, tuple(steps))
        after = _values(verifier, list(edited.values()), name)
        pairs = {i: (before[i], new) for i, new in zip(edited, after, strict=True)}
        known = {i: (a, b) for i, (a, b) in pairs.items() if a is not None and b is not None}
        changes[name] = {i: b - a for i, (a, b) in known.items()}
        if known:
            effects.append(_effect(name, known, len(pairs) - len(known), seed))
    return Audit(
        verifier=verifier.spec.name,
        aggregation=verifier.spec.aggregation,
        effects=tuple(effects),
        separation=_separation(changes),
    )


def load_solutions(path: str | Path, limit: int, task: Task | None = None) -> list[Solved]:
    """Right solutions from a file of JSON lines, or one JSON array; one a row.

    A row has a question (`problem` or `question`) and `steps` (those with a `label` other than -1
    are left out), or `samples` with `text` and a gold `answer` (the first right sample is taken),
    or an `answer` that is itself a solution ending in `#### x`.

    Raises:
        ConfigurationError: the file cannot be read or has another layout, or the limit is below 1.
    """
    if limit < 1:
        raise ConfigurationError(f"--limit {limit} must be at least 1")
    task = task or MathTask()
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        is_array = text.lstrip().startswith("[")
        rows: Iterator[Any] = iter(
            json.loads(text) if is_array else map(json.loads, filter(str.strip, text.splitlines()))
        )
        found = (steps for row in rows if (steps := _solved(row, task)) is not None)
        return list(islice(found, limit))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror}); give a file of JSON lines with questions"
            " and steps, samples or worked answers"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} holds a row without a question and steps, samples or a worked answer: "
            f"{error!r}"
        ) from error


def render(found: Audit) -> str:
    """The effects as a table, neutral edits first."""
    lines = [
        "| edit | should | n | failed | before | change | 95% interval | d | fell | rose |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for e in found.effects:
        size = "-" if e.effect_size is None else f"{e.effect_size:+.2f}"
        lines.append(
            f"| {e.edit} | {'fall' if e.is_harmful else 'stay'} | {e.num_solutions} "
            f"| {e.num_failed} | {e.before:.3f} | {e.change:+.4f} "
            f"| {e.low:+.4f} to {e.high:+.4f} | {size} | {e.fell:.0%} | {e.rose:.0%} |"
        )
    separation = "unknown" if found.separation is None else f"{found.separation:.3f}"
    lines.append(
        f"\n{found.verifier}, aggregation {found.aggregation}: a harmful edit lowers a solution's "
        f"value more than a neutral one in {separation} of all pairs (0.5 is chance)"
    )
    return "\n".join(lines)


def require_plottable(path: str | Path) -> None:
    """Raise `ConfigurationError` unless a plot can be drawn in the format that its name says."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError(
            "a plot needs matplotlib; install it with pip install 'stepsearch[report]'"
        )
    if Path(path).suffix.lower() not in _FORMATS:
        raise ConfigurationError(f"--plot {str(path)!r} must end in {', '.join(_FORMATS)}")


def plot(found: Audit, path: str | Path) -> None:
    """Draw the mean changes with their intervals.

    Raises:
        ConfigurationError: matplotlib is not installed, or cannot draw such a file.
    """
    require_plottable(path)
    from matplotlib.figure import Figure

    effects = found.effects[::-1]
    figure = Figure(figsize=(7, 0.45 * len(effects) + 1.4), layout="constrained")
    axes = figure.subplots()
    for row, e in enumerate(effects):
        colour = "tab:red" if e.is_harmful else "tab:blue"
        axes.plot([e.low, e.high], [row, row], color=colour, linewidth=2)
        axes.plot([e.change], [row], marker="o", color=colour)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(effects)), [f"{e.edit} (n={e.num_solutions})" for e in effects])
    axes.set_xlabel("mean change of a solution's value, 95% interval")
    axes.set_title(f"{found.verifier}: blue should stay at 0, red should fall")
    figure.savefig(Path(path).expanduser(), dpi=150)


def _values(verifier: Verifier, solutions: Sequence[Solved], what: str) -> list[float | None]:
    """The value of every solution; None where scoring failed."""
    chains = [chain_of(solved.question, solved.steps) for solved in solutions]
    values: list[float | None] = []
    with tqdm(total=len(chains), desc=what, leave=False, disable=None) as bar:
        for start in range(0, len(chains), _BATCH):
            batch = chains[start : start + _BATCH]
            for scores in background.submit(score_steps(verifier, batch)).result():
                known = () if isinstance(scores, ScoreFailure) else scores
                values.append(aggregate(verifier.spec.aggregation, known))
            bar.update(len(batch))
    return values


def _effect(
    name: str, known: Mapping[int, tuple[float, float]], num_failed: int, seed: int
) -> Effect:
    before, after = np.array(list(known.values())).T
    change = after - before
    low, high = _interval(change, seed)
    spread = float(change.std(ddof=1)) if len(change) > 1 else 0.0
    mean = float(change.mean())
    varies = spread > 1e-9 * abs(mean)  # else it is rounding
    return Effect(
        edit=name,
        is_harmful=name in HARMFUL,
        num_solutions=len(change),
        num_failed=num_failed,
        before=float(before.mean()),
        change=mean,
        low=low,
        high=high,
        effect_size=mean / spread if varies else None if mean else 0.0,
        fell=float((change < 0).mean()),
        rose=float((change > 0).mean()),
    )


def _interval(change: npt.NDArray[np.float64], seed: int) -> tuple[float, float]:
    picks = np.random.default_rng(seed).integers(len(change), size=(_RESAMPLES, len(change)))
    low, high = np.quantile(change[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _separation(changes: Mapping[str, Mapping[int, float]]) -> float | None:
    wins = pairs = 0.0
    for bad in HARMFUL:
        for index, harm in changes[bad].items():
            for good in NEUTRAL:
                if index in changes[good]:
                    same = changes[good][index]
                    wins += 1.0 if harm < same else 0.5 if harm == same else 0.0
                    pairs += 1
    return wins / pairs if pairs else None


def _solved(row: Mapping[str, Any], task: Task) -> Solved | None:
    if "tree" in row:
        raise ValueError("a trace; `stepsearch filter` writes the samples that it holds")
    question = row["problem"] if "problem" in row else row["question"]
    if "steps" in row:
        steps = tuple(map(str, row["steps"]))
        return Solved(question, steps) if steps and row.get("label", -1) == -1 else None
    if "samples" in row:
        texts = (sample["text"] for sample in row["samples"])
        text = next((t for t in texts if task.grade(t, str(row["answer"]))), None)
    else:
        text = _CALCULATOR_MARKS.sub("", row["answer"])
        if task.extract(text) is None:
            raise ValueError(f"answer {text[:40]!r} is no worked solution")
    if text is None:
        return None
    return Solved(question, tuple(line for line in text.splitlines() if line.strip()))
