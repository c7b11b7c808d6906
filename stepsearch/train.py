"""The command `train`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepsearch.progress import told

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
    parser.add_argument("overrides", nargs="*", default=[], metavar="SETTING=VALUE")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        ConfigurationError: a setting does not fit.
    """
    with told("stepsearch", "%(asctime)s %(message)s"):
        print(_train(options.what, options.overrides))
    return 0


def _train(what: str, overrides: Sequence[str]) -> Any:
    """What the stage says at its end."""
    from stepsearch.conf.stages import load_stage

    settings = load_stage(what, overrides)
    if what == "prepare":
        from stepsearch.benchmarks.training_questions import TrainingQuestions

        questions: TrainingQuestions = settings["stage"]
        return questions.write()
    form = settings.pop("format")
    if what == "policy":
        from stepsearch.verifiers.training.policy import PolicySettings, train_policy

        return train_policy(PolicySettings(**settings), form)
    from stepsearch.verifiers.training.scorer import ScorerSettings, train_orm, train_prm

    train = train_prm if what == "prm" else train_orm
    return train(ScorerSettings(**settings), form)
