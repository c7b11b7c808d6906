"""Reward-balanced search, REBASE (Wu et al. 2024, arXiv:2408.00724, section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.parameters import number, whole
from stepsearch.search.session import Session
from stepsearch.search.strategies.checks import require_verifier
from stepsearch.search.strategies.ranking import values_of
from stepsearch.search.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase:
    """Share the width of every step among all open nodes, by their value.

    The first step samples `n`. From then on the width is `n` minus the chains that ended, and an
    open node gets its share of it: width x softmax(value / temperature), in whole children by
    `apportion`. A node whose share rounds to nothing is left. The search ends when no width is
    left, no node is open, or `max_steps` is reached.

    Args:
        n: candidates per step until a chain ends, and the most chains that end.
        temperature: the balance temperature, in units of the verifier's scores; a low one follows
            the best nodes only, a high one treats all alike.
        max_steps: steps after which unfinished chains are left.
    """

    continues: ClassVar = True

    n: int = 8
    temperature: float = 0.1
    max_steps: int = 40

    def __post_init__(self) -> None:
        for name in ("n", "max_steps"):
            whole(f"search.{name}", getattr(self, name), least=1)
        number("search.temperature", self.temperature, above=0)

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` without a verifier."""
        require_verifier("rebase", verifier)

    @property
    def max_chains(self) -> int:
        """The most chains that end."""
        return self.n

    async def run(self, session: Session) -> None:
        """Grow the tree step by step."""
        tree, width, parents = session.tree, self.n, [ROOT] * self.n
        for _ in range(self.max_steps):
            groups = await session.expand(parents, 1)
            children = [child for group in groups for child in group]
            width -= sum(map(tree.is_terminal, children))
            values = values_of(session, children)
            live = [node for node in values if not tree.is_terminal(node)]
            if not live or width < 1 or session.exhausted:
                return
            shares = self._shares([values[node] for node in live], width)
            parents = [node for node, share in zip(live, shares, strict=True) for _ in range(share)]
        session.stop = "max_steps"

    def _shares(self, values: Sequence[float], width: int) -> list[int]:
        best = max(values)  # taken off, so that nothing overflows
        return apportion([math.exp((v - best) / self.temperature) for v in values], width)


def apportion(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to the weights that sum to `total`, by largest remainders.

    Each gets the whole part of its quota; what is left goes one by one to the largest remainders,
    the earlier one on a tie (Hamilton's method).

    Args:
        weights: not negative, not all zero.
        total: what is shared out.
    """
    quotas = np.asarray(weights, dtype=float) / np.sum(weights) * total
    shares = np.floor(quotas).astype(int)
    by_remainder = np.argsort(shares - quotas, kind="stable")
    shares[by_remainder[: total - int(shares.sum())]] += 1
    return [int(share) for share in shares]
