"""Tiny models that vLLM's attention on a CPU can run, and what verifiers read of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from stepsearch.search.background import background
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from support.tiny import save_tiny, tiny_model
from support.vllm_settings import SIZES

STEPS = [f"Step {n}: {n} + {n} = {2 * n} pens of the {n} boxes are left on it.\n" for n in range(6)]
PROMPT: dict[str, Any] = {"name": "tiny", "prompt": "chat", "mark": "\n"}
TOKENS = PROMPT | {"head": {"good_token": "+", "bad_token": "-"}}
CLASSES = PROMPT | {"head": {"num_outputs": 2, "activation": "softmax", "good": 1}}
OUTCOME = {"name": "tiny", "system": None, "head": {"num_outputs": 1, "activation": "sigmoid"}}


def with_head(folder: Path, architecture: str, outputs: int) -> Path:
    """The tiny model with a head in its files, under the names that such models use."""
    kind = "qwen2" if architecture.startswith("Qwen2") else "llama"
    save_tiny(folder, kind, **SIZES)
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)
    draw = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * 0.3

    if architecture.endswith("ForProcessRewardModel"):
        size = SIZES["hidden_size"]
        weights |= {"score.0.weight": random(size, size), "score.0.bias": random(size)}
        weights |= {"score.2.weight": random(outputs, size), "score.2.bias": random(outputs)}
    else:
        weights["score.weight"] = random(outputs, SIZES["hidden_size"])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [architecture], "num_labels": outputs}
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(outputs)}
    config["label2id"] = {f"LABEL_{i}": i for i in range(outputs)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter on the tiny model, strong enough to change what it writes."""
    torch.manual_seed(seed)
    config = LoraConfig(
        r=4,
        lora_alpha=32,
        target_modules=["q_proj", "v_proj", "down_proj"],
        task_type="CAUSAL_LM",
        init_lora_weights=False,
    )
    get_peft_model(tiny_model("llama", **SIZES), config).save_pretrained(folder)
    return folder


def score(verifier: Any, chains: list[Chain]) -> list[Any]:
    async def run() -> list[Any]:
        return list(await verifier.score(chains))

    return background.submit(run()).result(timeout=120)


def chains_of(question: str) -> list[Chain]:
    """A chain that grows by a step: every prefix is in the tree, its newest step awaits a score."""
    tree = Tree(question)
    node, found = ROOT, []
    for text in STEPS:
        step = Step(text=text, stop="step", token_ids=(5,))
        found.append(tree.chain(node, (step,), 1))
        node = tree.add(node, step)
    return found
