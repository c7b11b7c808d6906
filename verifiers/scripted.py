"""A verifier whose scores come from a function: for tests, examples and oracles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepsearch.search.contracts import (
    Aggregation,
    Kind,
    Range,
    ScoreFailure,
    StepScores,
    VerifierSpec,
)
from stepsearch.search.tree import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedVerifier:
    """Scores chains with a function.

    Attributes:
        score_fn: given a chain, the scores of its `chain.num_new` newest steps (of all its steps
            when not `incremental`), or one number for each of them, or why there are none.
        latency: awaited for every chain before it is scored; results do not depend on it.
        tokens_per_step: verifier tokens that a scored step costs; None when they are not known.
        name: as in `VerifierSpec`, like the attributes that follow.
    """

    score_fn: Callable[[Chain], float | Sequence[float] | ScoreFailure]
    latency: Callable[[Chain], Awaitable[Any]] | None = None
    tokens_per_step: int | None = 0
    name: str = "scripted"
    kind: Kind = "step"
    range: Range = "probability"
    aggregation: Aggregation = "last"
    threshold: float | None = None
    incremental: bool = True
    num_parameters: int | None = 0

    @property
    def spec(self) -> VerifierSpec:
        """What the scores mean."""
        return VerifierSpec(
            name=self.name,
            kind=self.kind,
            range=self.range,
            aggregation=self.aggregation,
            threshold=self.threshold,
            incremental=self.incremental,
            num_parameters=self.num_parameters,
        )

    def count_tokens(self, chain: Chain) -> int | None:
        """`tokens_per_step` for every step that scoring the chain gives a score to."""
        if self.tokens_per_step is None:
            return None
        return self.tokens_per_step * self._num_scored(chain)

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score the chains one after the other; what `score_fn` raises is raised here."""
        return [await self._score_one(chain) for chain in chains]

    async def _score_one(self, chain: Chain) -> StepScores:
        if self.latency is not None:
            await self.latency(chain)
        scored = self.score_fn(chain)
        tokens = self.count_tokens(chain)
        if isinstance(scored, ScoreFailure):
            return StepScores(failure=scored, tokens=tokens)
        if isinstance(scored, int | float):
            scored = [scored] * self._num_scored(chain)
        return StepScores(values=tuple(scored), tokens=tokens)

    def _num_scored(self, chain: Chain) -> int:
        return chain.num_new if self.incremental else len(chain)
