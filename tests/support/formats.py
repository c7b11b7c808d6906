"""The formats that ship, read from the configuration once a session."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from stepsearch.conf.build import load_config


@cache
def _verifier(option: str) -> dict[str, Any]:
    found = OmegaConf.to_container(load_config([f"verifier={option}"]).verifier)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def shipped_model(option: str) -> str:
    """The model that a configuration names."""
    return str(_verifier(option)["model"])


def shipped_format(option: str, **changes: Any) -> dict[str, Any]:
    """The format of a configuration, with some keys changed."""
    return copy.deepcopy(_verifier(option)["format"]) | changes
