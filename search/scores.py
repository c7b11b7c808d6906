"""What a verifier returned, checked before it is believed: a failed score is not a number."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

from stepsearch.search.contracts import FailureKind, ScoreFailure, StepScores, VerifierSpec


def checked(scores: StepScores, spec: VerifierSpec, *, num_steps: int, num_new: int) -> StepScores:
    """The scores, or a typed failure where their count, value or range is not what was declared.

    Args:
        scores: what the verifier returned for a chain.
        spec: what the verifier declared.
        num_steps: steps of the chain.
        num_new: how many of them had no score yet.
    """
    if scores.failure is not None:
        return scores
    count = len(scores.values)
    fewest = num_steps if not spec.incremental else num_new if spec.kind == "step" else 1
    if not fewest <= count <= num_steps:
        kind: FailureKind = "missing" if count < fewest else "malformed"
        return _failed(
            scores, kind, f"{count} scores for a chain of {num_steps} steps, {num_new} of them new"
        )
    low, high = bounds(spec)
    for value in scores.values:
        if not isinstance(value, int | float):
            return _failed(scores, "malformed", f"the score is {value!r}, not a number")
        if not math.isfinite(value):
            return _failed(scores, "not_a_number", f"the score is {value}")
        if not low <= value <= high:
            return _failed(scores, "out_of_range", f"{value} is outside the range {spec.range!r}")
    return scores


def bounds(spec: VerifierSpec) -> tuple[float, float]:
    """The smallest and largest finite score that the declared range allows."""
    if spec.range == "unbounded":
        return -sys.float_info.max, sys.float_info.max
    return (0.0 if spec.range == "probability" else -1.0), 1.0


def _failed(scores: StepScores, kind: FailureKind, message: str) -> StepScores:
    return replace(scores, values=(), notes=(), parts={}, failure=ScoreFailure(kind, message))
