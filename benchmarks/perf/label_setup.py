"""What is the same for every way of labelling that is compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from stepsearch.policies.prompt import PromptFormat
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.errors import ConfigurationError

FORMAT = PromptFormat.from_mapping({"system": None, "final_prefix": "####"})
SAMPLING = SamplingParams(until="end", temperature=1.8, top_k=5, max_tokens=64)
"""So hot that about half of the answers are right, though the policy knows better."""
CONCURRENCY = 64
_LEAST_TOKENS = 20
"""The mean solution of these problems takes about 25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is the same for every method.

    Attributes:
        budget: policy tokens that a method may spend, on samples and rollouts together.
        num_taught: questions that the policy is trained on.
        policy_epochs: passes over them; few, so that it errs.
        num_held_out: questions that verifiers are measured on.
        num_far: questions of the generator's other split, for one figure: nothing has met their
            equations in this order.
        n: samples of a question that is labelled.
        num_choices: samples of a held-out question.
        k: continuations per prefix.
        prm_steps: optimiser steps of every verifier, in batches of 16.
    """

    budget: int = 100_000
    num_taught: int = 4000
    policy_epochs: float = 2
    num_held_out: int = 400
    num_far: int = 100
    n: int = 4
    num_choices: int = 8
    k: int = 4
    prm_steps: int = 400

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ConfigurationError(f"{name}={value} must be more than 0")

    @property
    def num_sampled(self) -> int:
        """Questions whose samples surely cost the budget."""
        return -(-self.budget // (self.n * _LEAST_TOKENS))
