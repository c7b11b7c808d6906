"""Success rates that are known exactly, on trees whose every continuation is equally likely.

At depth d a step is one of `b` equally likely ones, of which `g` keep a right chain right; a wrong
step spoils a chain for good. The oracle says whether a prefix is still right, that is whether a
right completion exists below it; the constant verifier knows nothing. With `select=best` a search
succeeds under the oracle exactly when one of its finished chains is right, and under the constant
verifier when its earliest finished chain is, which is a random chain.
"""

import math
from collections.abc import Callable

import pytest
from support.worlds import engine, fraction

from stepsearch import Chain, Problem
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.greedy import Greedy
from stepsearch.search.strategies.particle import Particle
from stepsearch.search.strategies.rebase import Rebase
from stepsearch.search.strategies.refine import Refine
from stepsearch.verifiers.scripted import ScriptedVerifier

LEVELS = [(4, 1), (3, 1), (5, 2)]
RATES = [good / choices for choices, good in LEVELS]
CHANCE = math.prod(RATES)
EASY_LEVELS = [(4, 3), (5, 4)]
EASY_CHANCE = 3 / 5
MOST_Z = 4.0
"""Standard errors by which a rate may miss: one run in 16,000 would, and the seeds are fixed."""


def tree_policy(levels: list[tuple[int, int]]) -> ScriptedPolicy:
    """One of the equally likely steps, independent of every other one."""

    def propose(chain: Chain, seed: int):
        depth = len(chain)
        choices, good = levels[depth]
        right = int(fraction(depth, seed) * choices) < good and "wrong" not in chain.text
        if depth + 1 < len(levels):
            return scripted_step("right " if right else "wrong ", "step")
        return scripted_step("#### 1" if right else "wrong #### 0", "eos")

    return ScriptedPolicy(propose)


def oracle(chain: Chain) -> list[float]:
    texts = chain.texts
    ends = range(len(texts) - chain.num_new, len(texts))
    return [float("wrong" not in "".join(texts[: k + 1])) for k in ends]


def binomial(trials: int, rate: float, hits: int) -> float:
    return math.comb(trials, hits) * rate**hits * (1 - rate) ** (trials - hits)


def reach(offspring: Callable[[int], int], samples: int, depth: int = 0) -> float:
    """Chance that a right chain is finished.

    Args:
        offspring: how many samples all right nodes of a step together get in the next one.
        samples: how many are drawn below right nodes now.
        depth: of what is drawn.
    """
    if depth + 1 == len(LEVELS):
        return 1 - (1 - RATES[depth]) ** samples
    return sum(
        binomial(samples, RATES[depth], hits) * reach(offspring, offspring(hits), depth + 1)
        for hits in range(1, samples + 1)
    )


def rebase_offspring(right: int, n: int, temperature: float) -> int:
    """Largest remainders: all right nodes have one quota, all wrong ones another."""
    odds = math.exp(1 / temperature)
    total = right * odds + (n - right)
    quotas = [(n * odds / total, True)] * right + [(n / total, False)] * (n - right)
    spare = n - sum(math.floor(quota) for quota, _ in quotas)
    by_remainder = sorted(quotas, key=lambda q: q[0] - math.floor(q[0]), reverse=True)
    return sum(math.floor(quota) for quota, is_right in quotas if is_right) + sum(
        is_right for _, is_right in by_remainder[:spare]
    )


def refined(rounds: int) -> float:
    """The first wrong step is found and everything from there on drawn again, `rounds` times."""
    missed = sum(
        math.prod(RATES[:depth]) * (1 - RATES[depth]) * (1 - math.prod(RATES[depth:])) ** rounds
        for depth in range(len(LEVELS))
    )
    return 1 - missed


def any_of(count: int, rate: float) -> float:
    return 1 - (1 - rate) ** count


CASES = [
    (Greedy(), CHANCE),
    (BestOfN(n=8), any_of(8, CHANCE)),
    (Beam(n=8, width=2), reach(lambda right: min(right, 4) * 2, 8)),
    (Beam(n=8, width=4), reach(lambda right: min(right, 2) * 4, 8)),
    (Beam(n=3, width=4), reach(lambda right: 4, 3)),
    (Dvts(n=8, width=2), any_of(4, reach(lambda right: 2, 2))),
    (Dvts(n=8, width=8), reach(lambda right: 8, 8)),
    (Rebase(n=8, temperature=0.05), reach(lambda right: 8, 8)),
    (Rebase(n=8, temperature=1.0), reach(lambda right: rebase_offspring(right, 8, 1.0), 8)),
    (Particle(n=8), reach(lambda right: 8, 8)),
    (Particle(n=8, ess_threshold=0.5), reach(lambda right: right if right >= 4 else 8, 8)),
    (Refine(n=1, rounds=6), refined(6)),
    (Refine(n=2, rounds=3), any_of(2, refined(3))),
]


def test_the_exact_values_differ() -> None:
    # Quotas of 1.9 and 0.7: the whole part of 1 each, then the largest remainders of 0.9 and 0.7.
    assert rebase_offspring(2, 8, 1.0) == 4
    assert len({round(value, 3) for _, value in CASES}) >= 10
    assert all(value > 2 * CHANCE for strategy, value in CASES if strategy != Greedy())


def rate_of(strategy, levels: list[tuple[int, int]], score_fn, problems: int) -> float:
    """The share of problems solved."""
    verifier = ScriptedVerifier(score_fn=score_fn)
    search = engine(strategy, tree_policy(levels), verifier, select="best")
    questions = [Problem(text=f"question {i}", id=str(i)) for i in range(problems)]
    return sum(s.answer == "1" for s in search.solve_many(questions)) / problems


@pytest.mark.parametrize(("strategy", "exact"), CASES, ids=str)
def test_with_the_oracle(strategy, exact: float) -> None:
    problems = 400
    error = math.sqrt(exact * (1 - exact) / problems)
    assert abs(rate_of(strategy, LEVELS, oracle, problems) - exact) < MOST_Z * error


@pytest.mark.parametrize("strategy", [strategy for strategy, _ in CASES], ids=str)
def test_with_the_constant_verifier(strategy) -> None:
    problems = 200
    error = math.sqrt(EASY_CHANCE * (1 - EASY_CHANCE) / problems)
    rate = rate_of(strategy, EASY_LEVELS, lambda chain: 0.5, problems)
    assert abs(rate - EASY_CHANCE) < MOST_Z * error
