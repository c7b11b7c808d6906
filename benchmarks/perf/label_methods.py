"""Which labelling of steps works best for the same number of policy tokens.

A small policy learns made problems of two subtractions. Every method may spend the same number of
policy tokens, on samples and on the rollouts that it makes; the verifiers are trained alike and
measured on the same samples of questions that nothing was trained on. Their equations were met
under other names; those of the questions called `far` were not, in this order. Prints a Markdown
table: means over the seeds, with the smallest and the largest. Run again, it goes on where it was
stopped.

    python -m stepsearch.benchmarks.perf.label_methods --seeds 3 --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepsearch.benchmarks.perf.label_budget import METHODS, buy
from stepsearch.benchmarks.perf.label_setup import Setup
from stepsearch.benchmarks.perf.label_stages import Stages
from stepsearch.benchmarks.perf.label_truth import label_figures, verifier_figures
from stepsearch.search.errors import ConfigurationError

Figures = Mapping[str, Any]
_COLUMNS = (
    *("method", "questions", "solutions", "steps", "rollouts", "tokens"),
    *("labels as state, %", "AUROC, state", "AUROC, outcome", "AUROC, far"),
    *("best-of-N, %", "minus random", "weighted, %", "minus majority"),
)


def measure(folder: Path, seed: int, setup: Setup) -> dict[str, Figures]:
    """Figures of one seed by method.

    Raises:
        ConfigurationError: the folder was made with another setup.
    """
    stages, started = Stages(folder=folder, seed=seed, setup=setup), time.perf_counter()
    stages.prepare()
    found: dict[str, Figures] = {}
    for name in METHODS:
        _tell(f"seed {seed}, {name}, after {time.perf_counter() - started:.0f} s")
        result = folder / f"figures-{name.replace(' ', '-')}.json"
        if not result.is_file():
            figures = _of_method(stages, name)
            result.write_text(json.dumps(figures, indent=1) + "\n")
        found[name] = json.loads(result.read_text())
    return found


def _of_method(stages: Stages, name: str) -> Figures:
    bought, worked, size = buy(stages, name), stages.worked(), stages.setup.num_choices
    spent = {
        "questions": bought.questions,
        "rollouts": bought.rollouts,
        "tokens": bought.tokens,
    }
    prm = stages.train_prm(name.replace(" ", "-"), bought.labelled)
    figures = verifier_figures(prm, stages.judged("held"), worked, size)
    far = verifier_figures(prm, stages.judged("far"), worked, size)
    labels = label_figures(bought.labelled, worked)
    return spent | labels | figures | {"auroc_far": far["auroc_state"]}


def table(seeds: Sequence[Mapping[str, Figures]]) -> str:
    """Markdown, a row per method; what needs no verifier comes first."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    anyone = [next(iter(seed.values())) for seed in seeds]
    random, majority = (_spread([f[n] for f in anyone], 1) for n in ("random", "majority"))
    empty = [""] * 9
    lines.append(_line(["random choice, majority", *empty, random, "", majority, ""]))
    lines += [_line(_cells(name, [seed[name] for seed in seeds])) for name in seeds[0]]
    return "\n".join(lines)


def _cells(name: str, seeds: Sequence[Figures]) -> list[str]:
    counts = ("questions", "solutions", "steps", "rollouts", "tokens")
    best, weighted = ([f[n] for f in seeds] for n in ("best", "weighted"))
    over_random = [f["best"] - f["random"] for f in seeds]
    over_majority = [f["weighted"] - f["majority"] for f in seeds]
    return [
        name,
        *(f"{np.mean([f[count] for f in seeds]):,.0f}" for count in counts),
        _spread([f["agree"] for f in seeds], 1),
        _spread([f["auroc_state"] for f in seeds], 2),
        _spread([f["auroc_outcome"] for f in seeds], 2),
        _spread([f["auroc_far"] for f in seeds], 2),
        f"{np.mean(best):.1f}",
        _spread(over_random, 1, "+"),
        f"{np.mean(weighted):.1f}",
        _spread(over_majority, 1, "+"),
    ]


def _spread(values: Sequence[float | None], digits: int, sign: str = "") -> str:
    """The mean and, behind it, the smallest and largest; a dash where one is unknown."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    form = f"{sign}.{digits}f"
    return f"{np.mean(known):{form}} ({min(known):{form}} to {max(known):{form}})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure all methods with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--out", type=Path, default=Path("label_methods"))
    parser.add_argument("--budget", type=int, default=Setup().budget, help="policy tokens a method")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds} must be at least 1")
    torch.set_num_threads(1)  # more are no faster with a model this small
    started = time.perf_counter()
    try:
        setup = Setup(budget=options.budget)
        seeds = range(options.seeds)
        found = [measure(options.out / f"seed-{seed}", seed, setup) for seed in seeds]
    except ConfigurationError as error:
        parser.error(str(error))
    print(table(found))
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
