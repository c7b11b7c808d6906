"""Where theory says that two strategies are the same search, their trees are the same."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds import engine, fingerprint, hash_verifier, outline, random_policy

from stepsearch import Session
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.particle import Particle
from stepsearch.search.strategies.rebase import Rebase
from stepsearch.search.strategies.refine import Refine
from stepsearch.search.tree import ROOT
from stepsearch.verifiers.scripted import ScriptedVerifier

CONSTANT = ScriptedVerifier(score_fn=lambda chain: 0.5)


@dataclass(frozen=True)
class Independent:
    """One chain after the other, step by step, each to its end: the plainest search there is."""

    n: int

    async def run(self, session: Session) -> None:
        for _ in range(self.n):
            node = ROOT
            while not session.tree.is_terminal(node):
                [[node]] = await session.expand([node], 1)


@dataclass(frozen=True)
class GreedyByScore:
    """PRM-guided greedy search: of `width` next steps the best one is taken, until it is an end."""

    width: int

    async def run(self, session: Session) -> None:
        node = ROOT
        while not session.tree.is_terminal(node):
            [children] = await session.expand([node], self.width)
            node = max(children, key=lambda child: session.value(child) or 0.0)


worlds = st.fixed_dictionaries(
    {
        "branching": st.integers(1, 5),
        "max_depth": st.integers(1, 6),
        "eos": st.sampled_from([0.0, 0.2, 0.6]),
    }
)


def solve(strategy, world, verifier=None, **settings_):
    verifier = hash_verifier() if verifier is None else verifier
    return engine(strategy, random_policy(**world), verifier, budget=None, **settings_).solve("q")


@settings(max_examples=40, deadline=None)
@given(world=worlds, n=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_beam_of_full_width_with_one_step_to_the_end_is_best_of_n(world, n, seed) -> None:
    world |= {"max_depth": 1}
    beam = solve(Beam(n=n, width=n), world, seed=seed)
    best = solve(BestOfN(n=n), world, seed=seed)
    assert fingerprint(beam) == fingerprint(best)


@settings(max_examples=40, deadline=None)
@given(world=worlds, width=st.integers(1, 6), seed=st.integers(0, 99))
def test_one_dvts_subtree_is_greedy_search_by_score(world, width, seed) -> None:
    dvts = solve(Dvts(n=width, width=width), world, seed=seed)
    greedy = solve(GreedyByScore(width=width), world, seed=seed)
    beam = solve(Beam(n=width, width=width), world, seed=seed)
    assert fingerprint(dvts) == fingerprint(greedy) == fingerprint(beam)


@settings(max_examples=40, deadline=None)
@given(
    world=worlds,
    n=st.integers(1, 9),
    threshold=st.sampled_from([0.2, 0.5, 1.0]),
    constant=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_particles_with_constant_scores_are_independent_samples(
    world, n, threshold, constant, seed
) -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: constant)
    filtered = solve(Particle(n=n, ess_threshold=threshold), world, verifier, seed=seed)
    independent = solve(Independent(n=n), world, verifier, seed=seed)
    assert outline(filtered.tree) == outline(independent.tree)


@settings(max_examples=40, deadline=None)
@given(world=worlds, n=st.integers(1, 9), seed=st.integers(0, 99))
def test_rebase_at_endless_temperature_with_open_chains_is_independent_sampling(
    world, n, seed
) -> None:
    """Equal shares of n among n open nodes are one child each; later ones while none finishes."""
    world |= {"eos": 0.0}
    balanced = solve(Rebase(n=n, temperature=1e9), world, seed=seed)
    independent = solve(Independent(n=n), world, seed=seed)
    assert outline(balanced.tree) == outline(independent.tree)


@settings(max_examples=40, deadline=None)
@given(world=worlds, n=st.integers(1, 4), rounds=st.integers(1, 4), seed=st.integers(0, 99))
def test_refine_with_a_constant_verifier_keeps_the_first_version(world, n, rounds, seed) -> None:
    refined = solve(Refine(n=n, rounds=rounds), world, CONSTANT, select="best", seed=seed)
    first = solve(BestOfN(n=1), world, CONSTANT, select="best", seed=seed)
    assert refined.text == first.text
    starts = refined.tree.num_children(ROOT)
    assert starts == n * (1 + rounds), "the first of equally weak steps is the very first"


@pytest.mark.parametrize("n", [1, 5])
def test_a_world_where_resampling_matters_tells_them_apart(n: int) -> None:
    """The equalities above hold because of the constant scores, not because nothing resamples."""
    world = {"branching": 4, "max_depth": 4, "eos": 0.1}
    filtered = solve(Particle(n=n), world)
    independent = solve(Independent(n=n), world)
    assert (outline(filtered.tree) == outline(independent.tree)) == (n == 1)
