"""From a verifier's scores to probabilities, fitted on samples that somebody labelled.

Either a logistic curve (Platt 1999, with his smoothed targets) or the best rising step function
(isotonic regression by pooling adjacent violators; Zadrozny and Elkan 2002). Both keep the order of
scores, so that calibration changes what a score means and never which of two is better.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepsearch.search.contracts import Range, StepScores, Verifier, VerifierSpec
from stepsearch.search.errors import ConfigurationError, VerifierError
from stepsearch.search.scores import bounds
from stepsearch.search.tree import Chain

Method = Literal["platt", "isotonic"]
Floats = npt.NDArray[np.float64]
FILE_NAME = "calibration.json"
_EPSILON = 1e-6
_VERSION = 1
_WHERE = frozenset({"device", "dtype", "model", "adapter", "revision"})
"""Provenance that says where a verifier ran or lay, rather than what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A rising function from scores to probabilities: linear between knots, flat beyond them.

    Attributes:
        method: how it was fitted.
        range: of the scores that go in; probabilities go in as log-odds with `platt`.
        knots: scores, rising; with `platt` the slope and the intercept instead.
        values: the probability at every knot; empty with `platt`.
        num_samples: how many labelled samples it was fitted on.
        verifier: fingerprint of the verifier whose scores they were; None fits any.
    """

    method: Method
    range: Range
    knots: tuple[float, ...]
    values: tuple[float, ...] = ()
    num_samples: int
    verifier: str | None = None

    def __call__(self, score: float) -> float:
        """The probability that belongs to a score."""
        return float(self.apply([score])[0])

    def apply(self, scores: Sequence[float] | Floats) -> Floats:
        """The probabilities of many scores, [n] to [n]."""
        given = np.asarray(scores, dtype=np.float64)
        if self.method == "isotonic":
            return np.interp(given, self.knots, self.values)
        slope, intercept = self.knots
        return _logistic(slope * _linked(given, self.range) + intercept)

    def save(self, path: str | Path) -> None:
        """Write a JSON file; a folder gets `calibration.json`, beside the verifier's weights."""
        path = _file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"version": _VERSION} | asdict(self), indent=2, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote.

        Raises:
            ConfigurationError: there is no such file, or it holds something else.
        """
        path = _file(path)
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("version") != _VERSION:
                raise ValueError("it has another version")
            data |= {name: tuple(data[name]) for name in ("knots", "values")}
            return cls(**data)
        except OSError as error:
            raise ConfigurationError(f"calibration={path} cannot be read: {error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(f"calibration={path} is no calibration: {error!r}") from error


def fit(
    scores: Sequence[float],
    labels: Sequence[bool],
    method: Method = "platt",
    *,
    range: Range = "probability",
    verifier: str | None = None,
) -> Calibration:
    """Fit a calibration.

    Labels say what the scores are to mean: whether a step is right for scores of steps, whether the
    answer was right for scores of last steps.

    Args:
        scores: finite scores, at least one of a right and one of a wrong sample.
        labels: whether each sample is right.
        method: `platt` for few samples, `isotonic` from some hundreds on.
        range: the declared range of the scores.
        verifier: fingerprint of the verifier; see `fingerprint`.

    Raises:
        ConfigurationError: the samples do not say enough, or right samples score no higher.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    if x.shape != y.shape or x.ndim != 1 or not np.isfinite(x).all():
        raise ConfigurationError("scores and labels must be of one length, and scores finite")
    if y.all() or not y.any():
        raise ConfigurationError("labels are all the same; give right and wrong samples")
    if method not in ("platt", "isotonic"):
        raise ConfigurationError(f"method={method!r} must be platt or isotonic")
    knots, values = _platt(_linked(x, range), y) if method == "platt" else _isotonic(x, y)
    if knots[0] <= 0 if method == "platt" else values[0] == values[-1]:
        raise ConfigurationError(
            f"right samples score {x[y].mean():.4g} on average and wrong ones {x[~y].mean():.4g}: "
            "scores that do not rise with the labels cannot be calibrated"
        )
    return Calibration(
        method=method,
        range=range,
        knots=tuple(knots),
        values=tuple(values),
        num_samples=len(x),
        verifier=verifier,
    )


