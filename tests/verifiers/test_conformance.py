"""What runs on real models keeps the contracts that plug-ins are held to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepsearch.conf.build import build, load_config
from stepsearch.testing import check_policy, check_verifier


def built(part: str, *overrides: str) -> Any:
    return build(load_config(overrides), part)


def test_a_token_classifier(classifier_folder: Path) -> None:
    check_verifier(built("verifier", "verifier=trl_prm", f"verifier.model={classifier_folder}"))


def test_an_adapter_on_a_base(base_folder: Path, adapter_folder: Path) -> None:
    verifier = ["verifier=line_prm", f"verifier.model={base_folder}"]
    check_verifier(built("verifier", *verifier, f"verifier.adapter={adapter_folder}"))


def test_a_critic(base_folder: Path) -> None:
    critic = ["verifier=critic", f"verifier.policy.model={base_folder}", "verifier.samples=0"]
    check_verifier(built("verifier", *critic))


def test_a_policy(base_folder: Path) -> None:
    check_policy(built("policy", "policy=transformers", f"policy.model={base_folder}"))
