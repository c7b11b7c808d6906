"""The scripted verifier."""

from __future__ import annotations

import asyncio

import pytest

from stepsearch.search.contracts import ScoreFailure, Verifier
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.scripted import ScriptedVerifier


def chain_of(*texts: str, num_new: int) -> Chain:
    return Tree("q").chain(0, tuple(Step(text=t) for t in texts), num_new=num_new)


def test_satisfies_the_contract() -> None:
    assert isinstance(ScriptedVerifier(score_fn=lambda chain: 0.5), Verifier)


def test_one_number_is_given_to_every_new_step() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: 0.25, tokens_per_step=3)
    chains = [chain_of("a\n", "b\n", "c\n", num_new=2), chain_of("a\n", num_new=1)]
    scores = asyncio.run(verifier.score(chains))
    assert [s.values for s in scores] == [(0.25, 0.25), (0.25,)]
    assert [s.tokens for s in scores] == [6, 3] == [verifier.count_tokens(c) for c in chains]


def test_not_incremental_scores_all_steps() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: 1, incremental=False, tokens_per_step=1)
    (scores,) = asyncio.run(verifier.score([chain_of("a\n", "b\n", num_new=1)]))
    assert scores.values == (1, 1)
    assert scores.tokens == 2


def test_lists_and_failures_are_passed_on() -> None:
    def judge(chain: Chain) -> list[float] | ScoreFailure:
        if chain.text == "bad\n":
            return ScoreFailure("missing", "no verdict")
        return [float(len(text)) for text in chain.texts]

    verifier = ScriptedVerifier(score_fn=judge, range="unbounded", tokens_per_step=None)
    good, bad = asyncio.run(
        verifier.score([chain_of("a\n", "bb\n", num_new=2), chain_of("bad\n", num_new=1)])
    )
    assert (good.values, good.tokens) == ((2.0, 3.0), None)
    assert (bad.values, bad.failure) == ((), ScoreFailure("missing", "no verdict"))
    assert verifier.spec.range == "unbounded"


def test_latency_is_awaited_before_each_chain() -> None:
    seen: list[str] = []

    async def latency(chain: Chain) -> None:
        seen.append(f"wait {chain.text}")
        await asyncio.sleep(0)

    def judge(chain: Chain) -> float:
        seen.append(f"score {chain.text}")
        return 0.5

    verifier = ScriptedVerifier(score_fn=judge, latency=latency)
    asyncio.run(verifier.score([chain_of("a", num_new=1), chain_of("b", num_new=1)]))
    assert seen == ["wait a", "score a", "wait b", "score b"]


def test_an_exception_of_the_function_reaches_the_caller() -> None:
    def judge(chain: Chain) -> float:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        asyncio.run(ScriptedVerifier(score_fn=judge).score([chain_of("a", num_new=1)]))
