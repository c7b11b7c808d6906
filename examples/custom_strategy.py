"""A strategy of your own: keep the best chain and stop as soon as it is good enough.

    python examples/custom_strategy.py

From the command line, with this folder on the Python path, without a line of ours changed:

    PYTHONPATH=examples stepsearch solve "..." search=beam \
        search._target_=custom_strategy.FirstGood '~search.lookahead' '~search.width'

or as a configuration of its own, found through Hydra's search path:

    PYTHONPATH=examples stepsearch solve "..." \
        'hydra.searchpath=[pkg://custom_conf]' search=first_good
"""

from __future__ import annotations

from dataclasses import dataclass

from stepsearch import Chain, Session, Step, solve
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstGood:
    """Sample chains one after the other until one reaches a value.

    Args:
        n: most chains.
        good: stop when a chain is worth this.
        max_steps: longest chain.
    """

    n: int = 8
    good: float = 0.9
    max_steps: int = 40

    async def run(self, session: Session) -> None:
        """Sample until it is good enough."""
        for _ in range(self.n):
            [ends] = await session.expand([ROOT], 1, until="end", max_steps=self.max_steps)
            values = [session.value(end) for end in ends]
            if session.exhausted or any(v is not None and v >= self.good for v in values):
                return


def guess(chain: Chain, seed: int) -> Step:
    """A policy without a model: guesses a sum."""
    return scripted_step(f"2 + 2 = {3 + seed % 3}\n#### {3 + seed % 3}", "eos")


if __name__ == "__main__":
    solution = solve(
        "What is 2 + 2?", search=FirstGood(), policy=ScriptedPolicy(guess), verifier="rule"
    )
    chains = solution.usage.policy_calls
    print(f"answer {solution.answer} after {chains} chains, stop: {solution.stop}")
