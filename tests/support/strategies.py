"""Every strategy, in the shapes that behave differently."""

from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.greedy import Greedy
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.strategies.particle import Particle
from stepsearch.search.strategies.rebase import Rebase
from stepsearch.search.strategies.refine import Refine

STRATEGIES = [
    Greedy(),
    BestOfN(n=6),
    Beam(n=8, width=2),
    Beam(n=6, width=3, lookahead=1),
    Dvts(n=6, width=2),
    Rebase(n=6, temperature=0.3),
    Particle(n=6),
    Particle(n=4, ess_threshold=0.5, iterations=2),
    Refine(n=2, rounds=2),
    Mcts(simulations=16, width=3),
    Mcts(simulations=12, width=2, parallel=4, backup="max"),
]
