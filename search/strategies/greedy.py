"""Greedy decoding: one chain at temperature 0, the baseline of everything else."""

from __future__ import annotations

from dataclasses import dataclass

from stepsearch.search.parameters import whole
from stepsearch.search.session import Session
from stepsearch.search.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """One chain at temperature 0.

    Args:
        max_steps: the chain is left unfinished after so many steps.
    """

    max_steps: int = 40

    def __post_init__(self) -> None:
        whole("search.max_steps", self.max_steps, least=1)

    @property
    def max_chains(self) -> int:
        """The most chains that end."""
        return 1

    async def run(self, session: Session) -> None:
        """Sample the chain."""
        [ends] = await session.expand(
            [ROOT], 1, until="end", max_steps=self.max_steps, temperature=0.0
        )
        if any(
            session.tree.depth[end] >= self.max_steps
            for end in ends
            if not session.tree.is_terminal(end)
        ):
            session.stop = "max_steps"
