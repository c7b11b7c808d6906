"""Methods against one another on the problems that both solved."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from stepsearch.benchmarks.equal_compute import take
from stepsearch.benchmarks.report_tables import bootstrap_of, spread
from stepsearch.benchmarks.run_data import Method
from stepsearch.benchmarks.statistics import Outcomes, mcnemar_of

Row = dict[str, Any]
_Told = tuple[Method, list[str], Outcomes]


def pairs_table(methods: Sequence[Method]) -> list[Row]:
    """Every method against every other one.

    A row has the accuracy of `method` minus that of `other` with its interval, what `method` cost
    in policy tokens for each of `other`, and, where both have one seed only, how many problems
    only one of them solved with the p-value of McNemar's exact test, all of it on the problems that
    both solved. Left out are pairs that have no problem in common.
    """
    told = [(method, method.ids(), method.outcomes()) for method in methods]
    return [row for a, b in combinations(told, 2) if (row := _pair(a, b)) is not None]


def _pair(one: _Told, two: _Told) -> Row | None:
    (method, ids, outcomes), (other, others, theirs) = one, two
    known = set(others)
    shared = [name for name in ids if name in known]
    if not shared:
        return None
    a, b = take(outcomes, ids, shared), take(theirs, others, shared)
    [difference] = bootstrap_of(len(shared)).difference(a, b)
    row: Row = {"method": method.label, "other": other.label, "problems": len(shared)}
    row |= spread("difference", difference)
    row["policy_tokens_ratio"] = _tokens(method, shared) / _tokens(other, shared)
    if len(method.runs) == len(other.runs) == 1:
        test = mcnemar_of(a, b)
        row |= {"only_method": test.only_a, "only_other": test.only_b, "p": test.p}
    return row


def _tokens(method: Method, ids: Sequence[str]) -> float:
    cost = method.cost("policy_tokens", ids)
    return float("nan") if cost is None or cost.mean() == 0 else float(cost.mean())
