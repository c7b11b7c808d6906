"""The command `train`."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

WHAT = ("prepare", "policy", "prm", "orm")


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser(
        "train",
        help="collect training questions; train a policy, PRM or ORM",
        description="prepare: collect questions. policy, prm, orm: train an adapter. Settings are "
        "Hydra overrides, see conf/train: stepsearch train prm labelled=FILE out=FOLDER ... "
        "Running it again goes on where it was stopped.",
    )
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("overrides", nargs="*", metavar="SETTING=VALUE", help="settings")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        ConfigurationError: a setting does not fit.
    """
    from stepsearch.conf.stages import load_stage

    show_progress()
    settings = load_stage(options.what, options.overrides)
    if options.what == "prepare":
        from stepsearch.benchmarks.training_questions import TrainingQuestions

        questions: TrainingQuestions = settings["stage"]
        print(questions.write())
        return 0
    form = settings.pop("format")
    if options.what == "policy":
        from stepsearch.verifiers.training.policy import PolicySettings, train_policy

        print(train_policy(PolicySettings(**settings), form))
        return 0
    from stepsearch.verifiers.training.scorer import ScorerSettings, train_orm, train_prm

    train = train_prm if options.what == "prm" else train_orm
    print(train(ScorerSettings(**settings), form))
    return 0


def show_progress() -> None:
    """Progress lines of our own modules go to standard error, with the time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("stepsearch")
    if not logger.handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
