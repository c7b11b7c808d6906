"""A verifier of your own: prefers short steps.

    python examples/custom_verifier.py

From the command line, with this folder on the Python path:

    PYTHONPATH=examples stepsearch solve "..." verifier=none \
        verifier._target_=custom_verifier.ShortSteps +verifier.limit=60
    PYTHONPATH=examples stepsearch solve "..." \
        'hydra.searchpath=[pkg://custom_conf]' verifier=short_steps
"""

from __future__ import annotations

from collections.abc import Sequence

from stepsearch import Chain, Step, StepScores, VerifierSpec, solve
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step


class ShortSteps:
    """Scores a step by its length: 1 for nothing, 0 at the limit.

    Args:
        limit: characters.
    """

    def __init__(self, limit: int = 80) -> None:
        self.spec = VerifierSpec(name="short", aggregation="mean", num_parameters=0)
        self._limit = limit

    def count_tokens(self, chain: Chain) -> int:
        """No tokens: it uses no model."""
        return 0

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """One score for each of the newest steps of each chain."""
        return [
            StepScores(values=tuple(map(self._score, c.texts[len(c) - c.num_new :])))
            for c in chains
        ]

    def _score(self, text: str) -> float:
        return max(0.0, 1.0 - len(text) / self._limit)


def talk(chain: Chain, seed: int) -> Step:
    """A policy without a model: says the same in more or fewer words."""
    if len(chain) == 2:
        return scripted_step(f"#### {seed % 2}", "eos")
    return scripted_step("word " * (1 + seed % 9) + "\n")


if __name__ == "__main__":
    solution = solve("How many?", policy=ScriptedPolicy(talk), verifier=ShortSteps())
    for step in solution.steps:
        print(f"{step.score:.3f}  {step.text.strip()}")
    print(f"answer {solution.answer}")
