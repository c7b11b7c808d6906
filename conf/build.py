"""From configuration to objects: the only place that instantiates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stepsearch.conf.messages import explain, nearest
from stepsearch.conf.options import options
from stepsearch.search.contracts import Declared, Verifier
from stepsearch.search.engine import Engine
from stepsearch.search.errors import ConfigurationError, StepsearchError
from stepsearch.search.requirements import require_counts, require_fit, require_settle
from stepsearch.search.select import require_vote_weight

_LOCK = threading.RLock()
MODELS = ("policy", "verifier")
_KEYWORDS = ("_convert_", "_recursive_", "_partial_")
OWN_CLASSES = ("search", "policy", "verifier", "task", "benchmark")
_TARGET = "._target_="
COMPONENTS = ("search", "task", "budget", "sampling", *MODELS)
NOT_COMPOSED = (HydraException, OmegaConfBaseException, ValueError, TypeError)
"""What Hydra raises when overrides do not fit the configuration."""


def load_config(overrides: Sequence[str] = (), name: str = "config") -> DictConfig:
    """Compose the configuration of one search, or of another file beside it.

    Args:
        overrides: Hydra overrides, such as `search=best_of_n` or `search.n=16`.
        name: the file.

    Raises:
        ConfigurationError: an option or a key does not exist; names the nearest ones.
    """
    try:
        return _compose(overrides, name)
    except NOT_COMPOSED as error:
        raise not_composed(error, overrides, name) from error


def not_composed(
    error: Exception, overrides: Sequence[str], name: str = "config"
) -> ConfigurationError:
    """Hydra's error as one sentence with the nearest names."""
    return ConfigurationError(explain(error, overrides, lambda key: settings(overrides, key, name)))


def unknown_argument(name: str, known: Sequence[str]) -> ConfigurationError:
    """What to say of an argument that `solve` lacks: a misspelt one, or a setting of a part."""
    told = f"{name}: there is no such argument."
    if inner := [key for key in settings((), name) if key.endswith(f".{name}")]:
        return ConfigurationError(f'{told} Give it as overrides=["{inner[0]}=..."]')
    return ConfigurationError(f"{told} {nearest(name, known)}")


def with_own_classes(overrides: Sequence[str]) -> list[str]:
    """Overrides in which `GROUP._target_=CLASS` stands for a new group of that class.

    The settings of the option that the group had before belong to another class. They stay where
    the option is named too, or settings are taken out one by one: `policy=transformers
    policy._target_=CLASS`, `search._target_=CLASS ~search.width`.
    """
    own = {o.split(_TARGET, 1)[0] for o in overrides if _TARGET in o} & {*OWN_CLASSES}
    own -= {o.lstrip("+~").split("=", 1)[0] for o in overrides}
    own -= {o[1:].split(".", 1)[0] for o in overrides if o.startswith("~")}
    changed = [f"+{o}" if o.split(".", 1)[0] in own else o for o in overrides]
    return [*(f"~{group}" for group in sorted(own)), *changed]


def _compose(overrides: Sequence[str], name: str = "config") -> DictConfig:
    """Compose, also inside another Hydra application and on several threads."""
    with _LOCK:
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().hydra = None
        try:
            with initialize_config_module("stepsearch.conf", version_base="1.3"):
                return compose(name, overrides=with_own_classes(overrides))
        finally:
            GlobalHydra.instance().hydra = outer


def build(config: Mapping[str, Any] | DictConfig, name: str) -> Any:
    """Build one component of the configuration.

    Raises:
        ConfigurationError: a value does not fit.
    """
    if config.get(name) is None:
        if name == "verifier":
            return None
        raise ConfigurationError(f"{name} is missing; known options: {', '.join(options(name))}")
    try:
        return instantiate(config[name], _convert_="all")
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{name}: {str(error).splitlines()[0]}") from error
    except HydraException as error:
        if isinstance(error.__cause__, StepsearchError):
            raise error.__cause__ from None
        reason = " ".join(str(error.__cause__ or error).split())
        if "Are you sure that module" in reason:
            reason += " Its folder must be on PYTHONPATH."
        raise ConfigurationError(f"{name}: {reason}") from error


