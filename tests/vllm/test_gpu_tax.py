"""The engine tax: passes are counted and caches emptied through parts of vLLM that may change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from stepsearch import Engine, Problem, SamplingParams
from stepsearch.benchmarks.perf.gpu_engine import counted_policy, empty_policy
from stepsearch.benchmarks.perf.gpu_setup import model_folder
from stepsearch.benchmarks.perf.gpu_tax import Plan, tax_rows
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


def test_rounds_of_a_search_and_of_raw_runs_of_what_it_wrote(tmp_path: Path) -> None:
    folder = model_folder("tiny", tmp_path)
    plan = Plan(searches=["best_of_n", "beam"], problems=[1, 2], n=4, rounds=2, until=math.inf)
    rows = tax_rows(folder, "tiny", plan)
    assert [(row.search, row.concurrency) for row in rows] == [
        *(("best_of_n", 2), ("beam", 2)),
        *(("best_of_n", 1), ("beam", 1)),
    ]
    for row in rows:
        is_many = row.concurrency == 2
        kinds = [kind for kind in (row.raw, row.raw_seeded) if kind]
        assert len(kinds) == (2 if is_many else 1)
        for raw in kinds:
            assert len(raw) == len(row.runs) == (2 if is_many else 1)
            for ours, theirs in zip(row.runs, raw, strict=True):
                assert theirs.tokens == ours.tokens
                assert 0 < theirs.passes <= ours.passes + 2  # the first of ours may be missed
        assert row.tax.low <= row.tax.middle <= row.tax.high
