"""Meter: adds up what one search spends."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stepsearch.search.contracts import StepScores
from stepsearch.search.types import Step, Usage


class Meter:
    """Counts tokens and calls; None as soon as a backend cannot tell.

    Args:
        policy_flops: FLOPs per policy token, None when unknown.
        verifier_flops: FLOPs per verifier token, None when unknown.
    """

    def __init__(self, policy_flops: float | None, verifier_flops: float | None) -> None:
        self._policy_flops = policy_flops
        self._verifier_flops = verifier_flops
        self._started = time.perf_counter()
        self.policy_tokens = 0
        self.policy_calls = 0
        self.completions = 0
        self.verifier_calls = 0
        self.prompt_tokens: int | None = 0
        self.prompt_tokens_reused: int | None = 0
        self.verifier_tokens: int | None = 0
        self.verifier_tokens_reused: int | None = 0

    def sampled(
        self,
        continuations: Sequence[tuple[Step, ...] | None],
        prefixes: Sequence[tuple[int | None, int | None]],
    ) -> None:
        """Count the continuations that are there, and their prefix tokens computed and reused."""
        arrived = [steps for steps in continuations if steps is not None]
        self.policy_calls += len(arrived)
        self.policy_tokens += sum([step.num_tokens for steps in arrived for step in steps])
        self.completions += sum([steps[-1].stop == "eos" for steps in arrived])
        self.prompt_tokens = _sum(self.prompt_tokens, [computed for computed, _ in prefixes])
        self.prompt_tokens_reused = _sum(
            self.prompt_tokens_reused, [reused for _, reused in prefixes]
        )

    def scored(self, scores: Sequence[StepScores]) -> None:
        """Count scored chains."""
        self.verifier_calls += len(scores)
        self.verifier_tokens = _sum(self.verifier_tokens, [s.tokens for s in scores])
        self.verifier_tokens_reused = _sum(
            self.verifier_tokens_reused, [s.tokens_reused for s in scores]
        )

    def usage(self) -> Usage:
        """Everything spent so far."""
        return Usage(
            policy_tokens=self.policy_tokens,
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_reused=self.prompt_tokens_reused,
            verifier_tokens=self.verifier_tokens,
            verifier_tokens_reused=self.verifier_tokens_reused,
            policy_calls=self.policy_calls,
            verifier_calls=self.verifier_calls,
            completions=self.completions,
            seconds=time.perf_counter() - self._started,
            flops=self._flops(),
        )

    def _flops(self) -> float | None:
        if self.prompt_tokens is None or self._policy_flops is None:
            return None
        policy = (self.policy_tokens + self.prompt_tokens) * self._policy_flops
        if not self.verifier_calls:
            return policy
        if self.verifier_tokens is None or self._verifier_flops is None:
            return None
        return policy + self.verifier_tokens * self._verifier_flops


def _sum(total: int | None, amounts: Sequence[int | None]) -> int | None:
    if total is None or None in amounts:
        return None
    return total + sum(amounts)  # type: ignore[arg-type]
