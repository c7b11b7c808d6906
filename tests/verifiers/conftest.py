"""Tiny random models, built on the fly: a causal base, a LoRA scorer on it, a token classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.stepwise import Setup, line_setup, trl_setup

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN_SIZE = 32


def _tokenizer(bos: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<|im_start|>", "<|im_end|>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    lines = ["There are 12 eggs and 3 are eaten: 12 - 3 = 9 eggs are left.\n\n", "#### 9\n"]
    raw.train_from_iterator(lines * 20, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        bos_token="<bos>" if bos else None,
        chat_template=TEMPLATE,
    )


def _config(tokenizer: Any, **extra: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=None,
        **extra,
    )


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model with a chat template that adds a system turn by itself."""
    import torch
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base")
    tokenizer = _tokenizer(bos=False)
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(_config(tokenizer))  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def adapter_folder(base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter of the base with a float32 scalar head in the same file."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base_folder),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False),
    )
    model.save_pretrained(str(folder))
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors["score.weight"] = torch.randn(1, HIDDEN_SIZE)
    tensors["score.bias"] = torch.randn(1)
    save_file(tensors, file, metadata={"format": "pt"})
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    return folder


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token classifier with two labels, as TRL's trainer leaves one."""
    import torch
    from transformers import LlamaForTokenClassification

    folder = tmp_path_factory.mktemp("classifier")
    tokenizer = _tokenizer(bos=True)
    torch.manual_seed(2)
    config = _config(tokenizer, num_labels=2)
    model: Any = LlamaForTokenClassification(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def line(base_folder: Path, adapter_folder: Path) -> Setup:
    """A verifier with the adapter's head, and its oracle."""
    return line_setup(base_folder, adapter_folder)


@pytest.fixture(scope="session")
def trl(classifier_folder: Path) -> Setup:
    """A verifier with the classifier's head, and its oracle."""
    return trl_setup(classifier_folder)


@pytest.fixture(params=["line", "trl"])
def setup(request: pytest.FixtureRequest) -> Setup:
    """Both in turn."""
    found: Setup = request.getfixturevalue(request.param)
    return found
