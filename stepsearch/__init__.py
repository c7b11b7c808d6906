"""stepsearch: test-time search for reasoning with language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsearch.api import asolve as asolve
    from stepsearch.api import solve as solve
    from stepsearch.search.contracts import Policy as Policy
    from stepsearch.search.contracts import PolicySpec as PolicySpec
    from stepsearch.search.contracts import Sample as Sample
    from stepsearch.search.contracts import SamplingParams as SamplingParams
    from stepsearch.search.contracts import ScoreFailure as ScoreFailure
    from stepsearch.search.contracts import StepScores as StepScores
    from stepsearch.search.contracts import Strategy as Strategy
    from stepsearch.search.contracts import Verifier as Verifier
    from stepsearch.search.contracts import VerifierSpec as VerifierSpec
    from stepsearch.search.engine import Engine as Engine
    from stepsearch.search.errors import ConfigurationError as ConfigurationError
    from stepsearch.search.errors import ModelNotFoundError as ModelNotFoundError
    from stepsearch.search.errors import PolicyError as PolicyError
    from stepsearch.search.errors import StepsearchError as StepsearchError
    from stepsearch.search.errors import TraceError as TraceError
    from stepsearch.search.errors import UnjudgedError as UnjudgedError
    from stepsearch.search.errors import VerifierError as VerifierError
    from stepsearch.search.session import Session as Session
    from stepsearch.search.task import Task as Task
    from stepsearch.search.task import get_task as get_task
    from stepsearch.search.trace import Trace as Trace
    from stepsearch.search.tree import Chain as Chain
    from stepsearch.search.tree import Tree as Tree
    from stepsearch.search.types import Budget as Budget
    from stepsearch.search.types import Problem as Problem
    from stepsearch.search.types import Solution as Solution
    from stepsearch.search.types import Step as Step
    from stepsearch.search.types import Usage as Usage
    from stepsearch.verifiers.training.reward import reward_function as reward_function

_HOME = {
    "stepsearch.api": ("solve", "asolve"),
    "stepsearch.search.contracts": (
        "Policy",
        "PolicySpec",
        "Sample",
        "SamplingParams",
        "ScoreFailure",
        "StepScores",
        "Strategy",
        "Verifier",
        "VerifierSpec",
    ),
    "stepsearch.search.engine": ("Engine",),
    "stepsearch.search.errors": (
        "ConfigurationError",
        "ModelNotFoundError",
        "PolicyError",
        "StepsearchError",
        "TraceError",
        "UnjudgedError",
        "VerifierError",
    ),
    "stepsearch.search.session": ("Session",),
    "stepsearch.search.task": ("Task", "get_task"),
    "stepsearch.search.trace": ("Trace",),
    "stepsearch.search.tree": ("Chain", "Tree"),
    "stepsearch.search.types": ("Budget", "Problem", "Solution", "Step", "Usage"),
    "stepsearch.verifiers.training.reward": ("reward_function",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE)


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that the import stays fast."""
    if name not in _MODULE:
        raise AttributeError(f"module 'stepsearch' has no attribute {name!r}")
    value = getattr(import_module(_MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
