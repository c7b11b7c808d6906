"""From step scores to the value of a chain, as folds, so that a child costs O(1).

`last` fits PRMs trained on Monte-Carlo values, `min` is Math-Shepherd's choice (Wang et al. 2024),
`product` that of Lightman et al. 2023 (it favours short chains), `mean` RLHFlow's.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepsearch.search.contracts import Aggregation
from stepsearch.search.tree import FAILED, ROOT, Tree

AGGREGATIONS: tuple[Aggregation, ...] = ("last", "min", "mean", "product")


def extend(aggregation: Aggregation, value: float, num_steps: int, score: float) -> float:
    """The value of a chain of `num_steps` steps, prolonged by a step with `score`.

    `value` is ignored when `num_steps` is 0.
    """
    if aggregation == "last" or num_steps == 0:
        return score
    if aggregation == "min":
        return min(value, score)
    if aggregation == "product":
        return value * score
    if aggregation == "mean":
        return value + (score - value) / (num_steps + 1)
    raise ValueError(f"aggregation={aggregation!r} is not one of {', '.join(AGGREGATIONS)}")


def aggregate(aggregation: Aggregation, scores: Sequence[float]) -> float | None:
    """The value of a chain with these step scores; None for a chain without steps."""
    if not scores:
        return None
    value = 0.0
    for num_steps, score in enumerate(scores):
        value = extend(aggregation, value, num_steps, score)
    return value


def chain_scores(tree: Tree, node: int, verifier: str) -> tuple[float, ...] | None:
    """A verifier's scores of every step of the chain that ends in `node`.

    None when the chain's newest step has no score, or scoring failed somewhere on its way. Where a
    verifier judged only some prefixes (an outcome model), only their scores are there.
    """
    column = tree.scores.get(verifier)
    if column is None or column[node] is None:
        return None
    if node in column.per_leaf:
        return column.per_leaf[node]
    path = tree.path(node)
    if any(column.status[step] == FAILED for step in path):
        return None
    scores = (column[step] for step in path)
    return tuple(score for score in scores if score is not None)


def chain_value(tree: Tree, node: int, verifier: str, aggregation: Aggregation) -> float | None:
    """The aggregated value of the chain that ends in `node`; None when it has no score."""
    if node == ROOT:
        return None
    scores = chain_scores(tree, node, verifier)
    return None if scores is None else aggregate(aggregation, scores)
