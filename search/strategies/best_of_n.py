"""Best-of-N: independent chains, scored one by one as they finish.

With `select=majority` it is self-consistency (Wang et al. 2023, arXiv:2203.11171), with `best` the
best-of-N of Cobbe et al. 2021 (arXiv:2110.14168), with `weighted` the weighted vote of Li et al.
2023 (arXiv:2206.02336).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepsearch.search.parameters import whole
from stepsearch.search.session import Session
from stepsearch.search.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """`n` independent chains.

    Args:
        n: number of chains.
        max_steps: a chain is left unfinished after so many steps.
    """

    grows: ClassVar = ("n",)

    n: int = 8
    max_steps: int = 40

    def __post_init__(self) -> None:
        whole("search.n", self.n, least=1)
        whole("search.max_steps", self.max_steps, least=1)

    @property
    def max_chains(self) -> int:
        """The most chains that end."""
        return self.n

    async def run(self, session: Session) -> None:
        """Sample the chains."""
        [ends] = await session.expand([ROOT], self.n, until="end", max_steps=self.max_steps)
        if any(
            session.tree.depth[end] >= self.max_steps
            for end in ends
            if not session.tree.is_terminal(end)
        ):
            session.stop = "max_steps"
