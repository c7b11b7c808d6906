"""Settings of the training stages, one file of `conf/train` each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stepsearch.conf.build import load_config
from stepsearch.search.errors import ConfigurationError, StepsearchError

_OBJECTS = ("policy",)


def load_stage(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the settings of a stage, its parts built; a stage that is an object is at `stage`.

    The policy stays a configuration, which `build` turns into a model when it is needed.

    Raises:
        ConfigurationError: a setting is unknown, missing or does not fit.
    """
    config = load_config(overrides, name=f"train/{name}")
    OmegaConf.set_struct(config, False)
    config.pop("hydra", None)
    for key in sorted(OmegaConf.missing_keys(config)):
        raise ConfigurationError(f"{key} has no value; give {key}=...")
    kept = {key: config.pop(key) for key in _OBJECTS if key in config}
    return _built(config) | kept


def _built(config: DictConfig) -> dict[str, Any]:
    try:
        built: Any = instantiate(config, _convert_="all")
    except OmegaConfBaseException as error:
        raise ConfigurationError(str(error).splitlines()[0]) from error
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, StepsearchError):
            raise cause from None
        raise ConfigurationError(str(cause or error)) from error
    return built if isinstance(built, dict) else {"stage": built}
