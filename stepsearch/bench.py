"""The command `bench`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command; its arguments are those of a Hydra application."""
    parser = commands.add_parser("bench", help="run and sweep benchmarks", add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.set_defaults(run=run, passes_on=True)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from stepsearch.benchmarks.bench import bench

    return bench(options.overrides)
