"""LoRA adapters (Hu et al. 2021) on one shared base, through peft."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from stepsearch.search.errors import ConfigurationError, ModelNotFoundError

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
BASE = "base.json"
"""Optional: {"base_sha256": hash of the base the adapter was trained on, see `model_hash`}."""

_PREFIX = "base_model.model."


def adapter_digest(folder: Path) -> str:
    """Hash of an adapter's weights and configuration, 16 hex digits.

    Raises:
        ModelNotFoundError: the folder holds no adapter.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelNotFoundError(
                f"adapter={folder} holds no {name}; give the folder of a peft LoRA adapter"
                f" ({CONFIG} and {WEIGHTS})"
            )
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _read_config(folder: Path) -> LoraConfig:
    mapping: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    if mapping.get("peft_type") != "LORA":
        raise ConfigurationError(
            f"adapter={folder} is of type {mapping.get('peft_type')!r}; only LORA is supported"
        )
    config = LoraConfig.from_pretrained(str(folder))
    assert isinstance(config, LoraConfig)
    config.inference_mode = True
    # Whole modules stored beside the LoRA weights are heads, which verifiers read themselves.
    config.modules_to_save = None
    return config


def _read_weights(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """The LoRA weights, named as in `model`; other tensors must not belong to it."""
    try:
        tensors = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise ModelNotFoundError(f"adapter={folder}: {WEIGHTS} cannot be read: {error}") from error
    own = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}
    body_prefix = getattr(model, "base_model_prefix", "") + "."
    weights = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(_PREFIX)
        if not any(o.startswith(body_prefix) for o in own):
            name = name.removeprefix(body_prefix)
        if ".lora_" in name:
            weights[name] = tensor
        elif name in own:
            raise ConfigurationError(
                f"adapter={folder} replaces the base's own {name!r}, which would change the base"
                " for everyone who shares it; merge that adapter into a model of its own"
            )
    return weights


def check_base(folder: Path, base_hash: Callable[[], str | None]) -> None:
    """Refuse an adapter that was trained on another base, where both hashes are known.

    Args:
        folder: of the adapter.
        base_hash: gives the hash of this base, None when unknown; asked if the adapter names one.

    Raises:
        ConfigurationError: the hashes differ.
    """
    if not (folder / BASE).is_file():
        return
    wanted, found = json.loads((folder / BASE).read_text()).get("base_sha256"), base_hash()
    if found is not None and wanted != found:
        raise ConfigurationError(
            f"adapter={folder} belongs to a base of hash {wanted}, not to this one of hash"
            f" {found}; give the model that the adapter was trained on"
        )


class Adapters:
    """The adapters of one model, of which at most one is active.

    Args:
        model: the base, changed in place.
        base_hash: its hash, None when unknown.
    """

    def __init__(self, model: nn.Module, base_hash: Callable[[], str | None]) -> None:
        self._model = model
        self._base_hash = base_hash
        self._layers: list[LoraLayer] = []
        self._names: set[str] = set()
        self._active: str | None = None

    def load(self, folder: Path) -> str:
        """Load an adapter unless its twin is there; returns the name it is known by.

        Raises:
            ModelNotFoundError: the folder holds no adapter that can be read.
            ConfigurationError: it is no LoRA adapter, or does not fit this base.
        """
        name = adapter_digest(folder)
        if name in self._names:
            return name
        check_base(folder, self._base_hash)
        config, weights = _read_config(folder), _read_weights(folder, self._model)
        try:
            self._inject(name, folder, config, weights)
        except BaseException:
            self._remove(name)
            raise
        finally:
            self._layers = [m for m in self._model.modules() if isinstance(m, LoraLayer)]
            self._switch(self._active)
            self._model.eval()
        self._names.add(name)
        return name

    def _inject(self, name: str, folder: Path, config: Any, weights: dict[str, Tensor]) -> None:
        dtype = next(self._model.parameters()).dtype
        device = next(self._model.parameters()).device
        try:
            with warnings.catch_warnings():
                # Several adapters on one base are the point here, not an accident.
                warnings.filterwarnings("ignore", message="Already found a `peft_config`")
                inject_adapter_in_model(config, self._model, adapter_name=name)
            result: Any = set_peft_model_state_dict(self._model, weights, adapter_name=name)
        except (ValueError, RuntimeError) as error:
            raise ConfigurationError(f"adapter={folder} does not fit its base: {error}") from error
        mine = [(n, p) for n, p in self._model.named_parameters() if f".{name}." in f"{n}."]
        if len(mine) != len(weights) or result.unexpected_keys:
            raise ConfigurationError(
                f"adapter={folder} does not fit its base: {len(weights)} tensors are stored,"
                f" {len(mine)} expected, unknown: {result.unexpected_keys[:3]}"
            )
        for _, parameter in mine:
            parameter.data = parameter.data.to(device=device, dtype=dtype)
            parameter.requires_grad_(False)

    def _remove(self, name: str) -> None:
        """Take out what of a refused adapter is in the model."""
        for module in self._model.modules():
            if isinstance(module, LoraLayer):
                module._active_adapter = []  # peft would choose another one, with a warning
                cast(Any, module).delete_adapter(name)

    def activate(self, name: str | None) -> None:
        """Make one adapter active, or none.

        Raises:
            ConfigurationError: it was never loaded.
        """
        if name == self._active:
            return
        if name is not None and name not in self._names:
            raise ConfigurationError(
                f"adapter={name!r} is not loaded; pass what CausalRunner.load_adapter returned"
            )
        self._switch(name)

    def _switch(self, name: str | None) -> None:
        for layer in self._layers:
            # The public setters also walk all parameters' gradient flags, at every switch.
            layer._disable_adapters = name is None
            layer._active_adapter = [name] if name is not None else []
        self._active = name


def num_parameters(model: nn.Module) -> int:
    """Parameters of the base, adapters excluded, tied ones once."""
    return sum(
        parameter.numel() for name, parameter in model.named_parameters() if ".lora_" not in name
    )
