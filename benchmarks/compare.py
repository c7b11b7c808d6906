"""Strategies side by side on word problems: accuracy, tokens, seconds.

Every row is one search per question; rows with the same search and verifier share their samples,
read out by several selections.

    python -m stepsearch.benchmarks.compare DATA --limit 40 [--policy-adapter F --prm-adapter F]
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from stepsearch.conf.build import build_engine, load_config
from stepsearch.search.select import Selection, choose
from stepsearch.search.task import MathTask
from stepsearch.search.types import FAILURES, Problem, Solution

TASK = MathTask()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One search, and how its tree is read out."""

    name: str
    overrides: tuple[str, ...]
    selections: tuple[Selection, ...]


def problems(path: Path, limit: int) -> Iterator[Problem]:
    """Questions of a JSON-lines file with `question` and `answer`, or `input` and `target`."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number == limit:
                return
            row = json.loads(line)
            text = row.get("question", row.get("input"))
            gold = str(row.get("answer", row.get("target"))).split("####")[-1].strip()
            yield Problem(text=text, id=f"{path.parent.name}-{number}", answer=gold)


def cases(policy_adapter: str | None, prm_adapter: str | None, n: int) -> list[Case]:
    """Greedy, votes over `n` samples, and beams of `n` candidates by every verifier."""
    adapted = ["policy=lines", f"policy.adapter={policy_adapter}"]
    policy = ["policy=embedded_base"] if policy_adapter is None else adapted
    prm = ["verifier=line_prm", f"verifier.adapter={prm_adapter}"]
    both = [
        *("verifier=ensemble", "~verifier@verifier.members.orm", "~verifier.weights.orm"),
        *("verifier@verifier.members.prm=line_prm", f"verifier.members.prm.adapter={prm_adapter}"),
    ]
    beam, best = ["search=beam", f"search.n={n}"], ["search=best_of_n", f"search.n={n}"]
    found: list[tuple[str, list[str], tuple[Selection, ...]]]
    found = [("greedy", ["search=greedy", "verifier=none"], ("majority",))]
    rule = ["verifier=rule"]
    if prm_adapter is not None:
        found += [
            (f"best of {n}, PRM", best + prm, ("majority", "weighted", "best")),
            (f"beam {n}, PRM", beam + prm, ("weighted", "best")),
            (f"beam {n}, rule x PRM", beam + both, ("weighted", "best")),
        ]
    else:
        found.append((f"best of {n}, rule", best + rule, ("majority", "weighted", "best")))
    found.append((f"beam {n}, rule", beam + rule, ("weighted", "best")))
    return [
        Case(name=name, overrides=(*policy, *overrides), selections=selections)
        for name, overrides, selections in found
    ]


def correct(solution: Solution, by: Selection) -> bool:
    """Whether the answer read out by a selection is the gold answer."""
    answer = choose(solution.candidates, by, TASK.equal).candidate
    gold = solution.problem.answer
    if answer is None or answer.answer is None or gold is None:
        return False
    return TASK.equal(answer.answer, gold) is True


def main() -> None:
    """Print one table row per case and selection, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--policy-adapter")
    parser.add_argument("--prm-adapter")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides for every case")
    options = parser.parse_intermixed_args()
    questions = list(problems(options.data, options.limit))
    print("| search | select | right | failed | policy tokens | verifier tokens | seconds |")
    print("|---|---|---|---|---|---|---|")
    chosen = cases(options.policy_adapter, options.prm_adapter, options.n)
    for case in (case for case in chosen if options.case in case.name):
        engine = build_engine(load_config([*case.overrides, *options.overrides]))
        started = time.perf_counter()
        stream = engine.solve_many(questions)
        solutions = list(tqdm(stream, total=len(questions), desc=case.name, leave=False))
        seconds = time.perf_counter() - started
        policy = sum(s.usage.policy_tokens for s in solutions)
        verifier = sum(s.usage.verifier_tokens or 0 for s in solutions)
        failed = sum(s.stop in FAILURES for s in solutions)
        for by in case.selections:
            right = sum(correct(s, by) for s in solutions)
            print(
                f"| {case.name} | {by} | {right}/{len(solutions)} | {failed} "
                f"| {policy:,} | {verifier:,} | {seconds:.0f} |",
                flush=True,
            )
        del engine, stream, solutions
        gc.collect()  # the next case starts with an empty prefix cache


if __name__ == "__main__":
    main()
