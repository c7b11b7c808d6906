"""Host cost of a node of Monte Carlo tree search, with mocks that cost nothing.

The mocks read the newest step's ids; budgets, seeds and accounting are switched on. Every expansion
adds 4 children, down to a depth of 10. The last line is the growth exponent: the slope of log total
time over log nodes. With `--peer PYTHON`, an interpreter that has treequest 0.3.3 installed, its
StandardMCTS runs in place with equivalent mocks in turn with ours, up to 5,000 nodes. Its rate
falls as its tree grows, so two ratios are printed: over all nodes, and at that size, our rate
over all nodes (ours does not fall) by its rate over the last tenth.

    python -m stepsearch.benchmarks.perf.mcts [--peer PYTHON] [--parallel 1] [--repeat 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepsearch.benchmarks.perf.host import DEPTH, MockPolicy
from stepsearch.search.arrivals import Candidates
from stepsearch.search.contracts import NewestScores, VerifierSpec
from stepsearch.search.engine import Engine
from stepsearch.search.steps import StepColumns
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.tree import Chain
from stepsearch.search.types import Budget

WIDTH = 4
SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
LARGEST_FOR_PEER = 5_000


class MockVerifier:
    """Costs nothing but reads the ids of the chain's newest step; made for few chains a call."""

    def __init__(self) -> None:
        self.spec = VerifierSpec(name="mock", num_parameters=0)

    def count_tokens(self, chain: Chain) -> int:
        """Nothing."""
        return 0

    async def score(self, chains: Sequence[Chain]) -> NewestScores:
        """A number from the newest step's ids."""
        if isinstance(chains, Candidates):
            steps = chains.new_steps()
        else:  # several expansions in one call
            steps = StepColumns.of([chain.newest for chain in chains])
        values = array("d", [sum(steps.token_ids(k)) % 97 / 97 for k in range(len(chains))])
        nothing = array("q", [0]) * len(chains)
        return NewestScores(values, nothing, nothing)


def ours(nodes: int, parallel: int) -> tuple[int, float]:
    """Nodes and seconds of one search."""
    policy = MockPolicy()
    engine = Engine(
        policy=policy,
        verifier=MockVerifier(),
        strategy=Mcts(simulations=nodes // WIDTH, width=WIDTH, parallel=parallel, max_steps=DEPTH),
        budget=Budget(policy_tokens=100_000_000, completions=10_000_000),
    )
    started = time.perf_counter()
    asyncio.run(engine.asolve("question"))
    return policy.steps, time.perf_counter() - started


def peer(python: str, nodes: int) -> tuple[float, float]:
    """Nodes/s of treequest over all nodes, and over the last tenth of them."""
    script = Path(__file__).parent / "peers" / "treequest_mcts.py"
    command = [python, str(script), str(WIDTH), str(DEPTH), str(nodes)]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(line)
    return nodes / found["seconds"], nodes / 10 / found["last_tenth"]


def main() -> None:
    """Print one line per size: median (min to max) of nodes/s, ours and the peer's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", help="interpreter with treequest 0.3.3")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    ours(1_000, options.parallel)  # imports and first calls
    print(
        f"{'nodes':>7} {'nodes/s':>9} {'min':>9} {'max':>9} {'us/node':>8}"
        f" {'peer':>8} {'ratio':>6} {'peer at':>8} {'ratio':>6}"
    )
    totals: list[tuple[int, float]] = []
    for size in SIZES:
        runs = [ours(size, options.parallel) for _ in range(options.repeat)]
        rates = [nodes / seconds for nodes, seconds in runs]
        rate = statistics.median(rates)
        nodes = runs[0][0]
        totals.append((nodes, nodes / rate))
        line = f"{nodes:7} {rate:9,.0f} {min(rates):9,.0f} {max(rates):9,.0f} {1e6 / rate:8.1f}"
        if options.peer and size <= LARGEST_FOR_PEER:
            peers = [peer(options.peer, size) for _ in range(options.repeat)]
            for other in map(statistics.median, zip(*peers, strict=True)):
                line += f" {other:8,.0f} {rate / other:6.1f}"
        print(line, flush=True)
    slope = np.polyfit(np.log([n for n, _ in totals]), np.log([t for _, t in totals]), 1)[0]
    print(f"growth exponent {slope:.3f}")


if __name__ == "__main__":
    main()
