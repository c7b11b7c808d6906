"""Particle filtering and particle Gibbs."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds import (
    engine,
    fingerprint,
    hash_verifier,
    outline,
    random_policy,
    table_policy,
    table_verifier,
)

from stepsearch import Chain, ConfigurationError, Problem
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.seeding import Seeder
from stepsearch.search.strategies import particle
from stepsearch.search.strategies.particle import Particle
from stepsearch.search.tree import ROOT
from stepsearch.verifiers.scripted import ScriptedVerifier

GOLDEN = Path(__file__).parent.parent / "golden"

TABLE = {
    "": ["a ", "b ", "c "],
    "a ": ["a ", "d "],
    "b ": ["a ", "#### 1."],
    "a a ": ["#### 3."],
    "a d ": ["#### 4."],
}
SCORES = {
    "a ": 0.75,
    "b ": 0.5,
    "a a ": 0.5,
    "a d ": 0.8,
    "b #### 1.": 0.9,
    "a d #### 4.": 0.6,
}


def test_golden_tree() -> None:
    """Checked by hand; the odds of .5 .75 .8 .9 are 1 3 4 9.

    Step 1 draws b a a b of weights 1 3 3 1, that is stretches of 0.5 1.5 1.5 0.5 on [0, 4). From
    u = 0.921 the points .921 1.921 2.921 3.921 fall to the first a twice, the second a and the last
    b. Their steps are d a d, and b finishes with 0.9: weights 4 1 4 9, stretches .89 .22 .89 2.
    From u = 0.688 the points .688 1.688 2.688 3.688 fall to the first d, the second d, and twice to
    the finished chain, which stays as it is and votes once. Both d finish.
    """
    rng = Seeder(6, Problem(text="q").id).generator()
    assert [round(float(rng.random()), 3) for _ in range(2)] == [0.921, 0.688]
    solution = engine(Particle(n=4), table_policy(TABLE), table_verifier(SCORES), seed=6).solve("q")
    assert outline(solution.tree) == (GOLDEN / "particle.txt").read_text()
    assert [candidate.answer for candidate in solution.candidates] == ["1.", "4.", "4."]
    assert solution.score == pytest.approx(1.2 / 2.1)


@given(
    weights=st.lists(st.floats(1e-9, 1), min_size=1, max_size=20),
    count=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_systematic_resampling_rounds_every_share_up_or_down(weights, count, seed) -> None:
    drawn = particle._draw(
        np.random.default_rng(seed), range(len(weights)), np.array(weights), count
    )
    assert len(drawn) == count
    assert drawn == sorted(drawn), "siblings stand side by side"
    for index, weight in enumerate(weights):
        share = count * weight / sum(weights)
        assert math.floor(share - 1e-6) <= drawn.count(index) <= math.ceil(share + 1e-6)


@pytest.mark.parametrize("draw", [particle._draw, particle._draw_independently])
def test_resampling_is_unbiased(draw) -> None:
    rng, weights = np.random.default_rng(0), np.array([0.1, 1.0, 0.4, 0.5])
    counts = np.zeros(4)
    for _ in range(4000):
        counts += np.bincount(draw(rng, range(4), weights, 3), minlength=4)
    expected = weights / weights.sum() * 12000
    assert np.all(np.abs(counts - expected) < 4 * np.sqrt(expected)), "4 standard errors"


def test_resamples_only_below_the_threshold() -> None:
    """One of four weighs 3, the others 1: the effective sample size is 36 / 12 = 3 of 4."""
    scores = {"a ": 0.75, "b ": 0.5}
    table = {"": ["a ", "b ", "b ", "b "], "a ": ["#### 1."], "b ": ["#### 2."]}
    full = {**scores, "a #### 1.": 0.5, "b #### 2.": 0.5}
    seen = set()
    for seed in range(40):
        for threshold in (0.74, 0.76):
            search = engine(
                Particle(n=4, ess_threshold=threshold),
                table_policy(table),
                table_verifier(full),
                seed=seed,
            )
            tree = search.solve("q").tree
            first = tree.children(ROOT)
            if sorted(tree.texts[node] for node in first) == ["a ", "b ", "b ", "b "]:
                seen.add((threshold, tuple(sorted(tree.num_children(node) for node in first))))
    assert seen == {(0.74, (1, 1, 1, 1)), (0.76, (0, 1, 1, 2))}


@pytest.mark.parametrize(
    ("value", "link", "epsilon", "logit"),
    [
        (0.5, None, 1e-6, 0.0),
        (0.75, None, 1e-6, math.log(3)),
        (0.0, None, 1e-3, -math.log(999)),
        (1.0, None, 1e-3, math.log(999)),
        (2.5, "logistic", 1e-6, 2.5),
        (1e300, "logistic", 1e-3, math.log(999)),
        (-1e300, "logistic", 1e-3, -math.log(999)),
    ],
)
def test_weights_are_odds_and_never_see_0_or_1(value, link, epsilon, logit) -> None:
    assert Particle(link=link, epsilon=epsilon)._logit(value) == pytest.approx(logit)


def test_scores_of_exactly_0_and_1_are_no_trouble() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: float(len(chain.text) % 2))
    solution = engine(Particle(n=6), random_policy(), verifier).solve("q")
    assert solution.stop == "done"
    zeros = ScriptedVerifier(score_fn=lambda chain: 0.0)
    assert engine(Particle(n=6), random_policy(), zeros).solve("q").stop == "done"


def test_a_logistic_link_is_the_same_filter() -> None:
    """Scores given as log-odds under the link and as probabilities without: the same tree."""
    odds = hash_verifier()

    def score(chain: Chain) -> list[float]:
        return [math.log(p / (1 - p)) for p in odds.score_fn(chain)]

    plain = engine(Particle(n=6), random_policy(), odds, select="majority").solve("q")
    linked = engine(
        Particle(n=6, link="logistic"),
        random_policy(),
        ScriptedVerifier(score_fn=score, range="unbounded"),
        select="majority",
    ).solve("q")
    assert plain.tree.texts == linked.tree.texts


def test_a_failed_score_drops_the_particle_and_not_the_run() -> None:
    def score(chain: Chain) -> float:
        return float("nan") if chain.text.startswith("b") else 0.5

    table = {"": ["a ", "b "], "a ": ["#### 1."]}
    verifier = ScriptedVerifier(score_fn=score)
    solution = engine(Particle(n=8), table_policy(table), verifier).solve("q")
    dropped = [n for n in solution.tree.children(ROOT) if solution.tree.texts[n] == "b "]
    assert 0 < len(dropped) < 8
    assert all(solution.tree.num_children(node) == 0 for node in dropped)
    assert len(solution.candidates) == 8, "resampled from those that are left"
    assert solution.stop == "done"


def test_gibbs_walks_along_the_reference_at_no_cost() -> None:
    """Two particles, one of them the reference: every pass after the first writes one chain."""
    policy = ScriptedPolicy(
        lambda chain, seed: (
            scripted_step("on ", "step")
            if len(chain) < 3
            else scripted_step(f"#### {seed % 5}", "eos")
        )
    )
    verifier = ScriptedVerifier(score_fn=lambda chain: 0.5)
    for passes in (1, 2, 5):
        solution = engine(Particle(n=2, iterations=passes), policy, verifier).solve("q")
        assert solution.usage.policy_calls == 4 * (2 + passes - 1)
        assert solution.usage.completions == 2 + passes - 1
        assert solution.stop == "done"


def test_gibbs_keeps_to_the_good_branch() -> None:
    """The reference holds the good half; later passes branch off it and stay there."""
    table = {"": ["a ", "b "], "a ": ["a ", "a "], "b ": ["b ", "b "]}
    table |= {"a a ": ["#### 1."], "b b ": ["#### 2."]}
    scores = {"a ": 0.99, "a a ": 0.99, "b ": 0.01, "b b ": 0.01}
    scores |= {"a a #### 1.": 0.99, "b b #### 2.": 0.01}
    for seed in range(8):
        search = engine(
            Particle(n=4, iterations=3), table_policy(table), table_verifier(scores), seed=seed
        )
        answers = [c.answer for c in search.solve("q").candidates]
        assert answers[4:].count("1.") == len(answers[4:]), "the first pass may have found no a"


def test_the_generator_is_the_searchs_own() -> None:
    search = engine(Particle(n=6), random_policy(), hash_verifier(), seed=3)
    assert fingerprint(search.solve("q")) == fingerprint(search.solve("q"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 0}, "search.n=0"),
        ({"iterations": 0}, "search.iterations=0"),
        ({"max_steps": 0}, "search.max_steps=0"),
        (
            {"ess_threshold": 0},
            "ess_threshold=0 must be a finite number, above 0 and at most 1",
        ),
        ({"ess_threshold": 1.5}, "search.ess_threshold=1.5"),
        ({"epsilon": 0}, "search.epsilon=0"),
        ({"epsilon": 0.6}, "search.epsilon=0.6"),
        ({"link": "probit"}, "search.link='probit' must be logistic or null"),
    ],
)
def test_parameters_are_checked(settings, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Particle(**settings)


def test_a_link_must_fit_the_verifier() -> None:
    unbounded = hash_verifier(range="unbounded")
    signed = hash_verifier(range="signed")
    for verifier in (unbounded, signed):
        with pytest.raises(ConfigurationError, match=r"search\.link=null does not fit verifier"):
            engine(Particle(), random_policy(), verifier)
        engine(Particle(link="logistic"), random_policy(), verifier)
    with pytest.raises(ConfigurationError, match=r"search\.link=logistic does not fit verifier"):
        engine(Particle(link="logistic"), random_policy(), hash_verifier())
