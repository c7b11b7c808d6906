"""A verifier on vLLM: tokens computed over distinct ones, and how it shares a card with a policy.

The verifier reads two tokens of a language model with random weights, by the same code and routes
as a trained one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepsearch.benchmarks.perf.gpu_setup import (
    HALF,
    Timed,
    engine_settings,
    make_policy,
    num_tokens,
    say,
    search,
    starting,
    strategies,
    warm_up,
)
from stepsearch.benchmarks.perf.gpu_tax import free
from stepsearch.benchmarks.perf.scoring import distinct
from stepsearch.search.background import background
from stepsearch.search.contracts import StepScores
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.transformers import TransformersVerifier
from stepsearch.verifiers.vllm import VllmVerifier

FORMAT = {
    "name": "random",
    "prompt": "chat",
    "mark": "\n",
    "head": {"good_token": "+", "bad_token": "-"},
}
SIZES = (16, 32, 64)
"""Tokens of a step, its mark included."""

STEPS, WIDTH = 10, 4
IN_PROCESS = 1.02
QUESTION = "what is left of it? " * 4
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HEAD = "{:<12}{:>6}{:>10}{:>10}{:>8}{:>9}{:>10}".format(
    *("verifier", "t", "computed", "distinct", "ratio", "aim", "tokens/s")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Tokens that a verifier computed for a tree whose steps have `step` tokens."""

    backend: str
    step: int
    computed: int
    distinct: int
    seconds: float
    aim: float

    def line(self) -> str:
        """The row as text."""
        ratio = self.computed / self.distinct
        verdict = f"<={self.aim:.2f}" if ratio <= self.aim else f">{self.aim:.2f}!"
        return (
            f"{self.backend:<12}{self.step:>6}{self.computed:>10}{self.distinct:>10}"
            f"{ratio:>8.3f}{verdict:>9}{self.computed / self.seconds:>10.0f}"
        )


def token_rows(folder: Path, model: str) -> list[TokenRow]:
    """What is computed for beams of every step size, on vLLM and in process.

    The aim for an engine that reuses whole blocks of b tokens is 1.1 x (1 + b / 2 / t).
    """
    block = 32 if model == "tiny" else 16
    rows = []
    ours: Any = verifier_of(folder, model, share=0.5)
    try:
        for step in SIZES:
            rows.append(_grow(ours, "vllm", step, 1.1 * (1 + block / 2 / step)))
            say(rows[-1].line())
    finally:
        ours.close()
    theirs = TransformersVerifier(model=folder, format=FORMAT, selfcheck=False)
    for step in SIZES:
        rows.append(_grow(theirs, "in process", step, IN_PROCESS))
        say(rows[-1].line())
    return rows


def verifier_of(folder: Path, model: str, share: float) -> VllmVerifier:
    """A verifier on an engine that gets a share of the card."""
    # Texts of random tokens read as many more tokens than were written.
    settings = engine_settings(model, share) | {"max_length": 8192}
    with starting("the verifier's engine"):
        return VllmVerifier(model=folder, format=FORMAT, engine=settings, selfcheck=False)


def _grow(verifier: TransformersVerifier, backend: str, size: int, aim: float) -> TokenRow:
    """Score a beam as it grows: after every step, all candidates for the next one."""
    draw, tree, parent, computed = random.Random(size), Tree(f"{size} {QUESTION}"), ROOT, 0
    start = time.perf_counter()
    for _ in range(STEPS):
        # Random models have a token for every letter.
        texts = ["".join(draw.choices(LETTERS, k=size - 1)) for _ in range(WIDTH)]
        children = [tree.add(parent, Step(text=f"{text}\n")) for text in texts]
        chains = [tree.chain(child, num_new=1) for child in children]
        computed += sum(_known(scores) for scores in _score(verifier, chains))
        parent = children[0]
    return TokenRow(
        backend=backend,
        step=size,
        computed=computed,
        distinct=distinct(verifier, tree),
        seconds=time.perf_counter() - start,
        aim=aim,
    )


def _score(verifier: Any, chains: Sequence[Chain]) -> Sequence[StepScores]:
    async def run() -> Sequence[StepScores]:
        found: Sequence[StepScores] = await verifier.score(chains)
        return found

    return background.submit(run()).result()


def _known(scores: StepScores) -> int:
    if scores.failure is not None or scores.tokens is None:
        raise RuntimeError(f"no score, or nobody knows what it cost: {scores}")
    return scores.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Policy and verifier on one card: seconds together and of each alone, for the same work."""

    search: str
    concurrency: int
    tokens: int
    verifier_tokens: int
    together: float
    policy: float
    verifier: float

    def line(self) -> str:
        """The row as text; an overlap of 100 % hides the faster of the two."""
        both = self.policy + self.verifier
        hidden = (both - self.together) / min(self.policy, self.verifier)
        return (
            f"{self.search} P={self.concurrency}: together {self.together:.2f} s; policy alone"
            f" {self.policy:.2f} s, verifier alone {self.verifier:.2f} s, sum {both:.2f} s, larger"
            f" {max(self.policy, self.verifier):.2f} s; overlap {hidden:.0%};"
            f" {self.tokens / self.together:.0f} policy tokens/s,"
            f" {self.verifier_tokens / self.together:.0f} verifier tokens/s"
        )


def pair_rows(folder: Path, model: str, load: int, n: int) -> list[PairRow]:
    """Search with both on one card, then let each do its part alone."""
    policy = make_policy(folder, engine_settings(model, HALF))
    verifier = verifier_of(folder, model, HALF)
    rows = []
    try:
        warm_up(policy, verifier, model)
        for name in ("beam", "dvts"):
            together = search(policy, verifier, strategies(n)[name], load, name)
            alone = search(policy, free(), strategies(n)[name], load, f"again {name}")
            rows.append(_pair(name, together, alone, _rescore(verifier, together)))
            say(rows[-1].line())
    finally:
        policy.close()
        verifier.close()
    return rows


def _rescore(verifier: VllmVerifier, timed: Timed) -> float:
    """Seconds for the scores of a search, a depth of all its trees at a time.

    The questions are other ones of the same length, so that nothing of them is cached.
    """
    levels: dict[int, list[Chain]] = {}
    for solution in timed.solutions:
        old = solution.tree
        new = Tree("W" + old.question[1:], "W" + old.prompt[1:])
        for node in range(1, len(old)):
            new.add(old.parent[node], old.chain(node).newest)
            if old.scores["prm"][node] is not None:
                levels.setdefault(old.depth[node], []).append(new.chain(node, num_new=1))
    start = time.perf_counter()
    for depth in sorted(levels):
        _score(verifier, levels[depth])
    return time.perf_counter() - start


def _pair(name: str, together: Timed, alone: Timed, verifier: float) -> PairRow:
    """The policy alone, with free scores, wrote other tokens: its time is scaled to ours."""
    tokens = num_tokens(together.solutions)
    return PairRow(
        search=name,
        concurrency=len(together.solutions),
        tokens=tokens,
        verifier_tokens=sum(s.usage.verifier_tokens or 0 for s in together.solutions),
        together=together.seconds,
        policy=alone.seconds * tokens / num_tokens(alone.solutions),
        verifier=verifier,
    )
