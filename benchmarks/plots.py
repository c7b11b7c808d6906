"""The plots of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

Table = Sequence[dict[str, Any]]
_AXES = {
    "policy_tokens": "policy tokens per problem",
    "flops": "FLOPs per problem, policy and verifier",
    "seconds": "seconds per problem",
}


def draw(tables: Mapping[str, Table], folder: Path) -> list[Path]:
    """Draw what the tables hold; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    files = []
    for axis, title in _AXES.items():
        rows = [row for row in tables["accuracy"] if row.get(axis)]
        if rows:
            files.append(_cost(rows, axis, title, folder / f"accuracy_{axis}.png"))
    for name, x, y, by in (
        ("samples", "samples", "accuracy", ("method", "readout")),
        ("calibration", "score", "accuracy", ("method", "verifier")),
        ("depth", "depth", "auroc_within_problems", ("method", "verifier")),
        ("coverage", "coverage", "accuracy", ("method",)),
    ):
        if tables[name]:
            files.append(_lines(tables[name], x, y, by, folder / f"{name}.png"))
    return files


def _cost(rows: Table, axis: str, title: str, path: Path) -> Path:
    figure, axes = _figure()
    for row in rows:
        x, y = row[axis], 100 * row["accuracy"]
        axes.errorbar(
            [x],
            [y],
            yerr=[[y - 100 * row["accuracy_low"]], [100 * row["accuracy_high"] - y]],
            xerr=[[x - row[f"{axis}_low"]], [row[f"{axis}_high"] - x]],
            fmt="o",
            capsize=3,
            label=row["method"],
        )
    axes.set_xscale("log")
    return _save(figure, axes, title, "accuracy, % (95% intervals)", path)


def _lines(rows: Table, x: str, y: str, by: Sequence[str], path: Path) -> Path:
    figure, axes = _figure()
    for label, group in _groups(rows, by):
        xs, ys = [row[x] for row in group], [row[y] for row in group]
        [line] = axes.plot(xs, ys, marker="." if len(xs) < 20 else "", label=label)
        if f"{y}_low" in group[0]:
            low, high = ([row[f"{y}_{end}"] for row in group] for end in ("low", "high"))
            axes.fill_between(xs, low, high, alpha=0.12, color=line.get_color())
    if x == "samples":
        axes.set_xscale("log", base=2)
    if x == "score":
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
    return _save(figure, axes, x, y.replace("_", " "), path)


def _groups(rows: Table, by: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    def key(row: dict[str, Any]) -> str:
        return ": ".join(row[name] for name in by)

    for label, group in groupby(rows, key):
        yield label, list(group)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, axes: Any, x: str, y: str, path: Path) -> Path:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=150)
    return path