class CalibratedVerifier:
    """A verifier whose scores are turned into probabilities.

    Args:
        inner: the verifier.
        calibration: the function, or the file or folder that holds it.

    Raises:
        ConfigurationError: it cannot be read, or was fitted on scores of another range.
        VerifierError: it was fitted on another verifier.
    """

    def __init__(self, inner: Verifier, calibration: Calibration | str | Path) -> None:
        if not isinstance(calibration, Calibration):
            calibration = Calibration.load(calibration)
        self.inner = inner
        self.calibration = calibration
        self.spec = _calibrated(inner.spec, calibration)

    def count_tokens(self, chain: Chain) -> int | None:
        """Those of the verifier."""
        return self.inner.count_tokens(chain)

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score with the verifier, then calibrate; what is no score in its range stays as it is.

        Raises:
            VerifierError: the verifier's backend failed for good.
        """
        return [self._calibrate(scores) for scores in await self.inner.score(chains)]

    def _calibrate(self, scores: StepScores) -> StepScores:
        low, high = bounds(self.inner.spec)
        if not all(low <= value <= high for value in scores.values):
            nan = (float("nan"),) * len(scores.values)  # a bad score must not become a good one
            return replace(scores, values=nan)
        return replace(scores, values=tuple(self.calibration.apply(scores.values).tolist()))


def fingerprint(spec: VerifierSpec) -> str:
    """Names what a verifier computes, wherever it runs: its range and what it is made of."""
    made_of = {k: v for k, v in spec.provenance.items() if k not in _WHERE}
    text = json.dumps([spec.range, made_of], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _calibrated(spec: VerifierSpec, calibration: Calibration) -> VerifierSpec:
    if calibration.range != spec.range:
        raise ConfigurationError(
            f"calibration was fitted on scores of range {calibration.range!r}, but verifier "
            f"{spec.name!r} has range {spec.range!r}; fit it on this verifier's scores"
        )
    if calibration.verifier not in (None, fingerprint(spec)):
        raise VerifierError(
            f"calibration was fitted on another verifier than {spec.name!r} as it is now; fit it "
            "again on this one's scores"
        )
    return replace(
        spec,
        range="probability",
        threshold=None if spec.threshold is None else calibration(spec.threshold),
        provenance={**spec.provenance, "calibration": asdict(calibration)},
    )


def _file(path: str | Path) -> Path:
    path = Path(path).expanduser()
    return path if path.suffix == ".json" else path / FILE_NAME


def _linked(scores: Floats, range: Range) -> Floats:
    """Probabilities as log-odds, since a logistic curve is straight there."""
    if range != "probability":
        return scores
    inside = np.clip(scores, _EPSILON, 1 - _EPSILON)
    linked: Floats = np.log(inside) - np.log1p(-inside)
    return linked


def _logistic(x: Floats) -> Floats:
    probability: Floats = 0.5 * (1 + np.tanh(x / 2))  # never overflows
    return probability


def _platt(x: Floats, y: npt.NDArray[np.bool_]) -> tuple[list[float], list[float]]:
    """Slope and intercept of greatest likelihood, by Newton's method on standardised scores."""
    right, wrong = int(y.sum()), int((~y).sum())
    target = np.where(y, (right + 1) / (right + 2), 1 / (wrong + 2))
    mean, scale = x.mean(), x.std()
    if scale == 0:
        return [0.0, 0.0], []  # equal scores tell nothing
    design = np.stack([(x - mean) / scale, np.ones_like(x)], axis=1)
    weights = np.zeros(2)
    for _ in range(100):
        p = _logistic(design @ weights)
        gradient = design.T @ (p - target)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights -= step * min(1.0, 5.0 / max(np.abs(step).max(), 1e-300))
        if np.abs(step).max() < 1e-10:
            break
    slope = float(weights[0] / scale)
    return [slope, float(weights[1] - slope * mean)], []


def _isotonic(x: Floats, y: npt.NDArray[np.bool_]) -> tuple[list[float], list[float]]:
    """Both ends of every level of the best rising step function.

    Levels of 0 and 1 are moved in by what one sample more would have done: a few samples of one
    kind prove no certainty.
    """
    blocks: list[tuple[float, float, float, float]] = []  # first, last, number right, number
    for score in np.unique(x):
        same = y[x == score]
        blocks.append((float(score), float(score), float(same.sum()), float(len(same))))
        while len(blocks) > 1 and _level(blocks[-2]) >= _level(blocks[-1]):
            (first, _, a, n), (_, last, b, m) = blocks[-2:]
            blocks[-2:] = [(first, last, a + b, n + m)]
    margin = 1 / (len(x) + 2)
    knots, values = [], []
    for block in blocks:
        for end in sorted(set(block[:2])):
            knots.append(end)
            values.append(min(max(_level(block), margin), 1 - margin))
    return knots, values


def _level(block: tuple[float, float, float, float]) -> float:
    return block[2] / block[3]
