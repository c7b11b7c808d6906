"""Tiny random models with the architecture, head and tokenizer of the public families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
    Qwen2Model,
)

HIDDEN = 32
CONTEXT = 4096


def _config(kind: type[Any], tokenizer: Any, **extra: Any) -> Any:
    return kind(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        **extra,
    )


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_causal(folder: Path, tokenizer: Any, *, llama: bool = False, seed: int = 0) -> Path:
    """A causal language model."""
    torch.manual_seed(seed)
    if llama:
        model = cast(Any, LlamaForCausalLM)(_config(LlamaConfig, tokenizer))
    else:
        model = cast(Any, Qwen2ForCausalLM)(_config(Qwen2Config, tokenizer))
    return _save(model, tokenizer, folder)


def save_classifier(folder: Path, tokenizer: Any, *, tokens: bool, num_labels: int) -> Path:
    """A classifier of tokens or of sequences."""
    torch.manual_seed(3)
    kind: Any = Qwen2ForTokenClassification if tokens else Qwen2ForSequenceClassification
    return _save(kind(_config(Qwen2Config, tokenizer, num_labels=num_labels)), tokenizer, folder)


def save_llama_classifier(folder: Path, tokenizer: Any) -> Path:
    """A one-label sequence classifier on Llama."""
    torch.manual_seed(4)
    kind: Any = LlamaForSequenceClassification
    return _save(kind(_config(LlamaConfig, tokenizer, num_labels=1)), tokenizer, folder)


def save_qwen_head(folder: Path, tokenizer: Any, num_outputs: int, architecture: str) -> Path:
    """A stock body, two linear layers with a ReLU, and a config that names remote code."""
    torch.manual_seed(5)
    model = cast(Any, Qwen2Model)(_config(Qwen2Config, tokenizer))
    head = {
        "score.0.weight": torch.randn(HIDDEN, HIDDEN) / 4,
        "score.0.bias": torch.randn(HIDDEN) / 4,
        "score.2.weight": torch.randn(num_outputs, HIDDEN) / 4,
        "score.2.bias": torch.randn(num_outputs) / 4,
    }
    _save(model, tokenizer, folder)
    _add(folder, head, prefix="model.")
    _change_config(
        folder,
        architectures=[architecture],
        auto_map={
            "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
            "AutoModel": f"modeling_qwen2_rm.{architecture}",
        },
    )
    return folder


def save_value_head(folder: Path, tokenizer: Any, name: str = "v_head.summary") -> Path:
    """A causal language model with a scalar value head beside it."""
    save_causal(folder, tokenizer, seed=6)
    head = {
        f"{name}.weight": torch.randn(1, HIDDEN) / 4,
        f"{name}.bias": torch.randn(1),
    }
    _add(folder, head)
    return folder


def save_tuned(folder: Path, base: Path, size: float = 0.02) -> Path:
    """A copy of a model whose weights moved a little, as training moves them."""
    torch.manual_seed(7)
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    moved = {k: v + size * v.std() * torch.randn_like(v) for k, v in tensors.items() if v.dim() > 1}
    save_file(tensors | moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def head_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a model's file."""
    return load_file(folder / "model.safetensors")


def replace_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write other tensors under the same names."""
    _add(folder, tensors)


def _add(folder: Path, tensors: dict[str, torch.Tensor], prefix: str = "") -> None:
    file = folder / "model.safetensors"
    own = {prefix + name: tensor for name, tensor in load_file(file).items()}
    save_file(own | tensors, file, metadata={"format": "pt"})


def _change_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
