"""The command `label`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser(
        "label",
        help="label the steps of sampled solutions",
        description="Labels for the training of verifiers. Settings are Hydra overrides, see "
        "conf/train/label.yaml: stepsearch label samples=FILE out=FILE method=both ... Running it "
        "again goes on where it was stopped.",
    )
    parser.add_argument("overrides", nargs="*", metavar="SETTING=VALUE", help="settings")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        ConfigurationError: a setting does not fit.
    """
    from stepsearch.conf.build import build
    from stepsearch.conf.stages import load_stage
    from stepsearch.train import show_progress
    from stepsearch.verifiers.training.labelling import LabelSettings, label

    show_progress()
    stage = load_stage("label", options.overrides)
    config = stage.pop("policy")
    print(label(LabelSettings(**stage), lambda: build({"policy": config}, "policy")))
    return 0
