"""How well latency is hidden, on a virtual clock: exact, repeatable, no model.

`leaves`: Monte Carlo tree search in one tree of 4 children a node. Speed-up over sequential search
of as many nodes, beside the most that any order of work could reach with a constant latency (the
tree begins with 1, 4, 16 leaves), and the value of the chosen chain, over seeded random trees.

`hiding`: problems share a policy of 256 slots and one process reward model. Wall time against its
lower bound: the largest of policy time over slots, verifier time, and the longest search when it
has everything to itself.

    python -m stepsearch.benchmarks.perf.latency [leaves] [hiding] [--trees 200]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepsearch.benchmarks.perf.clock import run_virtual
from stepsearch.search.batching import Batcher
from stepsearch.search.contracts import (
    PolicySpec,
    Sample,
    SamplingParams,
    StepScores,
    Strategy,
    VerifierSpec,
)
from stepsearch.search.engine import Engine
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.strategies.particle import Particle
from stepsearch.search.strategies.rebase import Rebase
from stepsearch.search.task import ExactTask
from stepsearch.search.tree import Chain
from stepsearch.search.types import Budget, Problem, Solution, Step

WIDTH = 4
SIGMA = 0.8
DEPTH = 8
STEP_TOKENS = 30
SLOTS = 256
Latency = Callable[[int], float]


def constant(mean: float) -> Latency:
    """The same seconds for every continuation."""
    return lambda seed: mean


def lognormal(mean: float) -> Latency:
    """Seconds that are lognormal over seeds, with sigma 0.8."""
    mu = math.log(mean) - SIGMA**2 / 2
    return lambda seed: random.Random(seed).lognormvariate(mu, SIGMA)


class Policy:
    """Steps of a random walk; one slot each, in the order in which they were asked for.

    A step's text is its place in the walk, whose logistic is the value of the chain.
    """

    def __init__(self, latency: Latency, num_slots: int | None = None) -> None:
        self.spec = PolicySpec(name="walk", num_parameters=0)
        self.seconds = 0.0
        self._latency = latency
        self._slots = asyncio.Semaphore(num_slots or 1 << 30)

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Sample]:
        """One step per seed."""
        tasks = [
            asyncio.ensure_future(self._step(index, chain, seed))
            for index, (chain, seed) in enumerate(zip(chains, seeds, strict=True))
        ]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for pending in tasks:
                pending.cancel()

    async def _step(self, index: int, chain: Chain, seed: int) -> Sample:
        seconds = self._latency(seed)
        async with self._slots:
            await asyncio.sleep(seconds)
        self.seconds += seconds
        before = float(chain.newest.text) if len(chain) else 0.0
        place = before + 0.6 * random.Random(seed + 1).gauss(0.0, 1.0)
        stop = "eos" if len(chain) + 1 >= DEPTH else "step"
        return Sample(index, (Step(text=repr(place), stop=stop, count=STEP_TOKENS),), 0, 0)  # type: ignore[arg-type]


class Verifier:
    """One server: a batch takes `fixed` seconds and `per_token` for every new token."""

    def __init__(
        self, *, fixed: float = 0.0, per_token: float = 0.0, is_shared: bool = True
    ) -> None:
        self.spec = VerifierSpec(name="walk", num_parameters=0)
        self.tokens = 0
        self._fixed, self._per_token = fixed, per_token
        self._batcher: Batcher[Chain, StepScores] = Batcher(
            self._score, max_in_flight=1 if is_shared else None
        )

    def count_tokens(self, chain: Chain) -> int:
        """Tokens of the newest steps."""
        return STEP_TOKENS * chain.num_new

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """The logistic of the newest step's place."""
        return [s for s in await self._batcher.submit(list(chains)) if isinstance(s, StepScores)]

    async def _score(self, chains: Sequence[Chain]) -> list[StepScores]:
        tokens = sum(map(self.count_tokens, chains))
        self.tokens += tokens
        if self._fixed or self._per_token:
            await asyncio.sleep(self._fixed + self._per_token * tokens)
        return [
            StepScores(values=(1.0 / (1.0 + math.exp(-float(chain.newest.text))),))
            for chain in chains
        ]


def engine(policy: Policy, verifier: Verifier, strategy: Strategy, nodes: int | None) -> Engine:
    """An engine that stops at so many nodes."""
    return Engine(
        policy=policy,
        verifier=verifier,
        strategy=strategy,
        task=ExactTask(),
        select="best",
        sampling=SamplingParams(max_step_tokens=STEP_TOKENS, max_tokens=STEP_TOKENS * DEPTH),
        budget=Budget(policy_tokens=None if nodes is None else nodes * STEP_TOKENS),
        concurrency=1 << 10,
    )


async def solve_all(search: Engine, ids: Sequence[int]) -> list[Solution]:
    """Solve problems concurrently."""
    problems = [Problem(text="question", id=str(i)) for i in ids]
    return [solution async for solution in search.asolve_many(problems)]


def fewest_rounds(expansions: int, parallel: int) -> int:
    """Rounds of at most `parallel` expansions, when each makes 4 more possible."""
    rounds, leaves = 0, 1
    while expansions > 0:
        sent = min(parallel, leaves, expansions)
        expansions, leaves, rounds = expansions - sent, leaves + (WIDTH - 1) * sent, rounds + 1
    return rounds


