"""Scorers: expressions over verifiers that give every sample one number.

`prm`, `prm:min` (another aggregation), `rule*prm` (product), `rule*prm^2` (weights), `prm+orm`
(mean). Names that stand in the samples are taken from there; all others are configured verifiers.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from stepsearch.benchmarks.samples import Sample, SampledProblem, SampleSet, ScoreSource
from stepsearch.conf.build import build_verifier
from stepsearch.conf.options import options
from stepsearch.search.aggregate import AGGREGATIONS, aggregate
from stepsearch.search.background import background
from stepsearch.search.contracts import Aggregation, Verifier
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.scores import checked
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.stepwise import ask

_FACTOR = re.compile(r"\s*([\w./-]+)\s*(?::\s*(\w+))?\s*(?:\^\s*(\d+\.?\d*|\.\d+))?\s*")


class Factor(NamedTuple):
    """One verifier in an expression, with None for its own aggregation."""

    name: str
    aggregation: Aggregation | None
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A mean of products of powers of verifiers' scores.

    Attributes:
        label: the expression as it was written.
        terms: the products.
    """

    label: str
    terms: tuple[tuple[Factor, ...], ...]

    @property
    def names(self) -> set[str]:
        """The verifiers in it."""
        return {factor.name for term in self.terms for factor in term}

    def value(self, sample: Sample, sources: Mapping[str, ScoreSource]) -> float:
        """The number of a sample; NaN when a verifier has no score for it."""
        terms = [math.prod(_power(sample, f, sources[f.name]) for f in term) for term in self.terms]
        return math.fsum(terms) / len(terms)

    def require_steps(self, sources: Mapping[str, ScoreSource]) -> None:
        """Raise `ConfigurationError` when it aggregates step scores that are not there."""
        for factor in (factor for term in self.terms for factor in term):
            if factor.aggregation is not None and sources[factor.name].is_whole:
                raise ConfigurationError(
                    f"--verifier {self.label}: {factor.name} did not guide this search "
                    "(verifier.guides), so that it has one score for each solution and none for "
                    f"steps; read it out without {factor.aggregation}"
                )

    def is_probability(self, sources: Mapping[str, ScoreSource]) -> bool:
        """Whether its numbers may be added up as votes."""
        return all(sources[name].range == "probability" for name in self.names)

    def require_probabilities(self, sources: Mapping[str, ScoreSource]) -> None:
        """Raise `ConfigurationError` when it combines scores that are no probabilities."""
        is_plain = self.terms[0][0].weight == 1 and len(self.terms) == len(self.terms[0]) == 1
        uses_product = any(
            factor.aggregation == "product" for term in self.terms for factor in term
        )
        if is_plain and not uses_product:
            return
        for name in sorted(self.names):
            if sources[name].range != "probability":
                raise ConfigurationError(
                    f"--verifier {self.label}: {name} has scores outside [0, 1], which cannot be "
                    f"combined; give --link {name}=logistic"
                )


def _power(sample: Sample, factor: Factor, source: ScoreSource) -> float:
    scores = sample.scores.get(factor.name)
    value = aggregate(factor.aggregation or source.aggregation, scores) if scores else None
    if value is None:
        return math.nan
    return value if factor.weight == 1 else value**factor.weight


def parse_scorer(text: str, aggregation: Aggregation | None = None) -> Scorer:
    """An expression as a scorer.

    Args:
        text: the expression.
        aggregation: for verifiers without one of their own in the expression.

    Raises:
        ConfigurationError: it cannot be read, or names an unknown aggregation.
    """
    terms = tuple(
        tuple(_factor(text, factor, aggregation) for factor in term.split("*"))
        for term in text.split("+")
    )
    label = "".join(text.split())
    return Scorer(label=f"{label} ({aggregation})" if aggregation else label, terms=terms)


