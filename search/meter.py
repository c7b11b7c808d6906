"""Meter: adds up what one search spends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from stepsearch.search.arrivals import Arrivals, plus
from stepsearch.search.contracts import NewestScores, StepScores
from stepsearch.search.types import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedScores(StepScores):
    """Scores that a resumed search was given before; they are counted in what it had spent."""


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

    def sampled(self, arrivals: Arrivals) -> None:
        """Count continuations and their prefix tokens."""
        self.policy_calls += len(arrivals)
        self.policy_tokens += sum(arrivals.steps.num_tokens)
        self.completions += arrivals.num_finished
        self.prompt_tokens = plus(self.prompt_tokens, arrivals.prompt_tokens)
        self.prompt_tokens_reused = plus(self.prompt_tokens_reused, arrivals.prompt_tokens_reused)

    def carry(self, spent: Usage) -> None:
        """Begin with what a search that is resumed has spent."""
        self._started -= spent.seconds
        self.policy_tokens = spent.policy_tokens
        self.policy_calls = spent.policy_calls
        self.completions = spent.completions
        self.verifier_calls = spent.verifier_calls
        self.prompt_tokens = spent.prompt_tokens
        self.prompt_tokens_reused = spent.prompt_tokens_reused
        self.verifier_tokens = spent.verifier_tokens
        self.verifier_tokens_reused = spent.verifier_tokens_reused

    def scored(self, scores: Sequence[StepScores]) -> None:
        """Count scored chains."""
        computed: Sequence[int | None] | None
        reused: Sequence[int | None] | None
        if isinstance(scores, NewestScores):
            self.verifier_calls += len(scores)
            computed, reused = scores.tokens, scores.tokens_reused
        else:
            self.verifier_calls += sum(not isinstance(s, CarriedScores) for s in scores)
            computed = [s.tokens for s in scores]
            reused = [s.tokens_reused for s in scores]
        self.verifier_tokens = _sum(self.verifier_tokens, computed)
        self.verifier_tokens_reused = _sum(self.verifier_tokens_reused, reused)

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


def _sum(total: int | None, amounts: Sequence[int | None] | None) -> int | None:
    if total is None or amounts is None or None in amounts:
        return None
    return total + sum(amounts)  # type: ignore[arg-type]
