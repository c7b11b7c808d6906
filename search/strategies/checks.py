"""Checks that several searches have."""

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError


def require_verifier(name: str, verifier: VerifierSpec | None) -> VerifierSpec:
    """Raise `ConfigurationError` when a search that goes by scores has no verifier."""
    if verifier is None:
        raise ConfigurationError(
            f"search={name} goes by the scores of a verifier; set verifier=..., or search=best_of_n"
        )
    return verifier
