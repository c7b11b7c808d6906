"""Refinement: rewrite a finished chain from its weakest step on, and keep what is better.

The backtracking of Tyen et al. 2024 (arXiv:2311.08516), with a verifier that points at the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import whole
from stepsearch.search.session import Session
from stepsearch.search.strategies.checks import require_verifier
from stepsearch.search.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """Improve `n` chains side by side, `rounds` times each.

    A round cuts the chain before its weakest step, the one with the lowest score (the first of
    equals), and writes the rest again. The better of old and new stays: a finished chain before
    one that is not, then the higher value, then the old one. A chain without scores is written
    again from the start. Selection is over all versions, not only the last (Snell et al. 2024,
    arXiv:2408.03314, section 6: revisions made 38 % of right answers wrong).

    Args:
        n: chains.
        rounds: revisions of each chain.
        max_steps: a chain is left unfinished after so many steps.
    """

    continues: ClassVar = True

    n: int = 2
    rounds: int = 3
    max_steps: int = 40

    def __post_init__(self) -> None:
        for name in ("n", "rounds", "max_steps"):
            whole(f"search.{name}", getattr(self, name), least=1)

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` unless the verifier scores every step."""
        spec = require_verifier("refine", verifier)
        if spec.incremental and spec.kind != "step":
            raise ConfigurationError(
                f"search=refine needs a score for every step, but verifier {spec.name!r} has kind "
                f"{spec.kind!r}; use a step verifier"
            )

    @property
    def max_chains(self) -> int:
        """The most chains that end."""
        return self.n * (1 + self.rounds)

    async def run(self, session: Session) -> None:
        """Refine the chains."""
        chains = await session.gather(*(self._refine(session) for _ in range(self.n)))
        ends = [end for end in chains if end is not None]
        # A revision that could not be scored is not the search's failure.
        session.scoring_failed = bool(ends) and all(session.value(end) is None for end in ends)
        if any(not session.tree.is_terminal(end) for end in ends):
            session.stop = "max_steps"

    async def _refine(self, session: Session) -> int | None:
        """Write a chain and revise it; the end of the best version."""
        best = await self._write(session, ROOT)
        for _ in range(self.rounds):
            if best is None or session.exhausted:
                break
            revised = await self._write(session, _cut(session, best))
            if revised is not None and _merit(session, revised) > _merit(session, best):
                best = revised
        return best

    async def _write(self, session: Session, node: int) -> int | None:
        """Continue the chain that ends in `node` to its end; None when the budget is spent."""
        left = self.max_steps - session.tree.depth[node]
        [ends] = await session.expand([node], 1, until="end", max_steps=left)
        return ends[0] if ends else None


def _cut(session: Session, end: int) -> int:
    """The last node before the weakest step of the chain; the root when there are no scores."""
    tree, scores = session.tree, session.step_scores(end)
    if not scores:
        return ROOT
    weakest = tree.path(end)[scores.index(min(scores))]
    return tree.parent[weakest]


def _merit(session: Session, end: int) -> tuple[bool, float]:
    """Finished or not, then the value; below all values when there is none."""
    value = session.value(end)
    return session.tree.stop(end) == "eos", float("-inf") if value is None else value
