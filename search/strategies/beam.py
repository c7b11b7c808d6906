"""Step-level beam search guided by a verifier (Snell et al. 2024, arXiv:2408.03314, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.parameters import whole
from stepsearch.search.session import Session
from stepsearch.search.strategies.checks import require_verifier
from stepsearch.search.strategies.ranking import values_of
from stepsearch.search.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """Keep n/width chains and expand each `width` times per step.

    The first step samples `n`. At every step the best chains, finished or not, take the places
    that are free; a finished one keeps its place and is never expanded or copied. The search ends
    when every place holds a finished chain, none can go on, or `max_steps` is reached.

    Args:
        n: candidates per step.
        width: continuations of each kept chain; `n < width` means a beam of one.
        lookahead: a candidate is ranked by the value of a greedy rollout of so many more steps.
            The rollouts are part of the tree and of its cost, and count as candidates for the
            answer when they finish.
        max_steps: steps after which unfinished chains are left.
    """

    continues: ClassVar = True

    n: int = 8
    width: int = 4
    lookahead: int = 0
    max_steps: int = 40

    def __post_init__(self) -> None:
        for name in ("n", "width", "max_steps"):
            whole(f"search.{name}", getattr(self, name), least=1)
        whole("search.lookahead", self.lookahead, least=0)

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` without a verifier."""
        require_verifier("beam", verifier)

    @property
    def places(self) -> int:
        """How many chains are kept."""
        return max(1, self.n // self.width)

    async def run(self, session: Session) -> None:
        """Grow the beam."""
        beam, free, width = [ROOT], self.places, self.n
        for _ in range(self.max_steps):
            groups = await session.expand(beam, width)
            children = [child for group in groups for child in group]
            kept = await self._best(session, children, free)
            beam = [node for node in kept if not session.tree.is_terminal(node)]
            free, width = free - (len(kept) - len(beam)), self.width
            if not beam or session.exhausted:
                return
        session.stop = "max_steps"

    async def _best(self, session: Session, children: list[int], places: int) -> list[int]:
        """The best children that may be kept, best first; the earlier one wins a tie."""
        tree = session.tree
        values = values_of(session, children)
        if self.lookahead:
            live = [child for child in values if not tree.is_terminal(child)]
            ends = await session.expand(
                live, 1, until="end", max_steps=self.lookahead, temperature=0.0
            )
            for child, reached in zip(live, ends, strict=True):
                for end in reached:
                    value = session.value(end)
                    if value is None:
                        del values[child]
                    else:
                        values[child] = value
        return sorted(values, key=values.__getitem__, reverse=True)[:places]
