"""The command `rerank`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from stepsearch.progress import told
from stepsearch.sample_file import add_reader

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION = """\
Read the same samples out by many verifiers and selections, at every number of samples.

SAMPLES holds one JSON object per line, {"id", "problem", "answer", "samples": [{"text", "scores":
{NAME: number or list of numbers}}]}, or is a trace of ours. A verifier is a name in the scores or
of the configuration (rule), with an aggregation (prm:min), a product (rule*prm), weights
(rule*prm^2) or a mean (prm+orm) of them. NAME.SETTING=VALUE sets up a verifier that is run."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = add_reader(
        commands,
        "rerank",
        run,
        summary="compare verifiers and votes on the same samples",
        description=_DESCRIPTION,
        as_json="print one JSON object",
    )
    add = parser.add_argument
    add("--verifier", action="append", default=[], metavar="EXPRESSION", help="may be repeated")
    add("--aggregation", action="append", default=[], help="last, min, mean or product; repeatable")
    add("--select", action="append", default=[], help="weighted, best or ties; default: all three")
    add("--against", default="majority", metavar="ROW", help="compare all rows with this one")
    add("--n", default="", metavar="N,N", help="numbers of samples to show")
    add("--disjoint", action="store_true", help="mean over disjoint groups, not over all subsets")
    add("--orders", type=int, default=256, help="seeded orders where no exact mean is known")
    add("--resamples", type=int, default=10_000, help="of the bootstrap over problems")
    add("--seed", type=int, default=0)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        ConfigurationError: something that was asked for does not exist or fit.
    """
    from stepsearch.benchmarks.rerank import SELECTIONS, RerankSettings, as_json, rerank
    from stepsearch.benchmarks.rerank_text import parse_sizes, render

    settings = RerankSettings(
        samples=options.samples,
        verifiers=options.verifier,
        sizes=parse_sizes(options.n),
        aggregations=options.aggregation,
        selections=options.select or SELECTIONS,
        links=options.link,
        against=options.against,
        task=options.task,
        separator=options.separator,
        is_disjoint=options.disjoint,
        num_orders=options.orders,
        num_resamples=options.resamples,
        seed=options.seed,
        overrides=options.overrides,
    )
    with told("stepsearch.benchmarks", "stepsearch: %(message)s"):
        result = rerank(settings)
    print(json.dumps(as_json(result)) if options.json else render(result))
    return 0
