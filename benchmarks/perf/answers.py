"""`solve()` as a user has it: seconds to an answer once the models are loaded, and peak memory.

    python -m stepsearch.benchmarks.perf.answers gsm8k/test.jsonl [--limit 10] [OVERRIDES ...]

One question after the other: beam with 8 candidates, policy and PRM that come with stepsearch.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from pathlib import Path

from stepsearch.benchmarks.compare import TASK, problems
from stepsearch.conf.build import build_engine, load_config
from stepsearch.search.types import Problem, Solution

KILOBYTE = 1 if sys.platform == "darwin" else 1024
"""In what `ru_maxrss` counts, in bytes."""
HEAD = "| question | seconds | policy tokens | answer | right |\n|---|---|---|---|---|"


def main() -> None:
    """Print a row for every question, then medians and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="JSON lines with question and answer")
    parser.add_argument("--limit", type=int, default=10, help="the first so many questions")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    started = time.perf_counter()
    engine = build_engine(load_config(["search=beam", "search.n=8", *options.overrides]))
    print(f"models loaded in {time.perf_counter() - started:.1f} s\n\n{HEAD}", flush=True)
    taken, num_right = [], 0
    for problem in problems(options.data, options.limit):
        started = time.perf_counter()
        solution = engine.solve(problem)
        taken.append(time.perf_counter() - started)
        num_right += _show(problem, solution, taken[-1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE
    print(
        f"\nmedian {statistics.median(taken):.1f} s ({min(taken):.1f} to {max(taken):.1f}), "
        f"{num_right} of {len(taken)} right, peak memory {peak / 2**20:,.0f} MiB"
    )


def _show(problem: Problem, solution: Solution, seconds: float) -> bool:
    answer, gold = solution.answer, problem.answer
    right = answer is not None and gold is not None and TASK.equal(answer, gold) is True
    tokens = solution.usage.policy_tokens
    print(f"| {problem.id} | {seconds:.1f} | {tokens:,} | {answer} | {right} |", flush=True)
    return right


if __name__ == "__main__":
    main()
