"""The commands `sample` and `label`, which make training data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from stepsearch.progress import told

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parsers(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define both commands."""
    sample = commands.add_parser(
        "sample",
        help="sample solutions of questions",
        description="Whole solutions of many questions by any policy. Settings are Hydra "
        "overrides, see conf/train/sample.yaml: stepsearch sample questions=FILE out=FILE n=16 "
        "policy.adapter=FOLDER ... Running it again goes on where it was stopped.",
    )
    label = commands.add_parser(
        "label",
        help="label the steps of sampled solutions",
        description="Labels for the training of verifiers. Settings are Hydra overrides, see "
        "conf/train/label.yaml: stepsearch label samples=FILE out=FILE method=both ... Running it "
        "again goes on where it was stopped.",
    )
    for parser in (sample, label):
        parser.add_argument("overrides", nargs="*", default=[], metavar="SETTING=VALUE")
        parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run either command; returns the exit status.

    Raises:
        ConfigurationError: a setting does not fit.
        PolicyError: the policy failed.
    """
    from stepsearch.conf.stages import load_stage

    command = _sample if options.command == "sample" else _label
    with told("stepsearch", "%(asctime)s %(message)s"):
        print(command(load_stage(options.command, options.overrides)))
    return 0


def _sample(settings: dict[str, Any]) -> Any:
    from stepsearch.conf.build import build
    from stepsearch.verifiers.training.rollouts import sample

    policy = {"policy": build(settings, "policy"), "policy_config": _plain(settings["policy"])}
    return sample(**settings | policy)


def _label(settings: dict[str, Any]) -> Any:
    """Labels of outcomes need no policy, so its model is loaded when it is asked for."""
    from stepsearch.conf.build import build
    from stepsearch.verifiers.training.labelling import LabelSettings, label

    config = settings.pop("policy")
    return label(
        LabelSettings(**settings), lambda: build({"policy": config}, "policy"), _plain(config)
    )


def _plain(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    found: Any = OmegaConf.to_container(config, resolve=True)
    return dict(found)
