"""Do strategy, selection and aggregation fit the verifier? Asked before anything is loaded."""

from __future__ import annotations

from stepsearch.search.aggregate import AGGREGATIONS
from stepsearch.search.contracts import Aggregation, Demanding, Strategy, VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.select import Selection, default_selection, require_known, require_selection


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
