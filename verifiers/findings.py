"""What the scores of probes say about a verifier: the single judgements of a self-check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from stepsearch.search.contracts import StepScores, VerifierSpec

Status = Literal["ok", "warning", "failed", "skipped"]

_NOISE = 0.05
"""A mean difference below this part of the range of scores is none."""


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        check: what was checked.
        status: `failed` means that scores must not be used; `warning` that they look odd.
        detail: what was seen and, unless it is `ok`, what to do.
    """

    check: str
    status: Status
    detail: str


def counts(names: Sequence[str], scores: Sequence[StepScores]) -> Finding:
    """Every probe has the scores that its chain asks for; a lost mark shows as a failure."""
    check = "marks = steps"
    short = 0
    for name, score in zip(names, scores, strict=True):
        if score.failure is None:
            continue
        if score.failure.kind == "too_long":
            short += 1
        elif score.failure.kind in ("not_a_number", "out_of_range"):
            continue  # said below
        else:
            return Finding(
                check,
                "failed",
                f"{name}: {score.failure.kind}, {score.failure.message}; the mark is lost,"
                " merged or doubled: insert it as ids and place its position per step",
            )
    if short == len(names):
        return Finding(check, "skipped", "every probe is above the length limit")
    return Finding(check, "ok", f"with {', '.join(names)}")


def values(spec: VerifierSpec, scores: Sequence[StepScores]) -> Finding:
    """Scores are finite, in the declared range, not all the same, and there are some."""
    check = f"finite, {spec.range}, not constant"
    for score in scores:
        if score.failure is not None and score.failure.kind in ("not_a_number", "out_of_range"):
            return Finding(
                check,
                "failed",
                f"{score.failure.message}; the head is not the one of this model, the declared"
                " range is wrong, or float16 overflows",
            )
    found = [value for score in scores for value in score.values]
    if not found:
        return Finding(check, "failed", _nothing_scored(scores))
    low, high = min(found), max(found)
    seen = f"{len(found)} scores from {low:.4g} to {high:.4g}"
    if high - low <= 1e-6 * max(1.0, abs(low)):
        return Finding(
            check,
            "failed",
            f"{seen}: all the same; the score is read from the wrong place or the wrong output,"
            " or model and reference are the same",
        )
    return Finding(check, "ok", seen)


def _nothing_scored(scores: Sequence[StepScores]) -> str:
    """Why a verifier that failed at every probe can be of no use, and what to do."""
    failures = [score.failure for score in scores if score.failure is not None]
    if not failures:
        return "no probe was scored, and no failure says why; return a score per step, or a failure"
    what = f"no probe was scored: {failures[0].kind}, {failures[0].message}"
    if failures[0].kind == "too_long":
        return f"{what}; raise max_length, or take a model that reads more than a few lines"
    return f"{what}; mend that: nothing is known of its scores"


def agree(
    check: str, what: str, spec: VerifierSpec, a: Sequence[StepScores], b: Sequence[StepScores]
) -> Finding:
    """Two ways of scoring the same chains come to the same."""
    pairs = [
        (x, y)
        for one, other in zip(a, b, strict=True)
        if one.failure is None and other.failure is None
        for x, y in zip(one.values, other.values, strict=True)
    ]
    if not pairs:
        return Finding(check, "skipped", "no probe was scored")
    size = max(1.0, *(abs(x) for x, _ in pairs)) if spec.range == "unbounded" else 1.0
    apart = max(abs(x - y) for x, y in pairs) / size
    # Half precision rounds differently in every shape of a batch, and a sharp head magnifies it.
    allowed = 1e-3 if spec.provenance.get("dtype", "float32") == "float32" else 5e-2
    if apart <= allowed:
        return Finding(check, "ok", f"{what} differ by {apart:.1e}")
    return Finding(
        check,
        "failed",
        f"{what} differ by {apart:.1e}, more than {allowed:.0e}: padding or what stands beside a"
        " chain leaks into it; pass an attention mask, pad on the right and index by position",
    )


def order(spec: VerifierSpec, scores: Sequence[StepScores]) -> Finding:
    """Right answers score above corrupted ones; `scores` are right, wrong, right, wrong and so on.

    A weak verifier comes out near one half and is only warned of: 120 random models won 3 to 9 of
    12 pairs. One that prefers the wrong answer in all pairs, or in all but one, has learnt the
    difference and is read upside down.
    """
    check = "good above corrupted"
    if any(score.failure is not None or not score.values for score in scores):
        return Finding(check, "skipped", "not every answer was scored")
    values = [score.values[-1] for score in scores]
    pairs = list(zip(values[::2], values[1::2], strict=True))
    won, lost = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    seen = f"{won} of {len(pairs)} right answers score above the same with an error"
    if 2 * won > len(pairs):
        return Finding(check, "ok", seen)
    ahead = sum(b - a for a, b in pairs) / len(pairs)
    if lost >= len(pairs) - 1 and ahead >= _NOISE * (max(values) - min(values)):
        return Finding(
            check,
            "failed",
            f"{seen}, and {lost} below, by {ahead:.3g} on average: the verifier tells the two apart"
            f" and prefers the wrong one; {_how_to_swap(spec)}",
        )
    return Finding(
        check,
        "warning",
        f"{seen}; the model is weak at this, or head, mark or template are not the model's",
    )


def _how_to_swap(spec: VerifierSpec) -> str:
    """What to change in a verifier that is read upside down."""
    form = spec.provenance.get("format", {})
    head = form.get("head", {})
    if "good_token" in head:
        return (
            "the labels are swapped: set"
            f" verifier.format.head.good_token={head['bad_token']!r} and"
            f" verifier.format.head.bad_token={head['good_token']!r}"
        )
    if head.get("num_outputs") == 2:
        return f"the labels are swapped: set verifier.format.head.good={1 - head['good']}"
    if "reference" in spec.provenance:
        return "verifier.model and verifier.reference are swapped: exchange them"
    return "a high score must mean a right step: turn the score's sign or the labels round"


def template(spec: VerifierSpec) -> Finding:
    """Which chat template is in use, and whether it prints a date."""
    check, hash = "template", spec.provenance.get("template_hash")
    if hash is None:
        return Finding(check, "skipped", "no chat template is used")
    date = spec.provenance.get("template_date")
    printed = f"prints the fixed date {date}" if date else "prints no date"
    return Finding(check, "ok", f"hash {hash}, {printed}")
