"""Meter: adds up what one search spends."""

from __future__ import annotations

import time

from stepsearch.search.contracts import Sample, StepScores
from stepsearch.search.types import Usage


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

    def sampled(self, sample: Sample) -> None:
        """Count one continuation."""
        self.policy_calls += 1
        steps = sample.steps
        for step in steps:
            self.policy_tokens += step.num_tokens
        self.completions += steps[-1].stop == "eos"
        self.prompt_tokens = _add(self.prompt_tokens, sample.prompt_tokens)
        self.prompt_tokens_reused = _add(self.prompt_tokens_reused, sample.prompt_tokens_reused)

    def scored(self, scores: StepScores) -> None:
        """Count one scored chain."""
        self.verifier_calls += 1
        self.verifier_tokens = _add(self.verifier_tokens, scores.tokens)
        self.verifier_tokens_reused = _add(self.verifier_tokens_reused, scores.tokens_reused)

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
        computed = _add(self.policy_tokens, self.prompt_tokens)
        if computed is None or self._policy_flops is None:
            return None
        if not self.verifier_calls:
            return computed * self._policy_flops
        if self.verifier_tokens is None or self._verifier_flops is None:
            return None
        return computed * self._policy_flops + self.verifier_tokens * self._verifier_flops


def _add(total: int | None, amount: int | None) -> int | None:
    return None if total is None or amount is None else total + amount