def build_verifier(overrides: Sequence[str], *, selfcheck: bool = True) -> Verifier:
    """The verifier that these overrides name, for commands that look at nothing else.

    Args:
        overrides: Hydra overrides, such as `verifier=rule`.
        selfcheck: False loads one that fails its self-check, too.

    Raises:
        ConfigurationError: a setting does not fit, or there is to be no verifier.
    """
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            raise ConfigurationError(
                f"{override!r} is not of the form SETTING=VALUE; a verifier is named by"
                " verifier=NAME, as in verifier=rule"
            )
    config = load_config(overrides)
    require_complete(config, ["verifier"])
    if not selfcheck and "selfcheck" in config.verifier:
        config.verifier.selfcheck = False
    verifier: Verifier | None = build(config, "verifier")
    if verifier is None:
        raise ConfigurationError("verifier=none scores nothing; give verifier=NAME")
    return verifier


def require_complete(config: DictConfig, groups: Sequence[str]) -> None:
    """Raise `ConfigurationError` when a part that will be built has a setting without a value.

    Also when a setting refers to another one, or to a variable, that does not exist.
    """
    try:
        OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    for key in sorted(OmegaConf.missing_keys(config)):
        if key.split(".", 1)[0] in groups:
            raise ConfigurationError(f"{key} has no value; give {key}=...")


def nothing() -> None:
    """The verifier of `verifier=none`."""


def build_engine(
    config: DictConfig, *, load: Callable[[DictConfig, str], Any] = build, **objects: Any
) -> Engine:
    """Build an engine; a component given as an object is used instead of the configured one.

    Args:
        config: the configuration.
        load: builds policy and verifier, once everything else is known to fit.
        objects: components by name.

    Raises:
        ConfigurationError: a value does not fit.
    """
    parts = build_light(config, **objects)
    parts |= {name: load(config, name) for name in MODELS if name not in parts}
    return Engine(
        policy=parts["policy"],
        strategy=parts["search"],
        verifier=parts["verifier"],
        task=parts["task"],
        budget=parts["budget"],
        sampling=parts["sampling"],
        select=config.select,
        vote_weight=config.vote_weight,
        aggregation=config.aggregation,
        seed=config.seed,
        abstain_below=config.abstain_below,
        settle=config.settle,
        confidence=config.confidence,
        concurrency=config.concurrency,
        trace=None if config.trace is None else str(config.trace),
    )


def build_light(config: DictConfig, **objects: Any) -> dict[str, Any]:
    """The components that need no model, once they fit each other and what is known of the models.

    Args:
        config: the configuration.
        objects: components by name, used instead of the configured ones.

    Raises:
        ConfigurationError: a value does not fit.
    """
    require_counts(seed=config.seed, concurrency=config.concurrency)
    require_vote_weight(config.vote_weight)
    parts = dict(objects)
    parts |= {name: build(config, name) for name in COMPONENTS if name not in (*parts, *MODELS)}
    _require_fit(config, parts)
    return parts


def _require_fit(config: DictConfig, parts: Mapping[str, Any]) -> None:
    """Check what the verifier must fit, as far as it can be told before its model is loaded."""
    if "verifier" in parts:
        verifier = parts["verifier"]
        spec = None if verifier is None else verifier.spec
    elif config.get("verifier") is None:
        spec = None
    else:
        settings = OmegaConf.to_container(config.verifier, resolve=True)
        assert isinstance(settings, dict)
        target = _locate(settings.pop("_target_", None))
        if target is nothing:
            spec = None
        elif isinstance(target, Declared):
            spec = target.declare(**{str(k): v for k, v in settings.items() if k not in _KEYWORDS})
        else:
            return  # the engine asks again when the verifier is there
    strategy = parts["search"]
    select, _ = require_fit(
        spec, strategy=strategy, select=config.select, aggregation=config.aggregation
    )
    require_settle(
        config.settle,
        config.confidence,
        select=select,
        vote_weight=config.vote_weight,
        strategy=strategy,
        budget=parts["budget"],
    )


def _locate(target: Any) -> Any:
    """What a configuration names as its target; None when it names nothing that exists."""
    try:
        return get_object(target)
    except Exception:
        return None  # instantiating it says what is wrong


def settings(overrides: Sequence[str], unknown: str, name: str = "config") -> list[str]:
    """All settings of the configuration, as dotted keys, without the unknown one's override."""
    valid = [o for o in overrides if o.lstrip("+~").split("=", 1)[0] != unknown]
    try:
        config = _compose(valid, name)
    except NOT_COMPOSED:
        config = _compose((), name)
    return sorted(_keys(OmegaConf.to_container(config), ""))


def _keys(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return [prefix]
    found = [prefix] if prefix else []
    for key, value in node.items():
        if not str(key).startswith("_"):
            found.extend(_keys(value, f"{prefix}.{key}" if prefix else str(key)))
    return found
