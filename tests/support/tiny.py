"""Tiny random models and a byte-level tokenizer, built on the fly."""

from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

KINDS = ("llama", "qwen2", "gpt2")
VOCAB = 320
CONTEXT = 512

TEXT = [
    "Natalia sold 48/2 = 24 clips in May.\n",
    "She has 3 apples and gives 2 of them away.\n\n#### 42\n",
    "The answer is 7. Für ältere Leute, 数学は楽しい。\n",
]

CHAT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer with chat marks; id 2 ends a turn."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TEXT, trainer)
    return cast(Any, PreTrainedTokenizerFast)(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def tiny_model(kind: str, seed: int = 0, **other_sizes: int) -> Any:
    """A random model with peaked logits, so that greedy choices are not all near ties."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    if kind == "gpt2":
        config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, **common)
        return cast(Any, GPT2LMHeadModel)(config).eval()
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
    } | other_sizes
    if kind == "llama":
        return cast(Any, LlamaForCausalLM)(LlamaConfig(**sizes, **common)).eval()
    return cast(Any, Qwen2ForCausalLM)(Qwen2Config(**sizes, **common)).eval()


def save_tiny(folder: Path, kind: str = "llama", seed: int = 0, **other_sizes: int) -> Path:
    """A model folder as transformers writes it."""
    tiny_model(kind, seed, **other_sizes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
