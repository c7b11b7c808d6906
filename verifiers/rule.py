"""A verifier without a model: checks the arithmetic of every equation in a step exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import lru_cache
from typing import Any

from stepsearch.search.contracts import Aggregation, StepScores, VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.equations.checker import Equation, check_equations
from stepsearch.verifiers.equations.tokens import Number


@dataclass(frozen=True, kw_only=True)
class RuleVerifier:
    """Scores each step by the equations of the chain up to it.

    The scores are weights in [0, 1], not calibrated probabilities. Their defaults say: a wrong
    equation all but excludes a chain, a right one is better than none. One wrong equation spoils a
    chain for good, however many right ones it has; a step without an equation is neutral: it leaves
    the chain where it was, and its note says so. The threshold is `neutral`: only a wrong equation
    makes a step wrong.

    Attributes:
        correct: score once there was an equation that is right and none that is wrong.
        neutral: score while there was no equation that can be checked.
        wrong: score from the first wrong equation on.
        aggregation: how a chain's step scores become one number.

    Raises:
        ConfigurationError: a score lies outside [0, 1], or they are out of order.
    """

    correct: float = 1.0
    neutral: float = 0.3
    wrong: float = 0.02
    aggregation: Aggregation = "last"
    spec: VerifierSpec = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.wrong <= self.neutral <= self.correct <= 1:
            raise ConfigurationError(
                f"verifier.wrong={self.wrong}, verifier.neutral={self.neutral} and "
                f"verifier.correct={self.correct} must be in this order within [0, 1]"
            )
        spec = VerifierSpec(
            name="rule",
            kind="step",
            range="probability",
            aggregation=self.aggregation,
            threshold=self.neutral if self.wrong < self.neutral else None,
            incremental=True,
            num_parameters=0,
            provenance={f.name: getattr(self, f.name) for f in fields(self) if f.init},
        )
        object.__setattr__(self, "spec", spec)

    @classmethod
    def declare(cls, **settings: Any) -> VerifierSpec:
        """The spec of a verifier with these settings."""
        return cls(**settings).spec

    def count_tokens(self, chain: Chain) -> int:
        """Always 0: no model reads anything."""
        return 0

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score the newest `num_new` steps of each chain; never fails, deterministic."""
        return [self._score_chain(chain) for chain in chains]

    def _score_chain(self, chain: Chain) -> StepScores:
        checked = [_check(text) for text in chain.texts]
        values, verdicts = [], set[str]()
        for equations in checked:
            verdicts.update(equation.verdict for equation in equations)
            values.append(self._score_prefix(verdicts))
        first = len(chain) - chain.num_new
        return StepScores(
            values=tuple(values[first:]), notes=tuple(map(_describe, checked[first:]))
        )

    def _score_prefix(self, verdicts: set[str]) -> float:
        if "wrong" in verdicts:
            return self.wrong
        return self.correct if "right" in verdicts else self.neutral


@lru_cache(maxsize=1 << 14)
def _check(text: str) -> tuple[Equation, ...]:
    """The equations of a step; a chain's earlier steps are asked for again with every new one."""
    return tuple(check_equations(text))


def _describe(equations: Sequence[Equation]) -> str:
    if not equations:
        return "no equation"
    return "; ".join(dict.fromkeys(map(_describe_equation, equations)))


def _describe_equation(equation: Equation) -> str:
    if equation.verdict == "unchecked":
        return f"{equation.text} cannot be checked"
    if equation.verdict == "right":
        return f"{equation.text} is right"
    value = "division by zero" if equation.exact is None else format_number(equation.exact)
    return f"{equation.text} is wrong: {value}"


def format_number(value: Number) -> str:
    """A number as a decimal where that is exact within 12 digits, else as a fraction."""
    scaled = value * 10**12
    if value.denominator == 1 or scaled.denominator != 1:
        return str(Fraction(value))
    digits = f"{abs(scaled.numerator):013d}"
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-12]}.{digits[-12:].rstrip('0')}"
