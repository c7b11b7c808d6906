from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.rule import RuleVerifier, format_number

RIGHT = "First 16 * 3 = 48 eggs.\n"
WRONG = "Then 48 + 4 = 51 eggs.\n"
NEUTRAL = "So she has many.\n"


def chain(*texts: str, num_new: int | None = None) -> Chain:
    tail = tuple(Step(text=text) for text in texts)
    return Tree("How many eggs?").chain(ROOT, tail, len(texts) if num_new is None else num_new)


def score(*chains: Chain, verifier: RuleVerifier | None = None) -> list[StepScores]:
    return asyncio.run((verifier or RuleVerifier()).score(chains))


def test_it_is_a_verifier_that_costs_nothing() -> None:
    verifier = RuleVerifier()
    assert isinstance(verifier, Verifier)
    assert verifier.count_tokens(chain(RIGHT)) == 0
    assert (verifier.spec.name, verifier.spec.kind, verifier.spec.range) == (
        "rule",
        "step",
        "probability",
    )
    assert verifier.spec.incremental
    assert verifier.spec.num_parameters == 0
    assert verifier.spec.aggregation == "last"
    (scores,) = score(chain(RIGHT))
    assert (scores.tokens, scores.tokens_reused, scores.failure) == (0, 0, None)


def test_scores_and_notes() -> None:
    (scores,) = score(chain(RIGHT, WRONG, NEUTRAL, "x = 5 and 2x + 3 = 13"))
    assert scores.values == (1.0, 0.02, 0.02, 0.02)
    assert scores.notes == (
        "16 * 3 = 48 is right",
        "48 + 4 = 51 is wrong: 52",
        "no equation",
        "2x + 3 = 13 cannot be checked",
    )


def test_a_step_without_an_equation_leaves_the_chain_where_it_was() -> None:
    (scores,) = score(chain(NEUTRAL, NEUTRAL, RIGHT, NEUTRAL))
    assert scores.values == (0.3, 0.3, 1.0, 1.0)
    assert scores.notes == ("no equation", "no equation", "16 * 3 = 48 is right", "no equation")


def test_one_wrong_equation_spoils_a_step() -> None:
    (scores,) = score(chain("1 + 1 = 2, 2 + 2 = 5, 3 + 3 = 6, 2 + 2 = 5"))
    assert scores.values == (0.02,)
    assert scores.notes == ("1 + 1 = 2 is right; 2 + 2 = 5 is wrong: 4; 3 + 3 = 6 is right",)


def test_one_right_equation_lifts_what_cannot_be_checked() -> None:
    (scores,) = score(chain("2x = 4 and 1 + 1 = 2"))
    assert scores.values == (1.0,)


def test_the_result_may_stand_first() -> None:
    (scores,) = score(chain("5 = 2 + 3", "x = 5", "2 = 2 + 3"))
    assert scores.values == (1.0, 1.0, 0.02)
    assert scores.notes == ("5 = 2 + 3 is right", "no equation", "2 = 2 + 3 is wrong: 5")


def test_division_by_zero_is_wrong() -> None:
    (scores,) = score(chain("5 / 0 = 0"))
    assert scores.values == (0.02,)
    assert scores.notes == ("5 / 0 = 0 is wrong: division by zero",)


def test_only_new_steps_are_given_aligned_to_the_end() -> None:
    tree = Tree("How many eggs?")
    node = tree.add(ROOT, Step(text=WRONG))
    tail = (Step(text=RIGHT), Step(text=NEUTRAL))
    new, whole, none = score(tree.chain(node, tail), tree.chain(node, tail, 3), tree.chain(node))
    assert new.values == (0.02, 0.02)
    assert whole.values == (0.02, 0.02, 0.02)
    assert none.values == ()
    assert none.notes == ()


def test_scores_do_not_change_as_the_chain_grows() -> None:
    texts = [RIGHT, WRONG, NEUTRAL, RIGHT]
    (full,) = score(chain(*texts))
    for n in range(1, len(texts) + 1):
        (prefix,) = score(chain(*texts[:n]))
        assert prefix.values == full.values[:n]


def test_scores_can_be_set_and_are_recorded() -> None:
    verifier = RuleVerifier(correct=0.9, neutral=0.5, wrong=0.0, aggregation="product")
    (scores,) = score(chain(RIGHT, NEUTRAL, WRONG), verifier=verifier)
    assert scores.values == (0.9, 0.9, 0.0)
    assert verifier.spec.aggregation == "product"
    assert verifier.spec.provenance == {
        "correct": 0.9,
        "neutral": 0.5,
        "wrong": 0.0,
        "aggregation": "product",
    }


@pytest.mark.parametrize(
    "scores",
    [
        {"correct": 1.1},
        {"wrong": -0.1},
        {"neutral": 0.01},
        {"correct": 0.2},
        {"neutral": float("nan")},
    ],
)
def test_scores_out_of_range_or_order_are_refused(scores: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=r"verifier\.wrong=.* must be in this order"):
        RuleVerifier(**scores)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (52, "52"),
        (-7, "-7"),
        (Fraction(1, 4), "0.25"),
        (Fraction(-5, 2), "-2.5"),
        (Fraction(1250, 10), "125"),
        (Fraction(1, 3), "1/3"),
        (Fraction(1, 10**12), "0.000000000001"),
        (Fraction(1, 10**13), "1/10000000000000"),
    ],
)
def test_numbers_are_written_exactly(value: Fraction, text: str) -> None:
    assert format_number(value) == text
