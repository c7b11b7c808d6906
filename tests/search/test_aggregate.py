"""From step scores to chain values."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsearch.search.aggregate import AGGREGATIONS, aggregate, chain_value, extend
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Step

scores = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(scores)
def test_each_is_what_its_name_says(values) -> None:
    assert aggregate("last", values) == values[-1]
    assert aggregate("min", values) == min(values)
    assert aggregate("product", values) == pytest.approx(math.prod(values), abs=1e-12)
    assert aggregate("mean", values) == pytest.approx(statistics.fmean(values), abs=1e-12)


def test_nothing_has_no_value() -> None:
    assert aggregate("min", []) is None
    with pytest.raises(ValueError, match="median"):
        extend("median", 0.5, 1, 0.5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(values=scores)
def test_a_chains_value_is_that_of_its_scores(aggregation, values) -> None:
    tree = Tree("q")
    node = ROOT
    for value in values:
        node = tree.add(node, Step(text="a"))
        tree.score_column("prm").set(node, value)
    assert chain_value(tree, node, "prm", aggregation) == aggregate(aggregation, values)
    assert chain_value(tree, ROOT, "prm", aggregation) is None
    assert chain_value(tree, node, "other", aggregation) is None


def test_the_product_favours_short_chains_and_min_and_mean_do_not() -> None:
    short, long = [0.97] * 3, [0.97] * 12
    assert aggregate("product", short) > aggregate("product", long)
    assert aggregate("min", short) == aggregate("min", long)
    assert aggregate("mean", short) == pytest.approx(aggregate("mean", long))


def test_scores_that_change_with_the_chain_are_read_from_its_leaf() -> None:
    tree = Tree("q")
    first = tree.add(ROOT, Step(text="a"))
    second = tree.add(first, Step(text="b"))
    column = tree.score_column("critic")
    column.set(first, 0.9)
    column.set(second, 0.8)
    column.per_leaf[second] = (0.1, 0.8)
    assert chain_value(tree, second, "critic", "min") == 0.1
