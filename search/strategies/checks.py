"""Checks of strategy parameters."""

import math

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError


def require_positive(name: str, value: int) -> None:
    """Raise `ConfigurationError` unless the parameter is at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}={value} must be a whole number, at least 1")


def require_within(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise `ConfigurationError` unless the parameter is a finite number in (low, high]."""
    number = isinstance(value, int | float) and math.isfinite(value)
    if not number or not low < value <= high:
        limit = "" if math.isinf(high) else f" and at most {high:g}"
        raise ConfigurationError(f"{name}={value} must be a number above {low:g}{limit}")


def require_verifier(name: str, verifier: VerifierSpec | None) -> VerifierSpec:
    """Raise `ConfigurationError` when a search that goes by scores has no verifier."""
    if verifier is None:
        raise ConfigurationError(
            f"search={name} goes by the scores of a verifier; set verifier=..., or search=best_of_n"
        )
    return verifier


def require_not_negative(name: str, value: float) -> None:
    """Raise `ConfigurationError` unless the parameter is a finite number, at least 0."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigurationError(f"{name}={value} must be a number, at least 0")
