"""The command `report`."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser("report", help="tables, plots and a page about finished runs")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs")
    parser.add_argument("--out", type=Path, default=Path("report"), help="default: report")
    parser.set_defaults(run=run, overrides=[])


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from stepsearch.benchmarks.report import report

    files = report(options.runs, options.out)
    for path in files:
        print(path)
    tables = [path for path in files if path.name == "accuracy.csv"]
    for path in tables:
        of = f"{path.parent}:\n" if len(tables) > 1 else ""
        print(f"\n{of}{_summary(path)}")
    return 0


def _summary(path: Path) -> str:
    """The accuracies and policy tokens of a report, one line per method."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    width = max(len(row["method"]) for row in rows)
    return "\n".join(f"{row['method']:<{width}}  {_line(row)}" for row in rows)


def _line(row: dict[str, str]) -> str:
    value, low, high = (
        100 * float(row[f"accuracy{end}"] or "nan") for end in ("", "_low", "_high")
    )
    tokens = float(row["policy_tokens"])
    return (
        f"{value:5.1f}% [{low:.1f}, {high:.1f}] of {row['problems']} problems,"
        f" {tokens:,.0f} policy tokens each"
    )
