"""Step scores of many searches at once, in process: seconds beside those of the bare model.

`--problems` beams of `--n` candidates grow by five steps, each as fast as its scores come, with the
PRM that comes with stepsearch. The bound is the time that transformers takes for as many tokens,
as the distinct ones of all chains, in full batches without a cache.

    python -m stepsearch.benchmarks.perf.scoring_many [--problems 64] [--n 64] [--cache-bytes N]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from stepsearch.conf.build import build_verifier
from stepsearch.policies.model import CausalModel
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.transformers import TransformersVerifier

STEPS, WIDTH, ROWS = 5, 4, 128
WORDS = ("she", "buys", "sells", "apples", "pens", "for", "each", "day", "total", "is", "so")


class Beam:
    """One growing beam of made-up steps; nothing depends on the scores."""

    def __init__(self, number: int) -> None:
        self._rng = random.Random(number)
        self.tree = Tree(f"{number} children have {self._words(45)}. How many are left?")

    async def grow(self, verifier: TransformersVerifier, n: int) -> list[int]:
        """Score `n` candidates a step; returns the tokens computed for each."""
        computed, parents = [], [ROOT]
        for _ in range(STEPS):
            nodes = [self._add(parents[i % len(parents)]) for i in range(n)]
            chains = [self.tree.chain(node, num_new=1) for node in nodes]
            for scores in await verifier.score(chains):
                assert scores.failure is None, scores.failure
                computed.append(scores.tokens or 0)
            parents = self._rng.sample(nodes, max(1, n // WIDTH))
        return computed

    def chains(self) -> list[Chain]:
        """The chains that were scored."""
        return [self.tree.chain(node, num_new=1) for node in range(1, len(self.tree))]

    def _add(self, parent: int) -> int:
        a, b = self._rng.randrange(100), self._rng.randrange(100)
        return self.tree.add(parent, Step(text=f"{self._words(10)} {a} + {b} = {a + b}\n"))

    def _words(self, count: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=count))


async def grow_all(beams: Sequence[Beam], verifier: TransformersVerifier, n: int) -> list[int]:
    """All beams at once."""
    found = await asyncio.gather(*(beam.grow(verifier, n) for beam in beams))
    return [tokens for of_one in found for tokens in of_one]


def bare_seconds(model: CausalModel, ids: Sequence[Sequence[int]], num_tokens: int) -> float:
    """Seconds of the bare model for so many tokens, from batches of the longest sequences."""
    body: Any = model._model.base_model
    rows = sorted(ids, key=len)[-ROWS:]
    width = min(map(len, rows))
    batch = torch.tensor([list(row[:width]) for row in rows], device=model.device)
    mask = torch.ones_like(batch)
    taken = []
    with torch.no_grad():
        for _ in range(4):  # the first warms up
            started = time.perf_counter()
            states = body(input_ids=batch, attention_mask=mask, use_cache=False).last_hidden_state
            float(states.sum())  # waits for the device
            taken.append(time.perf_counter() - started)
    return min(taken[1:]) * num_tokens / batch.numel()


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--cache-bytes", type=int, default=16 << 30)
    asked = parser.parse_args()
    settings = ["verifier=prm", f"verifier.cache_bytes={asked.cache_bytes}"]
    verifier: Any = build_verifier(settings)
    asyncio.run(grow_all([Beam(-1)], verifier, asked.n))  # warms up
    beams = [Beam(number) for number in range(asked.problems)]
    started = time.perf_counter()
    computed = asyncio.run(grow_all(beams, verifier, asked.n))
    seconds = time.perf_counter() - started
    ids = [verifier.encode(chain).ids for beam in beams for chain in beam.chains()]
    bound = bare_seconds(verifier._body.runner.model, ids, sum(computed))
    print(
        f"{len(computed):,} chains, {sum(computed):,} tokens in {seconds:.1f} s:"
        f" {len(computed) / seconds:,.0f} chains/s, {sum(computed) / seconds:,.0f} tokens/s;"
        f" bare model {bound:.1f} s, ratio {seconds / bound:.2f}"
    )


if __name__ == "__main__":
    main()
