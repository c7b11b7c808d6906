"""The priors of Monte Carlo tree search: how likely the policy finds each child of a node."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Literal

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.tree import Tree

Prior = Literal["uniform", "policy"]


def set_priors(column: array[float], tree: Tree, children: Sequence[int], by: Prior) -> None:
    """Set the priors of siblings; they add up to 1.

    Raises:
        ConfigurationError: `by="policy"` with a policy that tells no log-probabilities.
    """
    weights = [1.0] * len(children) if by == "uniform" else _likelihoods(tree, children)
    total = math.fsum(weights)
    for child, weight in zip(children, weights, strict=True):
        column[child] = weight / total


def _likelihoods(tree: Tree, children: Sequence[int]) -> list[float]:
    """The likelihood per token of each child's step, relative to the most likely one."""
    means = [tree.logprob[child] / max(1, tree.num_tokens[child]) for child in children]
    if any(map(math.isnan, means)):
        raise ConfigurationError(
            "search.prior=policy needs a policy that tells log-probabilities; "
            "set search.prior=uniform"
        )
    highest = max(means, default=0.0)
    return [math.exp(mean - highest) for mean in means]
