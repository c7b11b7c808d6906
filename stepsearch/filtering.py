"""The command `filter`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepsearch.sample_file import add_reader

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION = """\
Keep the finished answers that a verifier scores at least as high as a minimum, and drop the others.

SAMPLES is read as `rerank` reads it, and what is written can be read by it again. A sample without
a score or without an answer is never kept. A verifier is an expression as in `rerank`."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = add_reader(
        commands,
        "filter",
        run,
        summary="keep the answers that a verifier is sure of",
        description=_DESCRIPTION,
        as_json="print the counts as one JSON object",
    )
    add = parser.add_argument
    add("--verifier", required=True, metavar="EXPRESSION")
    add("--min", type=float, required=True, metavar="SCORE", help="the lowest score that is kept")
    add("--out", type=Path, metavar="FILE", help="what is kept; default: standard output")


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        ConfigurationError: something that was asked for does not exist or fit.
    """
    from stepsearch.benchmarks.filtering import FilterSettings, as_json, filter_samples, render

    settings = FilterSettings(
        samples=options.samples,
        out=options.out,
        verifier=options.verifier,
        minimum=options.min,
        links=options.link,
        task=options.task,
        separator=options.separator,
        overrides=options.overrides,
    )
    kept, counts = filter_samples(settings)
    if settings.out is None:
        sys.stdout.write(kept)
    told = as_json(counts) if options.json else render(counts, settings)
    print(told, file=sys.stderr if settings.out is None else sys.stdout)
    return 0
