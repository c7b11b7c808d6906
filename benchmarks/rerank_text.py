"""A reranking as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from stepsearch.benchmarks.rerank import Line, Reranking
from stepsearch.benchmarks.statistics import Estimate
from stepsearch.search.errors import ConfigurationError


def parse_sizes(text: str) -> list[int]:
    """Numbers of samples from `4,16,64`.

    Raises:
        ConfigurationError: that is no list of positive numbers.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"--n {text!r} must be numbers of samples, such as 4,16,64")
    return [int(part) for part in parts]


def render(result: Reranking) -> str:
    """Accuracy at some numbers of samples, and the differences to the row compared with."""
    base, sizes = result.settings.against, result.sizes
    accuracy = [
        [line.row.label, *(_estimate(line.accuracy[n - 1], "") for n in sizes)]
        for line in result.lines
    ]
    difference = [
        [line.row.label, *(_estimate(line.difference[n - 1], "+") for n in sizes), _test(line)]
        for line in result.lines
        if line.test is not None
    ]
    heads = [f"N={n}" for n in sizes]
    return "\n".join(
        [
            *_head(result),
            "",
            *_table(["accuracy, %", *heads], accuracy),
            "",
            *_table([f"minus {base}", *heads, f"McNemar at N={sizes[-1]}"], difference),
            "",
            *_foot(result),
        ]
    )


def _head(result: Reranking) -> list[str]:
    rate = result.num_answers / max(1, result.num_samples)
    lines = [
        f"{_count(result.num_problems, 'problem')}, up to {_count(result.max_samples, 'sample')}"
        f" each, {rate:.1%} of them with an answer; graded by {result.grader}"
    ]
    if result.excluded:
        lines.append(f"left out, gold answer cannot be read: {len(result.excluded)} problems")
    if result.num_short:
        lines.append(f"{result.num_short} problems have fewer samples and count with all they have")
    if result.num_empty:
        lines.append(f"{_count(result.num_empty, 'problem')} without a sample, and so an answer")
    lines += [
        f"{name}: no score for {count} samples, which it does not choose"
        for name, count in result.unscored.items()
        if count
    ]
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _foot(result: Reranking) -> list[str]:
    if result.settings.is_disjoint:
        how = "Means over the disjoint groups of N samples as they stand."
    else:
        exact = [line.row.label for line in result.lines if line.row.is_exact]
        how = (
            f"Means over all subsets of N samples: exact for {'; '.join(exact) or 'none'}; others "
            f"over {result.settings.num_orders} seeded orders."
        )
    undecided = [
        f"{line.row.label}: {count:g} problems could not be graded"
        for line in result.lines
        if (count := line.row.outcomes.undecided[:, -1].sum())
    ]
    return [
        how,
        "95% intervals over problems: Wilson's for accuracies, a paired bootstrap's for the rest.",
        "McNemar's exact test counts problems that only one of the two solves with the first "
        f"{result.sizes[-1]} samples as they stand.",
        *undecided,
        *(f"note: {note}" for note in result.notes),
    ]


def _estimate(estimate: Estimate, sign: str) -> str:
    value, low, high = (100 * v for v in (estimate.value, estimate.low, estimate.high))
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _test(line: Line) -> str:
    assert line.test is not None
    return f"{line.test.only_a}:{line.test.only_b} p={line.test.p:.2g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
