"""Do strategy, selection and aggregation fit the verifier? Asked before anything is loaded."""

from __future__ import annotations

from stepsearch.search.aggregate import AGGREGATIONS
from stepsearch.search.contracts import (
    Aggregation,
    Bounded,
    Continuing,
    Demanding,
    Policy,
    Strategy,
    VerifierSpec,
)
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import whole
from stepsearch.search.poll import SETTLE, Settle
from stepsearch.search.select import Selection, default_selection, require_known, require_selection
from stepsearch.search.types import Budget

_NEEDED = {
    "policy": ("spec", "sample"),
    "search": ("run",),
    "verifier": ("spec", "count_tokens", "score"),
}


def require_part(name: str, part: object) -> None:
    """Check that an object can be a policy, a search or a verifier at all.

    Raises:
        ConfigurationError: it lacks what one must have.
    """
    if missing := [needed for needed in _NEEDED[name] if not hasattr(part, needed)]:
        suite = "strategy" if name == "search" else name
        raise ConfigurationError(
            f"{name}: {type(part).__name__} has no {', '.join(missing)}; a {suite} has"
            f" {', '.join(_NEEDED[name])} (stepsearch.testing.check_{suite} tells more)"
        )


def require_fit(
    verifier: VerifierSpec | None,
    *,
    strategy: Strategy,
    select: Selection | None,
    aggregation: Aggregation | None,
) -> tuple[Selection, Aggregation]:
    """Check what belongs together.

    Returns:
        The selection and the aggregation, None replaced by what fits the verifier.

    Raises:
        ConfigurationError: settings that contradict each other.
    """
    if select is not None:
        require_known(select)
    if aggregation is not None and aggregation not in AGGREGATIONS:
        raise ConfigurationError(
            f"aggregation={aggregation!r} is not one of {', '.join(AGGREGATIONS)}"
        )
    if isinstance(strategy, Demanding):
        strategy.require(verifier)
    select = select or default_selection(verifier)
    require_selection(select, verifier)
    if aggregation is None:
        aggregation = "last" if verifier is None else verifier.aggregation
    if aggregation == "product" and verifier is not None and verifier.range != "probability":
        raise ConfigurationError(
            f"aggregation='product' multiplies probabilities, but verifier {verifier.name!r} has "
            f"range {verifier.range!r}; use last, min or mean"
        )
    return select, aggregation


def require_continuing(policy: Policy, strategy: Strategy) -> None:
    """Raise `ConfigurationError` when the search goes on with what the policy cannot go on with."""
    does = isinstance(strategy, Continuing) and strategy.continues
    can = not isinstance(policy, Continuing) or policy.continues
    if does and not can:
        raise ConfigurationError(
            f"policy {policy.spec.name!r} writes whole answers and cannot go on with a partial one,"
            f" as search {type(strategy).__name__} does; use search=best_of_n or greedy, or, for"
            " policy=openai, a server with /completions and prompts=ids or text"
        )


def require_counts(*, seed: int, concurrency: int) -> None:
    """Raise `ConfigurationError` unless these are numbers that a run can have."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigurationError(f"seed={seed!r} must be a whole number")
    whole("concurrency", concurrency, least=1)


def require_settle(
    settle: Settle | None,
    confidence: float,
    *,
    select: Selection,
    vote_weight: float,
    strategy: Strategy,
    budget: Budget,
) -> None:
    """Check the rule of adaptive stopping.

    Raises:
        ConfigurationError: there is no such rule, or it has nothing to go by.
    """
    if settle is not None and settle not in SETTLE:
        raise ConfigurationError(f"settle={settle!r} is not one of {', '.join(SETTLE)}, or null")
    if not isinstance(confidence, int | float) or not 0.5 < confidence < 1:
        raise ConfigurationError(f"confidence={confidence!r} must be a number between 0.5 and 1")
    if settle == "certain" and (budget.flops, budget.verifier_tokens) != (None, None):
        raise ConfigurationError(
            "settle='certain' promises the answer of the whole search, which budget.flops and "
            "budget.verifier_tokens make another one, since scores are then paid for in another "
            "order; limit budget.policy_tokens instead"
        )
    if settle is not None and select == "weighted" and vote_weight != 1:
        raise ConfigurationError(
            f"settle={settle!r} adds up the scores of an answer, which vote_weight={vote_weight} "
            "does not choose by; use vote_weight=1, select=majority, or settle=null"
        )
    if settle == "likely" and select == "best":
        raise ConfigurationError(
            "settle='likely' goes by shares of votes, but select='best' has none; "
            "use select=majority or weighted"
        )
    if settle == "certain" and select != "best" and not isinstance(strategy, Bounded):
        raise ConfigurationError(
            f"settle='certain' needs to know how many chains may still come, and search "
            f"{type(strategy).__name__} does not tell (max_chains); use settle=likely"
        )
