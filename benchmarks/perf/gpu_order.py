"""How many tokens the searches of `gpu` must write one after the other, counted without an engine.

A policy of the same odds writes a token of every continuation in one unit of virtual time, however
many there are, and nothing else takes any: so the longest of a number of problems takes as many
units as an engine needs passes at least. `gpu` counts those of a real one; its `path` knows the
waits for siblings, but not those of `mcts`, which selects a simulation when earlier ones are backed
up.

    python -m stepsearch.benchmarks.perf.gpu_order [--searches mcts] [--problems 64] [--draws 8]
"""

from __future__ import annotations

import argparse
import functools
import random

from stepsearch.benchmarks.perf.clock import run_virtual
from stepsearch.benchmarks.perf.gpu_setup import SAMPLING, chance, strategies
from stepsearch.benchmarks.perf.random_model import CHAIN_ENDS, LINE_ENDS
from stepsearch.policies.scripted import ScriptedPolicy
from stepsearch.search.contracts import Strategy
from stepsearch.search.engine import Engine
from stepsearch.search.tree import Chain
from stepsearch.search.types import Budget, Problem, Step, Stop
from stepsearch.verifiers.scripted import ScriptedVerifier

SEARCHES = ("beam", "dvts", "mcts")
"""Those that write a step at a time."""


@functools.lru_cache(maxsize=1 << 16)
def draw(seed: int, depth: int) -> tuple[int, Stop]:
    """Tokens of a step and how it ends."""
    odds = random.Random(seed * 1009 + depth)
    for count in range(1, SAMPLING.max_step_tokens + 1):
        x = odds.random()
        if x < LINE_ENDS + CHAIN_ENDS:
            return count, "step" if x < LINE_ENDS else "eos"
    return SAMPLING.max_step_tokens, "length"


def step(chain: Chain, seed: int) -> Step:
    """The next step of a chain."""
    count, stop = draw(seed, len(chain))
    return Step(text=f"{seed}\n", token_ids=tuple(range(count)), stop=stop)


def units(strategy: Strategy, problem: str) -> tuple[float, int]:
    """Units of time and tokens of one search."""
    engine = Engine(
        policy=ScriptedPolicy(step, latency=lambda chain, seed: float(draw(seed, len(chain))[0])),
        strategy=strategy,
        verifier=ScriptedVerifier(score_fn=chance),
        budget=Budget(policy_tokens=None),
        sampling=SAMPLING,
    )
    solution, passed = run_virtual(engine.asolve(Problem(text="q", id=problem)))
    return passed, solution.usage.policy_tokens


def main() -> None:
    """Print a line for every search and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", nargs="+", default=["mcts"], choices=SEARCHES)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--draws", type=int, default=8)
    asked = parser.parse_args()
    for name in asked.searches:
        strategy = strategies(asked.n)[name]
        for number in range(asked.draws):
            found = [units(strategy, f"{number} {i}") for i in range(asked.problems)]
            longest = max(passed for passed, _ in found)
            tokens = sum(count for _, count in found)
            print(f"{name}: longest {longest:.0f} units, {tokens} tokens in all", flush=True)


if __name__ == "__main__":
    main()
