"""Conformance suites for plug-ins: does a verifier, policy or strategy keep the engine's contract?

Call one in a test of your own:

    from stepsearch.testing import check_verifier

    def test_my_verifier():
        check_verifier(MyVerifier())

Each raises `ConformanceError` with everything that is wrong and what to do about it, and returns
the names of the checks that passed.
"""

from stepsearch.testing.checks import ConformanceError
from stepsearch.testing.policy import check_policy
from stepsearch.testing.strategy import check_strategy
from stepsearch.testing.verifier import check_verifier

__all__ = ["ConformanceError", "check_policy", "check_strategy", "check_verifier"]
