"""Which runs of a report are over the same problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepsearch.benchmarks.run_data import RunData

_LIMIT = "benchmark.limit"


def same_problems(runs: Sequence[RunData]) -> list[list[RunData]]:
    """Runs grouped by their problems.

    A run over more of the same data, by its `benchmark.limit`, is in each group that it covers, cut
    to those problems: so an expensive search on few stands beside the others on just these.
    """
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.problems, []).append(run)
    for own in groups.values():
        there = [run.settings for run in own]
        for run in runs:
            cut = _cut(run, own[0])
            if cut is not None and cut.settings not in there:
                there.append(cut.settings)
                own.append(cut)
    return list(groups.values())


def _cut(run: RunData, to: RunData) -> RunData | None:
    """The run as one over fewer problems; None where these are not among its own."""
    settings = run.settings | {_LIMIT: to.settings.get(_LIMIT)}
    if _data(settings) != _data(to.settings):
        return None
    rows = {row["id"]: row for row in run.rows}
    wanted = {row["id"]: row["gold"] for row in to.rows}
    cut = [rows[name] for name in wanted if name in rows]
    is_part = wanted.keys() <= rows.keys() | set(run.failed)
    is_same = all(row["gold"] == wanted[row["id"]] for row in cut)
    if not (cut and is_part and is_same):
        return None
    failed = tuple(name for name in run.failed if name in wanted or name in to.failed)
    return replace(run, settings=settings, problems=to.problems, rows=cut, failed=failed)


def _data(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key.startswith("benchmark.")}