class Leaves(NamedTuple):
    """One search: virtual seconds, and the value of its chosen chain (None: none finished)."""

    seconds: float
    value: float | None


def search_tree(tree: int, nodes: int, parallel: int, latency: Latency) -> Leaves:
    """Search one random tree."""

    async def search() -> Solution:
        strategy = Mcts(simulations=100 * nodes, width=WIDTH, parallel=parallel)
        bound = engine(Policy(latency), Verifier(), strategy, nodes)
        return await bound.asolve(Problem(text="question", id=str(tree)))

    solution, seconds = run_virtual(search())
    assert solution.usage.policy_tokens == nodes * STEP_TOKENS, "equal nodes"
    scores = [c.score for c in solution.candidates if c.score is not None]
    return Leaves(seconds, max(scores, default=None))


def leaves(num_trees: int) -> None:
    """Print speed-up and loss of parallel leaves."""
    print("nodes  latency    leaves  speed-up  at most     value     loss  without a chain")
    for nodes in (1_024, 4_096):
        for name, latency in (("constant", constant(0.1)), ("lognormal", lognormal(0.1))):
            trees = range(num_trees if nodes == 1_024 else max(1, num_trees // 10))
            alone = [search_tree(tree, nodes, 1, latency) for tree in trees]
            for parallel in (1, 4, 16, 64):
                found = [search_tree(tree, nodes, parallel, latency) for tree in trees]
                _print_leaves(nodes, name, parallel, alone, found)


def _print_leaves(
    nodes: int, name: str, parallel: int, alone: Sequence[Leaves], found: Sequence[Leaves]
) -> None:
    speed = sum(run.seconds for run in alone) / sum(run.seconds for run in found)
    most = nodes // WIDTH / fewest_rounds(nodes // WIDTH, parallel)
    both = [
        (run.value, before.value)
        for run, before in zip(found, alone, strict=True)
        if run.value is not None and before.value is not None
    ]
    none = sum(run.value is None for run in found)
    value, loss = math.nan, math.nan
    if both:
        value = statistics.fmean(run for run, _ in both)
        loss = 1 - value / statistics.fmean(before for _, before in both)
    print(
        f"{nodes:5}  {name:9} {parallel:7} {speed:9.1f} {most:8.1f}  {value:8.4f}  {loss:7.2%}"
        f"  {none} of {len(found)}",
        flush=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Wall time of many searches on shared servers, and what bounds it, in seconds."""

    wall: float
    policy: float
    verifier: float
    longest: float

    @property
    def bound(self) -> float:
        """The largest lower bound."""
        return max(self.policy, self.verifier, self.longest)


def hide(strategy: Strategy, num_problems: int, nodes: int | None) -> Hidden:
    """Solve problems on shared servers, then each with servers to itself."""
    fixed, per_token = 0.020, 2e-6
    ids = range(num_problems)

    async def shared() -> tuple[Policy, Verifier]:
        policy = Policy(lognormal(0.5), SLOTS)
        verifier = Verifier(fixed=fixed, per_token=per_token)
        await solve_all(engine(policy, verifier, strategy, nodes), ids)
        return policy, verifier

    async def alone(problem: int) -> None:
        verifier = Verifier(fixed=fixed, per_token=per_token, is_shared=False)
        await solve_all(engine(Policy(lognormal(0.5)), verifier, strategy, nodes), [problem])

    (policy, verifier), wall = run_virtual(shared())
    return Hidden(
        wall=wall,
        policy=policy.seconds / SLOTS,
        verifier=verifier.tokens * per_token,
        longest=max(run_virtual(alone(problem))[1] for problem in ids),
    )


STRATEGIES: dict[str, tuple[Strategy, int | None]] = {
    "dvts": (Dvts(n=16, width=WIDTH), None),
    "rebase": (Rebase(n=16), None),
    "particle": (Particle(n=16), None),
    "beam": (Beam(n=16, width=WIDTH), None),
    "mcts": (Mcts(simulations=1_000, width=WIDTH, parallel=16), 64 * WIDTH),
}


def hiding() -> None:
    """Print wall time against the bound."""
    print("strategy  problems   wall s  bound s  policy s  verifier s  longest s  bound/wall")
    for name, (strategy, nodes) in STRATEGIES.items():
        for num_problems in (64, 8, 1):
            found = hide(strategy, num_problems, nodes)
            print(
                f"{name:8} {num_problems:9} {found.wall:8.2f} {found.bound:8.2f}"
                f" {found.policy:9.2f} {found.verifier:11.2f} {found.longest:10.2f}"
                f" {found.bound / found.wall:11.2f}",
                flush=True,
            )


def main() -> None:
    """Run the parts that were named, or both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", choices=["leaves", "hiding", []])
    parser.add_argument("--trees", type=int, default=200)
    options = parser.parse_args()
    if not options.parts or "leaves" in options.parts:
        leaves(options.trees)
    if not options.parts or "hiding" in options.parts:
        hiding()


if __name__ == "__main__":
    main()
