"""Particle filtering and particle Gibbs (Puri et al. 2025, arXiv:2502.01618)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import number, whole
from stepsearch.search.session import Session
from stepsearch.search.strategies.checks import require_verifier
from stepsearch.search.strategies.ranking import values_of
from stepsearch.search.tree import ROOT

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Particle:
    """Sequential Monte Carlo: every particle takes a step, then all are resampled by their scores.

    The weight of a particle is the odds p / (1 - p) of its current value p, finished or not, as in
    the paper: not a product of increments. With w normalised, the effective sample size is
    1 / sum(w^2). A finished particle takes part in the resampling and never moves again; a copy of
    it is no second candidate. A particle drawn several times goes on from the same node with other
    seeds. A particle without a value, or whose chain was cut short, has weight 0.

    With `iterations` > 1 it is particle Gibbs (Andrieu et al. 2010): a chain drawn by weight from
    the last pass is the first particle of the next one, step by step, at no cost.

    Args:
        n: particles.
        ess_threshold: resample when the effective sample size is below this share of `n`; 1 does
            so at every step, as in the paper.
        iterations: passes from the root.
        epsilon: p is kept within [epsilon, 1 - epsilon], so that no weight is 0 or infinite.
        link: None for a verifier with probabilities; `logistic` reads an unbounded score x as
            p = 1 / (1 + exp(-x)).
        max_steps: steps after which unfinished chains are left.
    """

    continues: ClassVar = True

    n: int = 8
    ess_threshold: float = 1.0
    iterations: int = 1
    epsilon: float = 1e-6
    link: Literal["logistic"] | None = None
    max_steps: int = 40

    def __post_init__(self) -> None:
        for name in ("n", "iterations", "max_steps"):
            whole(f"search.{name}", getattr(self, name), least=1)
        number("search.ess_threshold", self.ess_threshold, above=0, most=1)
        number("search.epsilon", self.epsilon, above=0, most=0.49)
        if self.link not in (None, "logistic"):
            raise ConfigurationError(f"search.link={self.link!r} must be logistic or null")

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` without a verifier, or one that `link` does not fit."""
        spec = require_verifier("particle", verifier)
        if (spec.range == "probability") != (self.link is None):
            fitting = "null" if self.link else "logistic"
            raise ConfigurationError(
                f"search.link={self.link or 'null'} does not fit verifier {spec.name!r} with range "
                f"{spec.range!r}: weights are odds of probabilities; set search.link={fitting}"
            )

    async def run(self, session: Session) -> None:
        """Pass from the root to the end of all chains, `iterations` times."""
        reference: list[int] = []
        for _ in range(self.iterations):
            particles = await self._filter(session, reference)
            if not particles or session.exhausted:
                return
            [drawn] = _draw(session.rng, particles, self._weights(session, particles), 1)
            reference = session.tree.path(drawn)

    async def _filter(self, session: Session, reference: Sequence[int]) -> list[int]:
        """One pass; where the particles ended. The first of them walks along the reference."""
        tree, others = session.tree, [ROOT] * (self.n - bool(reference))
        for step in range(self.max_steps):
            ended = [node for node in others if tree.is_terminal(node)]
            moving = [node for node in others if not tree.is_terminal(node)]
            groups = await session.expand(moving, 1)
            held = reference[step : step + 1] or reference[-1:]
            moved = [*held, *ended, *(child for group in groups for child in group)]
            values = values_of(session, moved)
            particles = [node for node in moved if node in values]
            if session.exhausted or all(tree.is_terminal(node) for node in particles):
                return particles
            others = self._resample(session, particles, len(held))
        session.stop = "max_steps"
        return particles

    def _resample(self, session: Session, particles: list[int], held: int) -> list[int]:
        """The particles that go on beside the first `held` ones."""
        weights = self._weights(session, particles)
        if weights.sum() ** 2 / np.square(weights).sum() >= self.ess_threshold * self.n:
            return particles[held:]
        # Beside a reference only independent draws leave the target distribution as it is.
        draw = _draw_independently if held else _draw
        return draw(session.rng, particles, weights, self.n - held)

    def _weights(self, session: Session, particles: Sequence[int]) -> Floats:
        """Odds of the particles' values, scaled so that the largest is 1."""
        values = values_of(session, particles)
        logits = np.array([self._logit(values[node]) for node in particles])
        return np.asarray(np.exp(logits - logits.max()))

    def _logit(self, value: float) -> float:
        """Log-odds of a value, within what `epsilon` allows."""
        limit = math.log((1 - self.epsilon) / self.epsilon)
        if self.link == "logistic":
            return min(max(value, -limit), limit)
        p = min(max(value, self.epsilon), 1 - self.epsilon)
        return math.log(p / (1 - p))


def _draw(
    rng: np.random.Generator, particles: Sequence[int], weights: Floats, count: int
) -> list[int]:
    """Systematic resampling (Kitagawa 1996): each is drawn its share of `count` times, rounded."""
    return _at(rng.random() + np.arange(count, dtype=np.float64), particles, weights, count)


def _draw_independently(
    rng: np.random.Generator, particles: Sequence[int], weights: Floats, count: int
) -> list[int]:
    """Multinomial resampling, in the order of the particles."""
    return _at(np.sort(rng.random(count)) * count, particles, weights, count)


def _at(points: Floats, particles: Sequence[int], weights: Floats, count: int) -> list[int]:
    """The particles on whose stretch of [0, count), as long as their share, the points lie."""
    edges = np.cumsum(weights * (count / weights.sum()))
    drawn = np.searchsorted(edges, points, side="right")
    return [particles[min(int(index), len(particles) - 1)] for index in drawn]
