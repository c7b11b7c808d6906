"""The command `sample`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser(
        "sample",
        help="sample solutions of questions",
        description="Whole solutions of many questions by any policy. Settings are Hydra "
        "overrides, see conf/train/sample.yaml: stepsearch sample questions=FILE out=FILE n=16 "
        "policy.adapter=FOLDER ... Running it again goes on where it was stopped.",
    )
    parser.add_argument("overrides", nargs="*", metavar="SETTING=VALUE", help="settings")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        ConfigurationError: a setting does not fit.
        PolicyError: the policy failed.
    """
    from stepsearch.conf.build import build
    from stepsearch.conf.stages import load_stage
    from stepsearch.train import show_progress
    from stepsearch.verifiers.training.rollouts import sample

    show_progress()
    settings = load_stage("sample", options.overrides)
    policy = build(settings, "policy")
    print(sample(**settings | {"policy": policy}))
    return 0
