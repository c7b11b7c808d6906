"""The embedded model on vLLM: a search from end to end, and the greedy chains of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.vllm_settings import ENGINE

from stepsearch import SamplingParams, solve
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.policies.vllm import VllmPolicy
from stepsearch.search.background import background
from stepsearch.search.tree import ROOT, Tree

pytestmark = pytest.mark.vllm

NUM_QUESTIONS = 50
GREEDY = SamplingParams(temperature=0.0, until="end", max_step_tokens=24, max_tokens=24)
FORMAT = {"system": None, "separator": "\n", "final_prefix": "####"}


@pytest.fixture(scope="module")
def policy(embedded_path: Path) -> Iterator[VllmPolicy]:
    made = VllmPolicy(model="embedded", prompt_format=FORMAT, engine=ENGINE | {"max_length": 512})
    yield made
    made.close()


def test_beam_solves_from_end_to_end(policy: VllmPolicy) -> None:
    solution = solve(
        "Tom has 3 boxes with 4 pens each. How many pens has he?",
        policy=policy,
        verifier="rule",
        search="beam",
        overrides=["search.n=4", "search.width=2", "search.max_steps=3", "sampling.max_tokens=48"],
    )
    assert solution.error is None
    assert solution.usage.policy_tokens == sum(solution.tree.num_tokens)
    assert solution.usage.prompt_tokens_reused


def test_greedy_chains_are_those_of_transformers_on_fifty_questions(policy: VllmPolicy) -> None:
    """Where they part, the two choices were near ties for transformers too."""
    other = TransformersPolicy(
        model="embedded", prompt_format=FORMAT, device="cpu", dtype="float32"
    )
    chains = [
        Tree(
            f"Tom has {n} boxes with {n % 7 + 2} pens each and loses {n % 5}. How many are left?"
        ).chain(ROOT)
        for n in range(NUM_QUESTIONS)
    ]

    async def run(one: Any) -> dict[int, list[int]]:
        found = {}
        async for sample in one.sample(chains, range(NUM_QUESTIONS), GREEDY):
            found[sample.request] = [i for step in sample.steps for i in step.token_ids]
        return found

    ours = background.submit(run(policy)).result(timeout=300)
    theirs = background.submit(run(other)).result(timeout=300)
    parted = [n for n in range(NUM_QUESTIONS) if ours[n] != theirs[n]]
    gaps = [_gap(other, chains[n], ours[n], theirs[n]) for n in parted]
    print(f"{NUM_QUESTIONS - len(parted)} of {NUM_QUESTIONS} chains are equal; gaps {gaps}")
    assert all(gap < 1e-3 for gap in gaps)
    assert len(parted) <= NUM_QUESTIONS // 10


def _gap(policy: TransformersPolicy, chain: Any, a: list[int], b: list[int]) -> float:
    """Difference of the logits of the first two tokens that differ."""
    at = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    ids = (*policy._starts.prompt(chain.prompt), *a[:at])

    async def read() -> Any:
        return await policy.runner.encode(ids, [len(ids) - 1])

    hidden = background.submit(read()).result(timeout=60).hidden
    rows, _ = policy.runner.model.output_rows((a[at], b[at]))
    logits = hidden[0] @ rows.T
    return abs(float(logits[0] - logits[1]))
