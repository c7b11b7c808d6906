"""Accuracy of a selection among `k` of a problem's samples: the exact mean over all subsets.

Every function gives its value for all k = 1 ... n at once. Reading out the first k samples would
measure their order; the mean over subsets uses every sample equally. Where no closed form is known
(`votes.py`), seeded orders stand for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_EXACT = 1000
"""Most samples for which binomial coefficients fit into a float."""


def pass_at_k(num_samples: int, num_right: int) -> Floats:
    """Probability that k of the samples hold a right one.

    The unbiased estimator of Chen et al. 2021 (arXiv:2107.03374): 1 - C(n - c, k) / C(n, k).

    Returns:
        Shape (num_samples,), entry k - 1 for k samples.
    """
    wrong = num_samples - num_right
    drawn = np.arange(num_samples)
    left: Floats = np.maximum(wrong - drawn, 0) / (num_samples - drawn)
    return 1 - np.multiply.accumulate(left)


def best_of_k(hits: Sequence[float], num_samples: int) -> Floats:
    """Expectation over all k-subsets of the hit of their best member.

    Args:
        hits: of the samples that may be chosen, from the best to the worst; ties are settled by
            whoever put them in this order.
        num_samples: all samples, those included that may not be chosen.

    Returns:
        Shape (num_samples,). A subset without any that may be chosen counts 0.
    """
    return _best_chances(num_samples)[:, : len(hits)] @ np.asarray(hits, dtype=np.float64)


@lru_cache(maxsize=64)
def _best_chances(n: int) -> Floats:
    """Entry (k - 1, r): chance that rank r leads a k-subset of n, C(n - 1 - r, k - 1) / C(n, k)."""
    chances = np.zeros((n, n))
    ranks = np.arange(n)
    chances[0] = 1 / n
    for k in range(1, n):  # C(m, k) = C(m, k - 1) (m - k + 1) / k, likewise below the line
        chances[k] = chances[k - 1] * np.maximum(n - ranks - k, 0) / k * (k + 1) / (n - k)
    return chances


def majority_at_k(sizes: Sequence[int], hits: Sequence[float], num_samples: int) -> Floats:
    """Expectation over all k-subsets of the hit of their most frequent answer; ties are shared.

    Sharing a tie equally is what "the earliest wins" comes to over all orders of the samples.

    Args:
        sizes: how many samples gave each answer.
        hits: of each answer, 1 for a right one.
        num_samples: all samples, those without an answer included.

    Returns:
        Shape (num_samples,). A subset without any answer counts 0.

    For every answer j and count m it sums the ways in which j occurs m times and no other answer
    more often; with t others that tie the share is 1 / (t + 1), the integral of y^t over [0, 1],
    which Gauss-Legendre nodes give exactly.
    """
    if num_samples > MAX_EXACT:
        raise ValueError(f"num_samples={num_samples} must be at most {MAX_EXACT}")
    ways: Floats = np.zeros(num_samples + 1)
    for answer in (j for j, hit in enumerate(hits) if hit):
        for m in range(1, sizes[answer] + 1):
            others = [*sizes[:answer], *sizes[answer + 1 :]]
            rest = _ways_at_most(m, others, num_samples - sizes[answer])
            ways[m : m + len(rest)] += hits[answer] * comb(sizes[answer], m) * rest
    subsets = [float(comb(num_samples, k)) for k in range(1, num_samples + 1)]
    shares: Floats = ways[1:] / np.array(subsets)
    return shares


def _ways_at_most(m: int, sizes: Sequence[int], num_samples: int) -> Floats:
    """Ways to draw i of the samples so that no answer occurs more than m times, ties shared.

    Entry i, for i = 0 ... num_samples.
    """
    rivals = [size for size in sizes if size >= m]
    nodes, weights = np.polynomial.legendre.leggauss(len(rivals) // 2 + 1)
    ties = (nodes[:, None] + 1) / 2
    free = num_samples - sum(rivals)
    ways = np.zeros((len(nodes), num_samples + 1))
    ways[:, : free + 1] = [float(comb(free, i)) for i in range(free + 1)]
    for size in rivals:
        grown = np.zeros_like(ways)
        for i in range(m):
            grown[:, i:] += comb(size, i) * ways[:, : num_samples + 1 - i]
        grown[:, m:] += comb(size, m) * ties * ways[:, : num_samples + 1 - m]
        ways = grown
    total: Floats = weights @ ways / 2
    return total
