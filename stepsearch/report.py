"""The command `report`."""

from __future__ import annotations

import argparse
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

    for path in report(options.runs, options.out):
        print(path)
    return 0
