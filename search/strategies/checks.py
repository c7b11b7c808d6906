"""Checks of strategy parameters."""

from stepsearch.search.errors import ConfigurationError


def require_positive(name: str, value: int) -> None:
    """Raise `ConfigurationError` unless the parameter is at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}={value} must be a whole number, at least 1")
