"""Reward functions, called as TRL's GRPOTrainer calls its `reward_funcs`.

TRL itself is not needed: its trainer passes keyword arguments only, `prompts`, `completions`,
`completion_ids`, every other column of the data set as a list, and `trainer_state`; it takes a list
with one number or None per completion, and the function's `__name__` for its logs.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest

import stepsearch
from stepsearch.search.contracts import ScoreFailure, StepScores, VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.rule import RuleVerifier

TRL = {"completion_ids": [[1], [2]], "trainer_state": object(), "answer": ["1", "2"]}
GOOD, BAD = "1 + 1 = 2\n2 + 2 = 4\n", "1 + 1 = 2\n2 + 2 = 5\n"


class Outcome:
    """Scores a whole chain by its number of steps; refuses what says so."""

    spec = VerifierSpec(name="orm", kind="outcome", range="probability")

    def count_tokens(self, chain: Chain) -> int:
        return 0

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return [
            StepScores(failure=ScoreFailure("too_long", "no"))
            if "refuse" in "".join(chain.texts)
            else StepScores(values=(len(chain) / 10,))
            for chain in chains
        ]


def test_steps_of_plain_texts() -> None:
    reward = stepsearch.reward_function(RuleVerifier())
    assert reward(prompts=["p", "p"], completions=[GOOD, BAD], **TRL) == [1.0, 0.02]
    mean = stepsearch.reward_function(RuleVerifier(), aggregation="mean")
    assert mean(prompts=["p"], completions=[BAD]) == [pytest.approx(0.51)]


def test_conversations() -> None:
    reward = stepsearch.reward_function(RuleVerifier())
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}]
    told = [[{"role": "assistant", "content": text}] for text in (GOOD, BAD)]
    assert reward(prompts=[prompt, prompt], completions=told, **TRL) == [1.0, 0.02]


def test_outcome_and_what_cannot_be_scored() -> None:
    reward = stepsearch.reward_function(Outcome())
    found = reward(prompts=["p"] * 3, completions=[GOOD, "refuse", ""])
    assert found == [0.2, None, None]
    with pytest.raises(ConfigurationError, match="scores whole solutions"):
        stepsearch.reward_function(Outcome(), aggregation="min")


def test_name_and_signature() -> None:
    reward: Any = stepsearch.reward_function(RuleVerifier(), name="steps")
    assert reward.__name__ == "steps"
    assert stepsearch.reward_function(RuleVerifier()).__name__ == "rule"
    inspect.signature(reward).bind(prompts=["p"], completions=["c"], **TRL)
