"""Monte Carlo tree search over steps (PUCT), guided by a verifier.

Silver et al. 2017 (AlphaGo Zero) with a process reward model in place of the value network, as for
language models in Feng et al. 2023 (arXiv:2309.17179) and Zhang et al. 2024 (arXiv:2406.03816).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import number, whole
from stepsearch.search.session import Session
from stepsearch.search.strategies.checks import require_verifier
from stepsearch.search.strategies.simulations import Simulations


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts:
    """Descend, expand, back up, `simulations` times or until nothing is left to search.

    A simulation descends from the root to the child with the highest

        Q(s) - l O(s) / (N(s) + O(s)) + c P(s) sqrt(N(p) + O(p)) / (1 + N(s) + O(s))

    where N counts the simulations that were backed up through a node, O those in flight, p is the
    parent; the earliest child wins a tie. A node that was never expanded gets `width` children,
    whose values V are the verifier's. Then the mean of their values is backed up as one visit:

        backup=mean    Q(s) is the mean of what was backed up through s
        backup=max     Q(s) is the highest Q of its children that can be visited, or of all

    Until its first visit Q(s) is V(s), or Q(p) - r with `first_play=r`. A visit to a finished chain
    counts and backs its V up again. Subtrees with nothing left to expand are not entered. A child
    whose score failed, or whose chain was cut, has no value: it is not searched and adds nothing.

    `parallel` leaves are expanded at once. Simulations are backed up in the order in which they
    were selected, and simulation k is selected when exactly the first k - w are backed up,
    w = 3 parallel - 2: so the tree never depends on timing. (With w = parallel a slow leaf would
    leave most of the others idle; with parallel = 1 this is plain sequential search.)

    Args:
        simulations: how many, visits to finished chains included.
        width: children of a node.
        exploration: c, in the unit of the verifier's values; 0 follows the values alone. With a
            large c a small budget is spent before any chain is finished.
        prior: P among siblings: `uniform`, since samples of the policy come up as often as it likes
            them (Hubert et al. 2021, arXiv:2104.06303), or `policy`, the softmax of their
            log-probability per token.
        backup: `mean` or `max`.
        first_play: r, the first-play urgency reduction; None takes V.
        rollout: children are continued to the end and the value of each end is backed up as a visit
            of its own; all their steps become nodes.
        widening: progressive widening (Coulom 2007): a node of N visits may have
            floor(width N^widening) children, at most `width` more with every expansion; from 0,
            which keeps `width`, to 1.
        parallel: leaves in flight.
        virtual_loss: l; 0 only counts what is in flight (WU-UCT, Liu et al. 2020,
            arXiv:1810.11755).
        max_steps: nodes of this depth are not expanded.
    """

    continues: ClassVar = True
    grows: ClassVar = ("simulations",)

    simulations: int = 256
    width: int = 4
    exploration: float = 0.1
    prior: Literal["uniform", "policy"] = "uniform"
    backup: Literal["mean", "max"] = "mean"
    first_play: float | None = None
    rollout: bool = False
    widening: float = 0.0
    parallel: int = 1
    virtual_loss: float = 0.0
    max_steps: int = 40

    def __post_init__(self) -> None:
        for name in ("simulations", "width", "parallel", "max_steps"):
            whole(f"search.{name}", getattr(self, name), least=1)
        for name in ("exploration", "widening", "virtual_loss"):
            number(f"search.{name}", getattr(self, name), least=0)
        if self.widening > 1:
            raise ConfigurationError(f"search.widening={self.widening} must not be above 1")
        if self.first_play is not None:
            number("search.first_play", self.first_play, least=0)
        if self.prior not in ("uniform", "policy"):
            raise ConfigurationError(f"search.prior={self.prior!r} must be uniform or policy")
        if self.backup not in ("mean", "max"):
            raise ConfigurationError(f"search.backup={self.backup!r} must be mean or max")

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` without a verifier."""
        require_verifier("mcts", verifier)

    @property
    def window(self) -> int:
        """The most simulations that are selected and not yet backed up."""
        return 3 * self.parallel - 2

    async def run(self, session: Session) -> None:
        """Run the simulations."""
        await Simulations(self, session).run()
