"""Success against tokens for every strategy, on synthetic trees and verifiers of every quality.

Every strategy gets the same hard budget of policy tokens and the size that fills it, and each of
its trees is read out in every way. Prints a table of success rates with 95 % intervals (Wilson
1927), writes all rows as CSV and draws a plot.

    python -m stepsearch.benchmarks.perf.testbed [--problems 200] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from stepsearch.benchmarks.perf import synthetic
from stepsearch.benchmarks.statistics import wilson
from stepsearch.search.contracts import Strategy
from stepsearch.search.engine import Engine
from stepsearch.search.select import SELECTIONS, Selection, choose
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.strategies.particle import Particle
from stepsearch.search.strategies.rebase import Rebase
from stepsearch.search.strategies.refine import Refine
from stepsearch.search.task import ExactTask
from stepsearch.search.types import Budget, Solution

TOKENS_PER_CHAIN = 120
SIZES = (4, 16, 64)
NOISES = (0.0, 1.0, 2.0, 4.0)
PLOTTED = ("best", "weighted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy under one budget with one verifier, read out in one way.

    Attributes:
        select: the selection; `pass` counts a problem when any candidate is right.
        success: share of problems whose chosen answer is right.
        low, high: its 95 % interval.
        tokens: mean policy tokens spent.
    """

    strategy: str
    select: str
    noise: float
    budget: int
    success: float
    low: float
    high: float
    tokens: float


def contestants(n: int) -> Mapping[str, Strategy]:
    """Every strategy in the size that a budget of `n` chains fills."""
    return {
        "best_of_n": BestOfN(n=n),
        "beam": Beam(n=n, width=4),
        "dvts": Dvts(n=n, width=4),
        "rebase": Rebase(n=n),
        "particle": Particle(n=n),
        "refine": Refine(n=max(1, n // 2), rounds=4),
        "mcts": Mcts(simulations=10 * n, width=4),
    }


async def measure(name: str, n: int, noise: float, count: int) -> list[Row]:
    """Solve the problems with one contestant; a row per selection."""
    task, budget = ExactTask(), n * TOKENS_PER_CHAIN
    engine = Engine(
        policy=synthetic.policy(),
        verifier=synthetic.verifier(noise),
        strategy=contestants(n)[name],
        task=task,
        budget=Budget(policy_tokens=budget),
    )
    solutions = [s async for s in engine.asolve_many(synthetic.problems(count))]
    tokens = statistics.fmean(solution.usage.policy_tokens for solution in solutions)
    rows = []
    readings: tuple[Selection | Literal["pass"], ...] = (*SELECTIONS, "pass")
    for select in readings:
        right = sum(_is_right(solution, select, task) for solution in solutions)
        low, high = wilson(right / count, count)
        rows.append(
            Row(
                strategy=name,
                select=select,
                noise=noise,
                budget=budget,
                success=right / count,
                low=low,
                high=high,
                tokens=tokens,
            )
        )
    return rows


def _is_right(solution: Solution, select: Selection | Literal["pass"], task: ExactTask) -> bool:
    if select == "pass":
        return any(candidate.answer == synthetic.RIGHT for candidate in solution.candidates)
    chosen = choose(solution.candidates, select, task.equal).candidate
    return chosen is not None and chosen.answer == synthetic.RIGHT


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line per noise, strategy and selection, a column per budget."""
    budgets = sorted({row.budget for row in rows})
    lines = ["| noise | strategy | select | " + " | ".join(f"{b} tokens" for b in budgets) + " |"]
    lines.append("|" + "---|" * (3 + len(budgets)))
    found = {(r.noise, r.strategy, r.select, r.budget): r for r in rows}
    for noise, strategy, select in dict.fromkeys((r.noise, r.strategy, r.select) for r in rows):
        own = [found[noise, strategy, select, budget] for budget in budgets]
        cells = [f"{r.success:.2f} ({r.low:.2f} to {r.high:.2f})" for r in own]
        lines.append(f"| {noise:g} | {strategy} | {select} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Success against tokens spent; a column of panels per noise, a row per selection."""
    from matplotlib.figure import Figure

    noises, budgets = sorted({row.noise for row in rows}), sorted({row.budget for row in rows})
    figure = Figure(figsize=(4 * len(noises), 8), layout="constrained")
    panels = figure.subplots(len(PLOTTED), len(noises), sharex=True, sharey=True)
    for axes, (select, noise) in zip(panels.flat, product(PLOTTED, noises), strict=True):
        for name in dict.fromkeys(row.strategy for row in rows):
            own = [r for r in rows if (r.strategy, r.noise, r.select) == (name, noise, select)]
            rates = [r.success for r in own]
            errors = [[r.success - r.low for r in own], [r.high - r.success for r in own]]
            tokens = [r.tokens for r in own]
            axes.errorbar(tokens, rates, errors, fmt="o-", ms=3, capsize=2, label=name)
        axes.set(xscale="log", title=f"select={select}, noise {noise:g}")
        axes.set_xticks(budgets, map(str, budgets))
        axes.set_xticks([], minor=True)
        axes.set(xlabel="policy tokens a problem", ylabel="success rate")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=7)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure all contestants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("testbed"))
    options = parser.parse_args()
    started = time.perf_counter()
    rows: list[Row] = []
    for noise, n in product(NOISES, SIZES):
        for name in contestants(n):
            rows += asyncio.run(measure(name, n, noise, options.problems))
    rows.sort(key=lambda row: (row.noise, row.strategy, row.select, row.budget))
    chance = [synthetic.right_leaves(p.text) for p in synthetic.problems(options.problems)]
    print(f"right chains: {statistics.fmean(chance):.3f} of all; {options.problems} problems\n")
    print(table(rows))
    print(f"\n{time.perf_counter() - started:.0f} s")
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "testbed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(map(asdict, rows))
    plot(rows, options.out / "testbed.png")


if __name__ == "__main__":
    main()
