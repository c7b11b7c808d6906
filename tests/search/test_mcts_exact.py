"""Success rates of Monte Carlo tree search that are known exactly.

The world: chains of three steps, each one of three digits with equal chance; some of the 27 are
correct. A search with enough simulations samples a whole tree of `width` children a node.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
from support.worlds import engine, fraction

from stepsearch import Budget, Chain, Problem, Step
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.task import ExactTask
from stepsearch.verifiers.scripted import ScriptedVerifier

DEPTH, DIGITS = 3, 3
CORRECT = {"000", "001", "120", "222"}
PROBLEMS = 250


def propose(chain: Chain, seed: int) -> Step:
    digit = str(int(fraction(seed, len(chain)) * DIGITS))  # a rollout keeps its seed
    if len(chain) + 1 < DEPTH:
        return scripted_step(digit, "step")
    return scripted_step(f"{digit} #### {chain.text + digit in CORRECT}", "eos")


def prefix(chain: Chain) -> str:
    return "".join(text[0] for text in chain.texts)


def oracle(chain: Chain) -> float:
    """1 where a correct completion exists."""
    return float(any(text.startswith(prefix(chain)) for text in CORRECT))


@cache
def chance(text: str, width: int) -> float:
    """That a tree of `width` samples a node, sampled below `text`, holds a correct chain."""
    if len(text) == DEPTH:
        return float(text in CORRECT)
    one = sum(chance(text + str(digit), width) for digit in range(DIGITS)) / DIGITS
    return 1.0 - (1.0 - one) ** width


def z_score(strategy: Mcts, verifier: ScriptedVerifier, expected: float) -> float:
    """How far the success rate is from the expected one, in standard errors."""
    search = engine(
        strategy,
        ScriptedPolicy(propose),
        verifier,
        task=ExactTask(),
        select="best",
        budget=Budget(policy_tokens=None),
    )
    solved = sum(
        search.solve(Problem(text="q", id=str(i))).answer == "True" for i in range(PROBLEMS)
    )
    error = math.sqrt(expected * (1 - expected) / PROBLEMS)
    return abs(solved / PROBLEMS - expected) / error


@pytest.mark.parametrize(
    "strategy",
    [
        Mcts(width=2, simulations=1000),
        Mcts(width=2, simulations=1000, exploration=0.0, backup="max", parallel=4),
        Mcts(width=2, simulations=1000, rollout=True, first_play=0.1),
    ],
)
def test_with_an_oracle_it_finds_what_the_sampled_tree_holds(strategy: Mcts) -> None:
    """An oracle never hides a correct chain: success = the tree holds one, whatever the order.

    With rollouts too: a node gets `width` children, the one of the rollout among them.
    """
    expected = chance("", strategy.width)
    assert 0.2 < expected < 0.9, "neither always nor never"
    assert z_score(strategy, ScriptedVerifier(score_fn=oracle), expected) < 4


@pytest.mark.parametrize(("simulations", "exploration"), [(3, 0.0), (1000, 0.1)])
def test_with_a_constant_verifier_it_is_one_sample(simulations: int, exploration: float) -> None:
    """All chains have the same length and value, so the first one finished is the answer.

    It is the same place of the tree in every problem, hence one sample of the policy.
    """
    strategy = Mcts(width=2, simulations=simulations, exploration=exploration)
    expected = len(CORRECT) / DIGITS**DEPTH
    assert z_score(strategy, ScriptedVerifier(score_fn=lambda chain: 0.5), expected) < 4
