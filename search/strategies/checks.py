"""Checks of strategy parameters."""

from stepsearch.search.errors import ConfigurationError


def require_positive(name: str, value: int) -> None:
    """Raise `ConfigurationError` unless the parameter is at least 1."""
    if value < 1:
        raise ConfigurationError(f"{name}={value} must be at least 1")
