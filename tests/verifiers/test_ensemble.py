"""The ensemble of step verifiers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsearch.search.contracts import ScoreFailure, StepScores, Verifier, VerifierSpec
from stepsearch.search.errors import ConfigurationError, VerifierError
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.ensemble import EnsembleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier


class Fixed:
    """Returns what it was given, whatever it is asked."""

    def __init__(self, scores: StepScores, **spec: Any) -> None:
        self.scores = scores
        self.spec = VerifierSpec(name="fixed", **spec)

    def count_tokens(self, chain: Chain) -> int | None:
        return 4

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return [self.scores for _ in chains]


def chain_of(*texts: str, num_new: int) -> Chain:
    return Tree("q").chain(0, tuple(Step(text=t) for t in texts), num_new=num_new)


def by_length(chain: Chain) -> list[float]:
    return [1 / len(text) for text in chain.texts[len(chain) - chain.num_new :]]


def score(verifier: Verifier, *chains: Chain) -> list[StepScores]:
    return asyncio.run(verifier.score(chains))


def test_scores_are_the_weighted_product_and_parts_are_kept() -> None:
    ensemble = EnsembleVerifier(
        {
            "rule": ScriptedVerifier(score_fn=lambda chain: 0.5, tokens_per_step=2),
            "prm": ScriptedVerifier(score_fn=by_length, tokens_per_step=3),
        },
        {"prm": 2.0, "rule": 1.0},
    )
    chain = chain_of("a", "ab", "abcd", num_new=2)
    (scores,) = score(ensemble, chain)
    assert scores.values == (0.5 * 0.5**2, 0.5 * 0.25**2)
    assert scores.parts == {"rule": (0.5, 0.5), "prm": (0.5, 0.25)}
    assert scores.tokens == 10 == ensemble.count_tokens(chain)
    assert ensemble.spec.name == "rule*prm"
    assert isinstance(ensemble, Verifier)


def test_a_failed_member_fails_its_chain_only() -> None:
    def judge(chain: Chain) -> float | ScoreFailure:
        return ScoreFailure("too_long", "9 > 8") if chain.text == "bad" else 0.5

    ensemble = EnsembleVerifier(
        {
            "orm": ScriptedVerifier(score_fn=lambda chain: 0.5, tokens_per_step=1),
            "prm": ScriptedVerifier(score_fn=judge, tokens_per_step=2),
        }
    )
    bad, good = score(ensemble, chain_of("bad", num_new=1), chain_of("good", num_new=1))
    assert bad.failure == ScoreFailure("too_long", "prm: 9 > 8")
    assert (bad.values, bad.tokens) == ((), 3)
    assert good.values == (0.25,)


@pytest.mark.parametrize(
    ("value", "kind"), [(math.nan, "not_a_number"), (1.5, "out_of_range"), (-0.1, "out_of_range")]
)
def test_a_member_that_breaks_its_promise_is_a_failure(value: float, kind: str) -> None:
    ensemble = EnsembleVerifier(
        {"a": Fixed(StepScores(values=(value,))), "b": Fixed(StepScores(values=(0.5,)))}
    )
    (scores,) = score(ensemble, chain_of("a", num_new=1))
    assert scores.failure is not None
    assert scores.failure.kind == kind
    assert scores.failure.message.startswith("a: ")


def test_too_few_scores_are_missing_never_shifted() -> None:
    ensemble = EnsembleVerifier(
        {"a": Fixed(StepScores(values=(0.5,))), "b": Fixed(StepScores(values=(0.5, 0.5)))}
    )
    (scores,) = score(ensemble, chain_of("a", "b", num_new=2))
    assert scores.failure is not None
    assert scores.failure.kind == "missing"


def test_a_member_that_is_not_incremental_makes_all_steps_be_scored() -> None:
    ensemble = EnsembleVerifier(
        {
            "prm": ScriptedVerifier(score_fn=by_length),
            "whole": ScriptedVerifier(score_fn=lambda chain: 0.5, incremental=False),
        }
    )
    assert not ensemble.spec.incremental
    (scores,) = score(ensemble, chain_of("a", "ab", "abcd", num_new=1))
    assert scores.values == (0.5, 0.25, 0.125)


def test_more_scores_than_asked_are_aligned_at_the_end() -> None:
    ensemble = EnsembleVerifier(
        {
            "all": Fixed(StepScores(values=(0.1, 0.5), notes=("x", "y"))),
            "new": Fixed(StepScores(values=(0.5,), notes=("z",))),
        }
    )
    (scores,) = score(ensemble, chain_of("a", "b", num_new=1))
    assert scores.values == (0.25,)
    assert scores.notes == ("all: y; new: z",)


def test_unknown_tokens_stay_unknown() -> None:
    ensemble = EnsembleVerifier(
        {
            "a": ScriptedVerifier(score_fn=lambda chain: 0.5, tokens_per_step=None),
            "b": ScriptedVerifier(score_fn=lambda chain: 0.5, tokens_per_step=1),
        }
    )
    chain = chain_of("a", num_new=1)
    assert ensemble.count_tokens(chain) is None
    assert score(ensemble, chain)[0].tokens is None


def test_spec_holds_for_all_members() -> None:
    ensemble = EnsembleVerifier(
        {
            "a": Fixed(StepScores(), max_length=9, reserved=("<a>",), num_parameters=7),
            "b": Fixed(StepScores(), max_length=5, reserved=("<a>", "<b>"), num_parameters=0),
        },
        name="both",
        aggregation="product",
    )
    spec = ensemble.spec
    assert (spec.name, spec.aggregation, spec.max_length) == ("both", "product", 5)
    assert (spec.reserved, spec.num_parameters) == (("<a>", "<b>"), 7)
    unequal = [Fixed(StepScores(), num_parameters=n) for n in (7, 8)]
    assert EnsembleVerifier(dict(zip("ab", unequal, strict=True))).spec.num_parameters is None


def test_a_sequence_takes_the_names_of_the_specs() -> None:
    members = [ScriptedVerifier(score_fn=lambda chain: 0.5, name=name) for name in "ab"]
    assert EnsembleVerifier(members, [1, 3]).weights == {"a": 1.0, "b": 3.0}
    with pytest.raises(ConfigurationError, match="no name twice"):
        EnsembleVerifier([members[0], members[0]])


@pytest.mark.parametrize("spec", [{"kind": "outcome"}, {"range": "signed"}, {"range": "unbounded"}])
def test_members_without_step_probabilities_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="'orm' has kind"):
        EnsembleVerifier({"orm": Fixed(StepScores(), **spec)})


@pytest.mark.parametrize("weights", [{"a": 1.0}, [1.0], [1.0, 2.0, 3.0], [1.0, 0.0], [1.0, -1.0]])
def test_weights_that_do_not_fit_are_refused(weights: Any) -> None:
    members = {name: ScriptedVerifier(score_fn=lambda chain: 0.5) for name in "ab"}
    with pytest.raises(ConfigurationError, match="weights"):
        EnsembleVerifier(members, weights)


def test_no_members_and_a_member_s_own_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        EnsembleVerifier({})
    with pytest.raises(ConfigurationError, match="member's name"):
        EnsembleVerifier({"a": ScriptedVerifier(score_fn=lambda chain: 0.5)}, name="a")


@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.01, 10), min_size=4, max_size=4),
)
def test_the_product_is_a_probability_below_every_factor(
    values: list[float], weights: list[float]
) -> None:
    members = {f"m{i}": Fixed(StepScores(values=(v,))) for i, v in enumerate(values)}
    weights = weights[: len(values)]
    (scores,) = score(EnsembleVerifier(members, weights, name="e"), chain_of("a", num_new=1))
    assert scores.failure is None
    factors = [v**w for v, w in zip(values, weights, strict=True)]
    assert 0 <= scores.values[0] <= min(factors)


def finished(*texts: str, num_new: int) -> Chain:
    steps = [Step(text=t) for t in texts[:-1]] + [Step(text=texts[-1], stop="eos")]
    return Tree("q").chain(0, tuple(steps), num_new=num_new)


def decided(orm: float = 0.25, weight: float = 3.0) -> EnsembleVerifier:
    return EnsembleVerifier(
        {
            "prm": ScriptedVerifier(score_fn=by_length, tokens_per_step=1),
            "orm": Fixed(StepScores(values=(orm,), notes=("looks odd",)), kind="outcome"),
        },
        {"prm": 1.0, "orm": weight},
    )


def test_outcome_members_decide_on_finished_chains_only() -> None:
    chains = chain_of("a", "ab", num_new=2), finished("a", "ab", "abcd", num_new=2)
    guided, done = score(decided(), *chains)
    assert guided.values == (1.0, 0.5)
    assert "orm" not in guided.parts
    assert done.values == (0.5, pytest.approx((0.25 * 0.25**3) ** (1 / 4)))
    assert done.parts == {"prm": (0.5, 0.25), "orm": (0.25,)}
    assert done.notes == ("", "orm: looks odd")
    assert decided().spec.kind == "step"


def test_an_outcome_that_agrees_leaves_a_finished_chain_where_it_was() -> None:
    (done,) = score(decided(orm=0.25), finished("abcd", num_new=1))
    assert done.values == (pytest.approx(0.25),)


def test_outcome_members_are_counted_where_they_are_asked() -> None:
    assert decided().count_tokens(chain_of("a", "b", num_new=1)) == 1
    assert decided().count_tokens(finished("a", "b", num_new=1)) == 1 + 4
    assert decided().count_tokens(chain_of(num_new=0)) == 0 + 4, "both read the question"


def test_a_failed_outcome_fails_the_finished_chain_only() -> None:
    failing = Fixed(StepScores(failure=ScoreFailure("missing", "gone")), kind="outcome")
    ensemble = EnsembleVerifier({"prm": ScriptedVerifier(score_fn=by_length), "orm": failing})
    open_, done = score(ensemble, chain_of("a", num_new=1), finished("a", num_new=1))
    assert open_.values == (1.0,)
    assert (done.values, done.failure) == ((), ScoreFailure("missing", "orm: gone"))


def test_members_that_do_not_guide_decide_by_the_whole_chain() -> None:
    members = {
        "rule": ScriptedVerifier(score_fn=lambda chain: 0.5, tokens_per_step=1),
        "prm": ScriptedVerifier(score_fn=by_length, tokens_per_step=10, aggregation="mean"),
    }
    ensemble = EnsembleVerifier(members, {"rule": 1.0, "prm": 2.0}, guides=["rule"])
    chains = chain_of("a", "ab", num_new=1), finished("a", "ab", "abcd", num_new=1)
    guided, done = score(ensemble, *chains)
    assert (guided.values, guided.parts) == ((0.5,), {"rule": (0.5,)})
    assert done.parts == {"rule": (0.5,), "prm": (pytest.approx((1 + 1 / 2 + 1 / 4) / 3),)}
    assert done.values == (pytest.approx((0.5 * (1.75 / 3) ** 2) ** (1 / 3)),)
    assert [ensemble.count_tokens(chain) for chain in chains] == [1, 1 + 3 * 10]
    assert ensemble.spec.provenance["guides"] == ["rule"]


def test_guides_that_all_steps_have_change_nothing() -> None:
    members = {name: ScriptedVerifier(score_fn=by_length) for name in ("rule", "prm")}
    chain = finished("a", "abc", num_new=2)
    assert score(EnsembleVerifier(members), chain) == score(
        EnsembleVerifier(members, guides=["prm", "rule"]), chain
    )


@pytest.mark.parametrize("guides", [[], ["orm"], ["prm", "orm"], ["nobody"], [["prm"]]])
def test_guides_that_score_no_steps_are_refused(guides: list[Any]) -> None:
    members: dict[str, Verifier] = {
        "prm": ScriptedVerifier(score_fn=by_length),
        "orm": Fixed(StepScores(values=(0.5,)), kind="outcome"),
    }
    with pytest.raises(ConfigurationError, match=r"guides.*members of kind .step.*prm"):
        EnsembleVerifier(members, guides=guides)


@pytest.mark.parametrize("guides", ["prm", 5])
def test_guides_are_a_list_of_names(guides: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a list of names"):
        EnsembleVerifier({"prm": ScriptedVerifier(score_fn=by_length)}, guides=guides)


class Returning(Fixed):
    """A verifier that breaks the contract: it returns this, whatever it is asked."""

    def __init__(self, returned: list[Any]) -> None:
        super().__init__(StepScores())
        self.returned = returned

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return self.returned


@pytest.mark.parametrize("given", [None, 0.0, 0.5])
def test_a_member_that_returns_no_scores_fails_the_chain(given: Any) -> None:
    members = {"prm": ScriptedVerifier(score_fn=by_length), "own": Returning([given])}
    [scores] = score(EnsembleVerifier(members), chain_of("a", num_new=1))
    assert scores.failure is not None
    assert scores.failure.kind == "malformed"
    assert scores.failure.message.startswith(f"own: the verifier returned {given!r}")
    assert scores.tokens is None


@pytest.mark.parametrize("count", [0, 2])
def test_a_member_that_returns_another_number_of_scores_is_an_error(count: int) -> None:
    own = Returning([StepScores(values=(0.5,))] * count)
    ensemble = EnsembleVerifier({"prm": ScriptedVerifier(score_fn=by_length), "own": own})
    with pytest.raises(VerifierError, match=f"own: asked for 1 scores.*returned {count}"):
        score(ensemble, chain_of("a", num_new=1))


def test_outcome_members_reach_the_columns_of_the_tree() -> None:
    from support.worlds import engine, table_policy

    from stepsearch.search.strategies.beam import Beam

    policy = table_policy({"": ["ab\n", "abcd\n"], "ab\n": ["12."], "abcd\n": ["7."]})
    solution = engine(Beam(n=2, width=1), policy, decided(), select="best").solve("q")
    tree = solution.tree
    asked = [n for n in range(1, len(tree)) if tree.scores["orm"][n] is not None]
    assert asked == tree.terminals() != []
    assert all(tree.scores["prm"][n] is not None for n in range(1, len(tree)))
