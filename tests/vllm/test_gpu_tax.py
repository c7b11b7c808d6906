"""Passes are counted and caches emptied through parts of vLLM that it may change."""

from __future__ import annotations

from typing import Any

import pytest

from stepsearch import Engine, Problem, SamplingParams
from stepsearch.benchmarks.perf.gpu_engine import counted_policy, empty_policy
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.types import Usage

pytestmark = pytest.mark.vllm

CANDIDATES = 4


def solve(policy: Any) -> Usage:
    engine = Engine(
        policy=policy,
        strategy=BestOfN(n=CANDIDATES),
        sampling=SamplingParams(temperature=1.0, max_tokens=24),
        seed=1,
    )
    return engine.solve(Problem(text="Tom has 7 pens and gives 2 away. " * 4)).usage


def test_passes_are_counted_and_the_cache_is_emptied(policy: Any) -> None:
    with counted_policy(policy) as counter:
        solve(policy)
        empty_policy(policy)
        counter.restart()
        first = solve(policy)
        assert counter.rows >= first.policy_tokens
        assert 1 <= counter.rows / counter.passes <= CANDIDATES
        again = solve(policy)
        empty_policy(policy)
        emptied = solve(policy)
    assert again.prompt_tokens_reused > first.prompt_tokens_reused
    assert emptied.prompt_tokens_reused == first.prompt_tokens_reused
