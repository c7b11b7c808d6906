"""Random models of a given size that end lines and chains as often as they are told.

`python -m stepsearch.benchmarks.perf.random_model SIZE FOLDER` writes one. The weights are random
but for two rows of the output layer: they read one coordinate that is nearly constant, so the line
end and the end of a chain have fixed probabilities while all other tokens are drawn by chance.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

LINE_ENDS = 1 / 24
CHAIN_ENDS = 1 / 96
_CONSTANT = 60.0


class Size(NamedTuple):
    """Shape of a Qwen2 model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


SIZES = {
    "tiny": Size(64, 128, 2, 2, 2, 2048),
    "0.5b": Size(896, 4864, 24, 14, 2, 151936),
    "1.5b": Size(1536, 8960, 28, 12, 2, 151936),
}
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}{% endif %}"
)


def write_model(size: str, folder: Path) -> None:
    """Write a random model with a tokenizer whose words are numbers."""
    tokenizer = _tokenizer(SIZES[size].vocabulary)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _model(SIZES[size], device, tokenizer.eos_token_id)
    _set_ends(model, tokenizer.encode("\n")[0], tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*characters, "<|end|>"]
    words += [f"\u0120w{number}" for number in range(size - len(words))]
    core = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=core, eos_token="<|end|>", chat_template=TEMPLATE)


def _model(size: Size, device: str, eos: int) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        eos_token_id=eos,
        bos_token_id=eos,
        dtype="bfloat16" if device == "cuda" else "float32",
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            made: Any = Qwen2ForCausalLM
            model = made(config).eval()
    finally:
        torch.set_default_dtype(before)
    return model


@torch.no_grad()
def _set_ends(model: Any, line_end: int, chain_end: int) -> None:
    """Give the two ends their probabilities, measured on random sequences."""
    model.model.embed_tokens.weight[:, 0] = _CONSTANT
    ids = torch.randint(0, model.config.vocab_size, (4, 64), device=model.device)
    hidden = model.model(ids).last_hidden_state.float()
    logits = model.lm_head(hidden.to(model.dtype)).float()
    logits[..., [line_end, chain_end]] = -math.inf
    others = float(logits.logsumexp(-1).mean())
    constant = float(hidden[..., 0].mean())
    for token, share in ((line_end, LINE_ENDS), (chain_end, CHAIN_ENDS)):
        row = torch.zeros_like(model.lm_head.weight[token])
        row[0] = (others + math.log(share / (1 - LINE_ENDS - CHAIN_ENDS))) / constant
        model.lm_head.weight[token] = row


if __name__ == "__main__":
    write_model(sys.argv[1], Path(sys.argv[2]))
