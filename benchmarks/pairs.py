"""Methods against one another on the problems that both solved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

from stepsearch.benchmarks.run_data import Method
from stepsearch.benchmarks.statistics import (
    Estimate,
    Outcomes,
    PairedBootstrap,
    mcnemar_of,
)

Row = dict[str, Any]
_bootstrap = lru_cache(maxsize=32)(PairedBootstrap)  # the draws depend on the count only


def pairs_table(methods: Sequence[Method]) -> list[Row]:
    """Every method against every other one.

    A row has the accuracy of `method` minus that of `other` with its interval, what `method` cost
    in policy tokens for each of `other`, and, where both have one seed only, how many problems
    only one of them solved with the p-value of McNemar's exact test. Left out are pairs that have
    no problem in common.
    """
    return [row for a, b in combinations(methods, 2) if (row := _pair(a, b)) is not None]


def _pair(method: Method, other: Method) -> Row | None:
    ids = set(other.ids())
    shared = [name for name in method.ids() if name in ids]
    if not shared:
        return None
    a, b = _outcomes(method, shared), _outcomes(other, shared)
    [difference] = _bootstrap(len(shared)).difference(a, b)
    row: Row = {"method": method.label, "other": other.label, "problems": len(shared)}
    row |= _columns(difference) | {"policy_tokens_ratio": _tokens(method) / _tokens(other)}
    if len(method.runs) == len(other.runs) == 1:
        test = mcnemar_of(a, b)
        row |= {"only_method": test.only_a, "only_other": test.only_b, "p": test.p}
    return row


def _outcomes(method: Method, ids: Sequence[str]) -> Outcomes:
    place = {name: i for i, name in enumerate(method.ids())}
    rows, outcomes = [place[name] for name in ids], method.outcomes()
    return Outcomes(right=outcomes.right[rows], undecided=outcomes.undecided[rows])


def _columns(difference: Estimate) -> Row:
    low, high = difference.low, difference.high
    return {"difference": difference.value, "difference_low": low, "difference_high": high}


def _tokens(method: Method) -> float:
    cost = method.cost("policy_tokens")
    return float("nan") if cost is None or cost.mean() == 0 else float(cost.mean())
