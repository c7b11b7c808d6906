"""Host cost of a step: beam search with mocks that cost nothing but read the newest step's ids.

Budgets, seeds, accounting and traces are switched on. With `--peer PYTHON`, an interpreter that has
its_hub 1.2.0 installed, its beam search runs with equivalent mocks in turn with ours.

    python -m stepsearch.benchmarks.perf.host [--peer PYTHON] [--repeat 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np

from stepsearch.search.arrivals import Candidates
from stepsearch.search.contracts import (
    NewestScores,
    PolicySpec,
    Samples,
    SamplingParams,
    VerifierSpec,
)
from stepsearch.search.engine import Engine
from stepsearch.search.steps import STOP_CODES, StepColumns
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.tree import Chain
from stepsearch.search.types import Budget

DEPTH = 10
SIZES = (4, 16, 64, 256, 1024, 4096)
TEXT = "w w w w w w w w w w w w w w w w w w w w\n"
IDS = [array("i", range(k, k + 20)) for k in range(97)]
EOS, OPEN = STOP_CODES["eos"], STOP_CODES["step"]


class MockPolicy:
    """Costs nothing but reads the ids of the chain's newest step."""

    def __init__(self) -> None:
        self.spec = PolicySpec(name="mock", num_parameters=0)
        self.steps = 0

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Samples]:
        """One step per seed, all at once; siblings carry the same chain."""
        count, is_last = len(seeds), len(chains[0]) + 1 >= DEPTH
        self.steps += count
        read = {chain: sum(chain.tree.token_ids(chain.node)) for chain in set(chains)}
        steps = StepColumns()
        for chain, seed in zip(chains, seeds, strict=True):
            steps.tokens += IDS[(seed + read[chain]) % 97]
        steps.offset = array("q", range(0, 20 * count + 1, 20))
        steps.num_tokens = array("i", [20]) * count
        steps.stop_code = array("b", [EOS if is_last else OPEN]) * count
        steps.logprob = array("f", [-1.0]) * count
        steps.texts = ["#### 1" if is_last else TEXT] * count
        yield Samples(range(count), steps, 0, 0)


class MockVerifier:
    """Costs nothing but reads the ids of the chain's newest step."""

    def __init__(self) -> None:
        self.spec = VerifierSpec(name="mock", num_parameters=0)

    def count_tokens(self, chain: Chain) -> int:
        """Nothing."""
        return 0

    async def score(self, chains: Sequence[Chain]) -> NewestScores:
        """A number from the newest step's ids."""
        assert isinstance(chains, Candidates)
        steps = chains.new_steps()
        sums = np.add.reduceat(np.frombuffer(steps.tokens, "i"), steps.offset[:-1])
        nothing = array("q", [0]) * len(chains)
        return NewestScores(array("d", sums % 97 / 97), nothing, nothing)


def ours(n: int, trace: Path) -> tuple[int, float]:
    """Steps and seconds of one search."""
    policy = MockPolicy()
    engine = Engine(
        policy=policy,
        verifier=MockVerifier(),
        strategy=Beam(n=n, width=4, max_steps=DEPTH),
        budget=Budget(policy_tokens=10_000_000, completions=1_000_000),
        trace=trace,
    )
    started = time.perf_counter()
    asyncio.run(engine.asolve("question"))
    return policy.steps, time.perf_counter() - started


def peer(python: str, n: int) -> tuple[int, float]:
    """Steps and seconds of its_hub."""
    script = Path(__file__).parent / "peers" / "its_hub_beam.py"
    command = [python, str(script), str(DEPTH), str(n)]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(line)
    return found["steps"], found["seconds"]


def main() -> None:
    """Print one line per size: median (min to max) of steps/s, ours and the peer's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", help="interpreter with its_hub 1.2.0")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print(f"{'n':>5} {'steps/s':>9} {'min':>9} {'max':>9} {'us/step':>8} {'peer':>9} {'ratio':>6}")
    for n in SIZES:
        rates: list[float] = []
        peers: list[float] = []
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory() as folder:
                steps, seconds = ours(n, Path(folder) / "trace.jsonl")
            rates.append(steps / seconds)
            if options.peer:
                steps, seconds = peer(options.peer, n)
                peers.append(steps / seconds)
        rate = statistics.median(rates)
        line = f"{n:5} {rate:9,.0f} {min(rates):9,.0f} {max(rates):9,.0f} {1e6 / rate:8.1f}"
        if peers:
            other = statistics.median(peers)
            line += f" {other:9,.0f} {rate / other:6.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
