"""The folder that training writes: an adapter with its base's hash, its format and its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from stepsearch.policies.adapters import BASE, CONFIG, WEIGHTS
from stepsearch.policies.loading import model_hash
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.settings import changed

RECORD = "training.json"


def save_adapter(
    folder: Path,
    model: PeftModel,
    extra: Mapping[str, Tensor],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a LoRA adapter in peft's layout, with a head's tensors in the same file.

    Args:
        folder: where to.
        model: the model whose adapter it is.
        extra: the head; always float32.
        dtype: of the LoRA weights; half of them in bfloat16 cost nothing that can be measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, Tensor] = {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in get_peft_model_state_dict(model).items()
    }
    heads = {name: t.detach().to("cpu", torch.float32).contiguous() for name, t in extra.items()}
    save_file(weights | heads, str(folder / WEIGHTS), metadata={"format": "pt"})
    config: Any = model.peft_config["default"].to_dict()
    # Where the base lies on this machine says nothing elsewhere; `save_base` names it.
    config |= {
        "inference_mode": True,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
    }
    config["target_modules"] = sorted(config["target_modules"])
    (folder / CONFIG).write_text(json.dumps(config, indent=1, default=str, sort_keys=True) + "\n")


def save_base(folder: Path, base: str) -> None:
    """Write which base an adapter belongs to."""
    known = {"base": base, "base_sha256": model_hash(base)}
    (folder / BASE).write_text(json.dumps(known, indent=1) + "\n")


def require_same(folder: Path, kind: str, settings: Any) -> None:
    """Refuse a folder in which something else was trained.

    Args:
        folder: complete.
        kind: what would be trained: `policy`, `step` or `outcome`.
        settings: with which; where it lies and on which device it is trained does not matter.

    Raises:
        ConfigurationError: it names what differs.
    """
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    wanted = json.loads(json.dumps(asdict(settings), default=str))
    before = {"kind": record.get("kind", kind)} | record.get("settings", wanted)
    names = changed(before, {"kind": kind} | wanted)
    if other := [name for name in names if name not in ("out", "optimisation.device")]:
        raise ConfigurationError(
            f"{folder} was trained with other settings ({', '.join(other)}); give another out"
        )


def save_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write how it was trained and what came out."""
    text = json.dumps(record, indent=1, default=str)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")
