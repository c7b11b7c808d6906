"""A policy and a verifier that must never be loaded."""

from typing import Any

from stepsearch.search.contracts import VerifierSpec


class LoudPolicy:
    """Fails when it is made."""

    def __init__(self) -> None:
        raise AssertionError("the policy's model was loaded")


class LoudVerifier:
    """Tells what its scores mean, and fails when it is made."""

    def __init__(self, **_: Any) -> None:
        raise AssertionError("the verifier's model was loaded")

    @classmethod
    def declare(cls, **settings: Any) -> VerifierSpec:
        return VerifierSpec(name="loud", **settings)