def _factor(text: str, factor: str, aggregation: Aggregation | None) -> Factor:
    match = _FACTOR.fullmatch(factor)
    if match is None:
        raise ConfigurationError(
            f"--verifier {text!r}: cannot read {factor!r}; write NAME, NAME:min, A*B, A*B^2 or A+B"
        )
    name, fold, weight = match.groups()
    if fold is not None and fold not in AGGREGATIONS:
        raise ConfigurationError(
            f"--verifier {text!r}: aggregation {fold!r} is not one of {', '.join(AGGREGATIONS)}"
        )
    return Factor(name, fold or aggregation, float(weight or 1))


def apply_link(found: SampleSet, link: str) -> None:
    """Turn a verifier's scores into probabilities: `NAME=logistic`.

    Raises:
        ConfigurationError: there is no such link, or no such scores.
    """
    name, _, kind = link.partition("=")
    if kind != "logistic":
        raise ConfigurationError(f"--link {link!r} must be NAME=logistic")
    if name not in found.sources:
        raise ConfigurationError(
            f"--link {link!r}: the samples have no scores {name!r}; "
            f"they have: {', '.join(found.sources) or 'none'}"
        )
    for sample in (sample for problem in found.problems for sample in problem.samples):
        scores = sample.scores.get(name)
        if scores is not None:
            sample.scores[name] = tuple(_logistic(score) for score in scores)
    found.sources[name] = ScoreSource(aggregation=found.sources[name].aggregation)


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def score_missing(found: SampleSet, names: Sequence[str], overrides: Sequence[str]) -> None:
    """Score the samples with every named verifier that they have no scores of.

    Args:
        found: the samples; gets the scores.
        names: options of the configuration group `verifier`.
        overrides: `NAME.SETTING=VALUE`, a setting of that verifier.

    Raises:
        ConfigurationError: there is no such verifier, or a setting does not fit.
        VerifierError: a model could not be run, or its server stays out of reach.
    """
    missing = [name for name in names if name not in found.sources]
    for override in overrides:
        if "=" not in override and Path(override).exists():
            raise ConfigurationError(
                f"{override!r} is a second file of samples; one is read at a time"
            )
        if override.partition(".")[0] not in missing:
            raise ConfigurationError(
                f"{override!r} must be NAME.SETTING=VALUE of a verifier that is to be run: "
                f"{', '.join(missing) or 'all have scores in the samples'}"
            )
    for name in missing:
        own = [o.removeprefix(f"{name}.") for o in overrides if o.startswith(f"{name}.")]
        verifier = _build(name, own, sorted(set(found.sources) - set(missing)))
        found.sources[name] = ScoreSource(
            aggregation=verifier.spec.aggregation, range=verifier.spec.range
        )
        background.submit(_score_all(found.problems, name, verifier)).result()


def _build(name: str, settings: Sequence[str], stored: Sequence[str]) -> Verifier:
    try:
        return build_verifier([f"verifier={name}", *(f"verifier.{s}" for s in settings)])
    except ConfigurationError as error:
        near = difflib.get_close_matches(name, stored, n=1)
        if name in options("verifier") or not near:
            raise
        raise ConfigurationError(
            f"--verifier {name}: there is neither such a verifier nor such a score in the samples,"
            f" which hold {', '.join(stored)}; did you mean {near[0]}?"
        ) from error


async def _score_all(problems: Sequence[SampledProblem], name: str, verifier: Verifier) -> None:
    for sampled in tqdm(problems, desc=name, unit="problem", leave=False, disable=None):
        tree = Tree(sampled.problem.text)
        told = [sample for sample in sampled.samples if sample.steps]
        chains = [_chain(tree, sample.steps) for sample in told]
        given = await ask(verifier, chains)
        for sample in sampled.samples:
            sample.scores[name] = None
        for sample, chain, scores in zip(told, chains, given, strict=True):
            good = checked(scores, verifier.spec, num_steps=len(chain), num_new=len(chain))
            sample.scores[name] = None if good.failure is not None else good.values


def _chain(tree: Tree, texts: Sequence[str]) -> Chain:
    tail = tuple(Step(text=text) for text in texts[:-1])
    return Chain(tree, ROOT, (*tail, Step(text=texts[-1], stop="eos")), len(texts))
