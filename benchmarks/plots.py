"""The plots of a report, as PNG files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

Table = Sequence[dict[str, Any]]
_COSTS = {
    "policy_tokens": "policy tokens per problem",
    "flops": "FLOPs per problem, policy and verifier",
    "seconds": "seconds per problem",
}
_LINES = {
    "samples": ("samples", "accuracy", ("method", "readout")),
    "calibration": ("score", "accuracy", ("method", "verifier")),
    "depth": ("depth", "auroc_within_problems", ("method", "verifier")),
    "coverage": ("coverage", "accuracy", ("method",)),
}
_TITLES = {
    "samples": "number of samples",
    "accuracy": "accuracy, %",
    "score": "mean score",
    "depth": "steps so far",
    "coverage": "problems answered, %",
    "auroc_within_problems": "AUROC within problems",
}
_PERCENT = ("accuracy", "accuracy_low", "accuracy_high", "coverage")
_MARKERS = "os^DvPX*"
_MIN_LOG_RATIO = 3


def draw(tables: Mapping[str, Table], folder: Path) -> list[Path]:
    """Draw what the tables hold; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    files = []
    for axis in _COSTS:
        rows = [row for row in tables["accuracy"] if row.get(axis)]
        if rows:
            files.append(_cost(rows, axis, folder / f"accuracy_{axis}.png"))
    for name, (x, y, by) in _LINES.items():
        if tables[name]:
            files.append(_lines(tables[name], x, y, by, folder / f"{name}.png"))
    return files


def _cost(rows: Table, axis: str, path: Path) -> Path:
    """Accuracy against a cost; a line joins methods that differ in how much they may spend."""
    groups = list(_groups(rows, ("series",)))
    figure, axes = _figure(len(groups))
    for (label, group), marker in zip(groups, cycle(_MARKERS), strict=False):
        points = sorted(group, key=lambda row: row[axis])
        axes.errorbar(
            [row[axis] for row in points],
            [100 * row["accuracy"] for row in points],
            xerr=_reach(points, axis),
            yerr=[[100 * v for v in side] for side in _reach(points, "accuracy")],
            marker=marker,
            markersize=5,
            linewidth=1.2,
            elinewidth=0.8,
            capsize=2,
            label=label,
        )
    costs = [row[axis] for row in rows]
    if max(costs) >= _MIN_LOG_RATIO * min(costs):
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis, base=10, subs=(1, 2, 5))
    return _save(figure, axes, _COSTS[axis], f"{_TITLES['accuracy']} (95% intervals)", path)


def _reach(rows: Table, name: str) -> list[list[float]]:
    """How far the intervals reach below and above."""
    below = [row[name] - row[f"{name}_low"] for row in rows]
    return [below, [row[f"{name}_high"] - row[name] for row in rows]]


def _lines(rows: Table, x: str, y: str, by: Sequence[str], path: Path) -> Path:
    varied = [name for name in by if len({row[name] for row in rows}) > 1] or by[-1:]
    groups = list(_groups(rows, varied))
    figure, axes = _figure(len(groups))
    for (label, group), marker in zip(groups, cycle(_MARKERS), strict=False):
        xs, ys = _column(group, x), _column(group, y)
        shown = marker if len(xs) < 20 else ""
        [line] = axes.plot(xs, ys, marker=shown, markersize=4, label=label)
        if f"{y}_low" in group[0]:
            low, high = _column(group, f"{y}_low"), _column(group, f"{y}_high")
            axes.fill_between(xs, low, high, alpha=0.12, color=line.get_color(), linewidth=0)
    if x == "samples":
        axes.set_xscale("log", base=2)
        _plain_ticks(axes.xaxis, base=2, subs=(1,))
    if x == "score":
        axes.plot([0, 1], [0, 100], color="grey", linewidth=0.8, linestyle=":")
    if y == "auroc_within_problems":
        axes.axhline(0.5, color="grey", linewidth=0.8, linestyle=":")
        axes.xaxis.get_major_locator().set_params(integer=True)
    return _save(figure, axes, _TITLES[x], _TITLES[y], path)


def _column(rows: Table, name: str) -> list[float]:
    return [(100 if name in _PERCENT else 1) * row[name] for row in rows]


def _groups(rows: Table, by: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows by the values of some columns, in the order of their first rows."""
    labels = [": ".join(row[name] for name in by) for row in rows]
    for label in dict.fromkeys(labels):
        yield label, [row for row, own in zip(rows, labels, strict=True) if own == label]


def _plain_ticks(axis: Any, *, base: int, subs: Sequence[float]) -> None:
    """Numbers as people write them on a logarithmic axis."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    large = EngFormatter(sep="")
    axis.set_major_locator(LogLocator(base=base, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda x, _: large(x) if x >= 10_000 else f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _figure(num_labels: int) -> tuple[Any, Any]:
    """A figure with room for a legend below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2 + 0.17 * math.ceil(num_labels / 2)), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, axes: Any, x: str, y: str, path: Path) -> Path:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    figure.legend(loc="outside lower left", fontsize=8, frameon=False, ncols=2)
    figure.savefig(path, dpi=150)
    return path
