"""The policy on a real engine: ids, seeds, stops, limits, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.vllm_models import save_adapter
from support.vllm_settings import ENGINE

from stepsearch import Budget, Engine, Problem, SamplingParams
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.background import background
from stepsearch.search.contracts import Sample, TextLogprobs
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.testing.policy import check_policy
from stepsearch.verifiers.rule import RuleVerifier

pytestmark = pytest.mark.vllm

GREEDY = SamplingParams(temperature=0.0, max_step_tokens=24, max_tokens=60, until="end")
NOISY = SamplingParams(temperature=1.0, max_step_tokens=24)
QUESTIONS = [f"Tom has {n} pens and gives {n % 5} away. How many are left?" for n in range(8)]


def sample(policy: Any, chain: Chain, params: SamplingParams, seeds: Sequence[int]) -> list[Sample]:
    async def run() -> list[Sample]:
        found = [s async for s in policy.sample([chain] * len(seeds), seeds, params)]
        return sorted(found, key=lambda s: s.request)

    return background.submit(run()).result(timeout=120)


def root(question: str = QUESTIONS[0]) -> Chain:
    return Tree(question).chain(ROOT)


def test_it_keeps_the_contract(policy: Any) -> None:
    check_policy(policy)


def test_texts_are_as_likely_as_on_transformers(policy: Any, folder: Path) -> None:
    other = TransformersPolicy(
        model=folder, prompt_format={"system": None}, device="cpu", dtype="float32"
    )
    (ours,) = sample(policy, root(), replace(NOISY, until="step"), [3])
    tree = Tree(QUESTIONS[0])
    chains = [tree.chain(ROOT)]
    if ours.steps[0].stop == "step":
        chains.append(tree.chain(tree.add(ROOT, ours.steps[0])))
    texts = ["Verdict: correct", "Verdict: wrong", "x"]
    for chain in chains:
        found, expected = (weigh(p, chain, texts) for p in (policy, other))
        assert found.values == pytest.approx(expected.values, abs=1e-4)
        assert found.tokens is not None
        assert found.tokens > 0


def test_a_text_without_room_is_not_weighed(policy: Any) -> None:
    assert weigh(policy, root(), ["x" * 2000]) == ((), 0, 0)


def weigh(policy: Any, chain: Chain, texts: Sequence[str]) -> TextLogprobs:
    async def run() -> TextLogprobs:
        found: TextLogprobs = await policy.text_logprobs(chain, texts)
        return found

    return background.submit(run()).result(timeout=120)


def test_greedy_chains_are_those_of_transformers(policy: Any, folder: Path) -> None:
    other = TransformersPolicy(
        model=folder, prompt_format={"system": None}, device="cpu", dtype="float32"
    )
    for question in QUESTIONS:
        (ours,) = sample(policy, root(question), GREEDY, [1])
        (theirs,) = sample(other, root(question), GREEDY, [1])
        assert [s.token_ids for s in ours.steps] == [s.token_ids for s in theirs.steps]
        assert [(s.text, s.stop) for s in ours.steps] == [(s.text, s.stop) for s in theirs.steps]
        for a, b in zip(ours.steps, theirs.steps, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-3)


def test_steps_one_by_one_are_the_chain_at_once(policy: Any) -> None:
    (whole,) = sample(policy, root(), GREEDY, [1])
    tree, steps = Tree(QUESTIONS[0]), list[Step]()
    for expected in whole.steps:
        left = 60 - sum(s.num_tokens for s in steps)
        params = replace(GREEDY, until="step", max_tokens=left)
        (one,) = sample(policy, Chain(tree, ROOT, tuple(steps)), params, [1])
        assert len(one.steps) == 1
        assert one.steps[0].token_ids == expected.token_ids
        steps.append(one.steps[0])
        assert one.steps[0] == replace(expected, logprob=one.steps[0].logprob)


def test_prefixes_are_reused_and_counted(policy: Any) -> None:
    question = "".join(chr(ord("a") + i % 26) for i in range(200))
    length = policy.count_prompt_tokens(root(question).prompt)
    (first,) = sample(policy, root(question), NOISY, [1])
    (second,) = sample(policy, root(question), NOISY, [1])
    for found in (first, second):
        assert found.prompt_tokens + found.prompt_tokens_reused >= length
    assert first.prompt_tokens_reused < second.prompt_tokens_reused
    assert second.prompt_tokens_reused >= length - 2 * 32, "all but the last block"
    assert first.steps == second.steps


def test_a_full_context_is_a_stop_of_its_own(policy: Any) -> None:
    room = 5
    question = "x"
    while policy.count_prompt_tokens(question) < policy.engine.max_length - room:
        question += "x"
    (short,) = sample(policy, root(question), NOISY, [1])
    assert (short.steps[0].stop, short.steps[0].num_tokens) == ("context", room)
    (none,) = sample(policy, root(question + "x" * room), NOISY, [1])
    assert (none.steps[0].stop, none.steps[0].num_tokens) == ("context", 0)


@pytest.mark.parametrize("until", ["step", "end"])
def test_cancelling_aborts_the_requests(policy: Any, until: Any) -> None:
    long = SamplingParams(until=until, max_step_tokens=400, max_tokens=400, max_repeats=0)

    async def leave_early() -> None:
        stream = policy.sample([root()] * 32, range(32), long)
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()
        for _ in range(100):
            if not unfinished():
                return
            await asyncio.sleep(0.1)

    def unfinished() -> int:
        return int(policy.engine._llm.output_processor.get_num_unfinished_requests())

    background.submit(leave_early()).result(timeout=60)
    assert unfinished() == 0
    sample(policy, root(), NOISY, [1])


@pytest.mark.parametrize("strategy", [BestOfN(n=6), Beam(n=4, width=2), Mcts(simulations=12)])
@pytest.mark.parametrize("limit", [37, 150])
def test_budgets_hold_to_the_token_with_two_problems_at_once(
    policy: Any, strategy: Any, limit: int
) -> None:
    def engine() -> Engine:
        return Engine(
            policy=policy,
            strategy=strategy,
            verifier=RuleVerifier(),
            budget=Budget(policy_tokens=limit),
            sampling=replace(NOISY, max_tokens=60),
        )

    problems = [Problem(text=QUESTIONS[0]), Problem(text=QUESTIONS[1])]
    together = {s.problem.id: s for s in engine().solve_many(problems)}
    for problem in problems:
        a, b = together[problem.id], engine().solve(problem)
        assert a.error is None, a.error
        assert 0 < a.usage.policy_tokens <= limit
        assert a.usage.policy_tokens == sum(a.tree.num_tokens[1:])
        assert list(a.tree.tokens) == list(b.tree.tokens)


def test_text_stops_find_separators_that_lie_across_tokens(policy: Any) -> None:
    from stepsearch.policies.chunks import find_endings
    from stepsearch.policies.text import StepRules

    rules, endings = policy._rules, policy._endings
    (whole,) = sample(policy, root(), replace(NOISY, until="end", max_tokens=200), [7])
    ids = [i for step in whole.steps for i in step.token_ids]
    texts = [policy._starts.decode([i]) for i in ids]
    pairs = [a[-1:] + b[:1] for a, b in itertools.pairwise(texts)]
    separator = next(p for p in pairs if len(p) == 2 and p.isascii() and p.strip() == p)
    try:
        policy._rules = StepRules(separator=separator, final_prefix=None, eos_ids=rules.eos_ids)
        policy._endings = find_endings(policy._starts.tokenizer, policy._rules)
        params = replace(NOISY, max_step_tokens=200)
        (one,) = sample(policy, root(), params, [7])
        assert one.steps[0].stop == "step"
        assert separator in one.steps[0].text
        assert separator not in policy._starts.decode(one.steps[0].token_ids[:-1])
        assert not policy._endings.always
    finally:
        policy._rules, policy._endings = rules, endings


def test_seeds_make_independent_samples(policy: Any) -> None:
    found = sample(policy, root(), replace(NOISY, until="end", max_tokens=12), range(64))
    written = {tuple(i for s in f.steps for i in s.token_ids) for f in found}
    assert len(written) > 32, "neighbouring seeds share samples"
    assert all(math.isfinite(s.logprob or 0) for f in found for s in f.steps)


def test_an_adapter_writes_what_it_writes_with_transformers(folder: Path, tmp_path: Path) -> None:
    from stepsearch.policies.vllm import VllmPolicy

    adapter = save_adapter(tmp_path, seed=5)
    form = {"system": None}
    plain, theirs = (
        TransformersPolicy(
            model=folder, adapter=name, prompt_format=form, device="cpu", dtype="float32"
        )
        for name in (None, adapter)
    )
    ours = VllmPolicy(
        model=folder, adapter=adapter, prompt_format=form, engine=ENGINE | {"max_length": 512}
    )
    try:
        for question in QUESTIONS:
            ids = [
                [s.token_ids for s in sample(one, root(question), GREEDY, [1])[0].steps]
                for one in (ours, theirs, plain)
            ]
            assert ids[0] == ids[1]
            assert ids[1] != ids[2], "the adapter changes what is written"
        assert ours.spec.provenance["adapter_hash"]
    finally:
        ours.close()
