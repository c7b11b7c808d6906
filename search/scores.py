"""What a verifier returned, checked before it is believed: a failed score is not a number."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, get_args

from stepsearch.search.contracts import FailureKind, ScoreFailure, StepScores, VerifierSpec

_LARGEST = sys.float_info.max / (1 << 40)
"""Of an unbounded score: so many of them can be added up before their sum overflows."""


def checked(scores: StepScores, spec: VerifierSpec, *, num_steps: int, num_new: int) -> StepScores:
    """The scores, or a typed failure where anything in them is not what was declared.

    Checked are the number of scores, their values and range, notes, parts and token counts. Numbers
    of other libraries become Python's; token counts that cannot be right become None, unknown.

    Args:
        scores: what the verifier returned for a chain.
        spec: what the verifier declared.
        num_steps: steps of the chain.
        num_new: how many of them had no score yet.
    """
    if not isinstance(scores, StepScores):
        return malformed(scores)
    failure = scores.failure
    try:
        scores = _counted(scores)
        if failure is None:
            scores = _plain(scores)
    except (TypeError, ValueError, OverflowError) as error:
        unknown = replace(scores, tokens=None, tokens_reused=None)
        return _failed(unknown, ScoreFailure("malformed", str(error)))
    if failure is None:
        failure = _wrong_count(scores, spec, num_steps, num_new) or _wrong_value(scores, spec)
        return scores if failure is None else _failed(scores, failure)
    known = isinstance(failure, ScoreFailure) and failure.kind in get_args(FailureKind)
    if not known or not isinstance(failure.message, str):
        failure = ScoreFailure("malformed", f"the failure is {failure!r}, not a ScoreFailure")
    return _failed(scores, failure)


def malformed(given: object) -> StepScores:
    """The failure of a verifier that returned something else than scores."""
    told = ScoreFailure("malformed", f"the verifier returned {given!r}, not StepScores")
    return StepScores(failure=told, tokens=None, tokens_reused=None)


def bounds(spec: VerifierSpec) -> tuple[float, float]:
    """The smallest and largest score that the declared range allows."""
    if spec.range == "unbounded":
        return -_LARGEST, _LARGEST
    return (0.0 if spec.range == "probability" else -1.0), 1.0


def _counted(scores: StepScores) -> StepScores:
    """With token counts as whole numbers."""
    tokens = token_count("tokens", scores.tokens)
    reused = token_count("tokens_reused", scores.tokens_reused)
    if tokens is scores.tokens and reused is scores.tokens_reused:
        return scores
    return replace(scores, tokens=tokens, tokens_reused=reused)


def token_count(name: str, value: Any) -> int | None:
    """A number of tokens that a backend told, as an `int`; None where it is unknown.

    Raises:
        ValueError: it is neither; says so by name.
    """
    if type(value) is int and value >= 0:
        return value
    if value is None:
        return None
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if is_whole and (count := int(value)) >= 0:
        return count
    raise ValueError(f"{name}={value!r} must be a number of tokens, or None where it is unknown")


def _plain(scores: StepScores) -> StepScores:
    """With scores, notes and parts as plain tuples."""
    values, notes = _numbers("the score", scores.values), scores.notes
    if not isinstance(notes, tuple) or not all(isinstance(note, str) for note in notes):
        raise TypeError(f"notes={notes!r} must be a tuple of texts")
    if values is scores.values and not scores.parts:
        return scores
    if not isinstance(scores.parts, Mapping):
        raise TypeError(f"parts={scores.parts!r} must be scores by name")
    if not all(isinstance(name, str) for name in scores.parts):
        raise TypeError(f"parts are named {list(scores.parts)!r}, not all by text")
    parts = {
        name: _numbers(f"the score of part {name!r}", part) for name, part in scores.parts.items()
    }
    return replace(scores, values=values, parts=parts)


def _numbers(what: str, values: Sequence[float]) -> tuple[float, ...]:
    if type(values) is tuple and all(type(value) is float for value in values):
        return values
    for value in values:
        if not isinstance(value, Real):
            raise TypeError(f"{what} is {value!r}, not a number")
    return tuple(map(float, values))


def _wrong_count(
    scores: StepScores, spec: VerifierSpec, num_steps: int, num_new: int
) -> ScoreFailure | None:
    count = len(scores.values)
    fewest = num_steps if not spec.incremental else num_new if spec.kind == "step" else 1
    if not fewest <= count <= num_steps:
        kind: FailureKind = "missing" if count < fewest else "malformed"
        return ScoreFailure(
            kind, f"{count} scores for a chain of {num_steps} steps, {num_new} of them new"
        )
    if len(scores.notes) not in (0, count):
        return ScoreFailure("malformed", f"{len(scores.notes)} notes for {count} scores")
    for name, part in scores.parts.items():
        if name == spec.name:
            return ScoreFailure("malformed", f"a part has the verifier's own name, {name!r}")
        if len(part) > count:
            return ScoreFailure("malformed", f"{len(part)} scores of part {name!r}, {count} needed")
    return None


def _wrong_value(scores: StepScores, spec: VerifierSpec) -> ScoreFailure | None:
    low, high = bounds(spec)
    for value in scores.values:
        if not math.isfinite(value):
            return ScoreFailure("not_a_number", f"the score is {value}")
        if not low <= value <= high:
            return ScoreFailure("out_of_range", f"{value} is outside the range {spec.range!r}")
    for name, part in scores.parts.items():
        if not all(map(math.isfinite, part)):
            return ScoreFailure("not_a_number", f"the scores of part {name!r} are {part}")
    return None


def _failed(scores: StepScores, failure: ScoreFailure) -> StepScores:
    if failure is scores.failure and not (scores.values or scores.notes or scores.parts):
        return scores
    return replace(scores, values=(), notes=(), parts={}, failure=failure)
