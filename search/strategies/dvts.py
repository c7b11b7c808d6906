"""Diverse verifier tree search (Beeching, Tunstall and Rush 2024, "Scaling test-time compute")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import whole
from stepsearch.search.session import Session
from stepsearch.search.strategies.checks import require_verifier
from stepsearch.search.strategies.ranking import values_of
from stepsearch.search.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Dvts:
    """Split a beam into n/width independent subtrees, each greedy.

    A subtree samples `width` next steps, goes on from the best of them and ends when the best one
    is finished, none can go on, or `max_steps` is reached. It never compares itself with another
    subtree nor waits for one, which keeps the answers diverse. Every chain that finished on the
    way is a candidate; open siblings are not.

    Args:
        n: candidates per step over all subtrees; a multiple of `width`.
        width: candidates per step of one subtree.
        max_steps: steps after which unfinished chains are left.
    """

    continues: ClassVar = True

    n: int = 8
    width: int = 4
    max_steps: int = 40

    def __post_init__(self) -> None:
        for name in ("n", "width", "max_steps"):
            whole(f"search.{name}", getattr(self, name), least=1)
        if self.n % self.width:
            raise ConfigurationError(
                f"search.n={self.n} must be a multiple of search.width={self.width}: "
                "n/width subtrees grow side by side"
            )

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` without a verifier."""
        require_verifier("dvts", verifier)

    async def run(self, session: Session) -> None:
        """Grow the subtrees."""
        subtrees = [self._grow(session) for _ in range(self.n // self.width)]
        ends = [end for end in await session.gather(*subtrees) if end is not None]
        session.scoring_failed &= not ends  # one subtree's failure is not the search's
        if any(not session.tree.is_terminal(end) for end in ends):
            session.stop = "max_steps"

    async def _grow(self, session: Session) -> int | None:
        """Grow one subtree; where it ended, None when no candidate could be followed."""
        best = ROOT
        for _ in range(self.max_steps):
            [children] = await session.expand([best], self.width)
            values = values_of(session, children)
            if not values:
                return None
            best = max(values, key=values.__getitem__)  # the earlier one wins a tie
            if session.tree.is_terminal(best) or session.exhausted:
                break
        return best
