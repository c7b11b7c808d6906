"""The tables of one run, made from its traces: one row per problem, and a summary."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from stepsearch.benchmarks.grading import Gradable, Grader, extraction_alarm, step_alarm
from stepsearch.benchmarks.run_folder import FAILED_STOPS, printable
from stepsearch.benchmarks.statistics import Estimate, Outcomes, accuracies
from stepsearch.search.aggregate import chain_value
from stepsearch.search.select import SELECTIONS, Selection, candidates, choose
from stepsearch.search.trace import Trace, read

Row = dict[str, Any]


def rows_of(traces: Path, problems: Gradable, grader: Grader) -> list[Row]:
    """One row per solved problem, in the order of the problems.

    A problem that was tried again counts with its last trace.
    """
    last = {trace.problem.id: row_of(trace, grader) for trace in read(traces)}
    return [last[problem.id] for problem in problems.problems if problem.id in last]


def row_of(trace: Trace, grader: Grader) -> Row:
    """The row of one problem: right is True, False or None where it could not be decided."""
    gold = trace.problem.answer or ""
    readouts = read_out(trace, grader)
    return {
        "id": trace.problem.id,
        "gold": gold,
        "answer": trace.answer,
        "right": grader.right(trace.answer, gold),
        "score": trace.score,
        **{f"right_{name}": right for name, right in readouts.items()},
        "steps": _judged_steps(trace),
        "stop": trace.stop,
        "error": trace.error,
        **asdict(trace.usage),
        "grader": grader.name,
        "meta": json.dumps(dict(trace.problem.meta), sort_keys=True, default=str),
    }


def _judged_steps(trace: Trace) -> int | None:
    """Steps of the longest chain; None where no verifier judges steps, or the problem failed."""
    verifier = trace.provenance.get("verifier") or {}
    judges = verifier.get("kind") == "step" and trace.stop not in FAILED_STOPS
    return max(trace.tree.depth) if judges else None


def read_out(trace: Trace, grader: Grader) -> dict[str, bool | None]:
    """What every selection would make of the tree, and whether any candidate is right."""
    gold = trace.problem.answer or ""
    verifier = trace.provenance.get("verifier") or {}
    name = verifier.get("name", "")

    def value(node: int) -> float | None:
        return chain_value(trace.tree, node, name, trace.provenance["aggregation"])

    weight = trace.provenance.get("vote_weight", 1.0)
    found = candidates(trace.tree, grader.task, value)
    verdicts = [grader.right(c.answer, gold) for c in found]
    known: dict[str, bool | None] = {"pass": _any(verdicts)}
    for by in SELECTIONS:
        if _fits(by, verifier):
            chosen = choose(found, by, grader.task.equal, weight).candidate
            known[by] = grader.right(None if chosen is None else chosen.answer, gold)
        else:
            known[by] = None
    return known


def _fits(by: Selection, verifier: Mapping[str, Any]) -> bool:
    if by == "majority":
        return True
    return bool(verifier) and (by == "best" or verifier["range"] == "probability")


def _any(verdicts: Sequence[bool | None]) -> bool | None:
    return True if True in verdicts else None if None in verdicts else False


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV; true is 1, false 0, unknown empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    return int(value) if isinstance(value, bool) else value


def outcomes_of(rows: Iterable[Row], column: str = "right") -> Outcomes:
    """A column of verdicts for the statistics; shape (problems, 1)."""
    verdicts = [row[column] for row in rows]
    return Outcomes(
        right=np.array([[float(v is True)] for v in verdicts]),
        undecided=np.array([[float(v is None)] for v in verdicts]),
    )


def summarize(rows: Sequence[Row], problems: Gradable) -> dict[str, Any]:
    """Accuracy with its interval, and what was spent."""
    [accuracy] = accuracies(outcomes_of(rows))
    num_answers = sum(row["answer"] is not None for row in rows)
    return {
        "problems": len(rows),
        "accuracy": _plain(accuracy),
        "right": sum(row["right"] is True for row in rows),
        "undecided": [row["id"] for row in rows if row["right"] is None],
        "excluded": list(problems.excluded),
        "failed": [row["id"] for row in rows if row["stop"] in FAILED_STOPS],
        "extraction_rate": num_answers / len(rows),
        "extraction_alarm": extraction_alarm(num_answers, len(rows), "problems"),
        "step_alarm": step_alarm([row["steps"] for row in rows]),
        "usage": {key: _total(rows, key) for key in USAGE},
        "grader": rows[0]["grader"],
    }


USAGE = (
    *("policy_tokens", "prompt_tokens", "prompt_tokens_reused", "verifier_tokens"),
    *("verifier_tokens_reused", "policy_calls", "verifier_calls", "completions", "flops"),
    "seconds",
)


def _total(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows]
    return None if None in values else sum(values)


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {k: None if np.isnan(v) else v for k, v in asdict(estimate).items()}
