"""A policy and a verifier that must never be loaded."""

import sys
from typing import Any

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.tree import Chain


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


def endless(chain: Chain, seed: int) -> float:
    """A latency after which nothing comes; says on stderr that it was asked for."""
    if seed % 2:
        return 0.0
    print("searching", file=sys.stderr, flush=True)
    return 600.0
