"""Tiny tokenizers that behave as those of the public families do: what merges, what is added."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_SPLIT = _WORDS + r"\p{N}" + _REST
LLAMA_SPLIT = _WORDS + r"\p{N}{1,3}" + _REST

_TEXT = [
    "Step 1: There are 12 eggs and 3 are eaten.\n\nStep 2: 12 - 3 = 9 eggs are left. ки\n",
    "The answer is $9$.\n\n",
    *["left \n\n", "left \n\n\n\n", "left \n\n\n\n\n", "left.\n\n", "a + b - c", "+", "-", "?\n"],
]

QWEN_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}<|im_start|>system\n{{ messages[0]['content'] }}"
    "<|im_end|>\n{% else %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if not (loop.first and message['role'] == 'system') %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% if not date_string is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{{ 'Cutting Knowledge Date: December 2023\n' }}{{ 'Today Date: ' + date_string + '\n\n' }}"
    "{{ system }}{{ '<|eot_id|>' }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim }}{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def _byte_level(split: str, specials: list[str]) -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=460,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_TEXT * 5, trainer)
    return core


def _fast(core: Tokenizer, **options: Any) -> Any:
    return cast(Any, PreTrainedTokenizerFast)(tokenizer_object=core, **options)


@cache
def qwen_tokenizer(bos: bool = False) -> Any:
    """Byte-level, adds nothing by itself, a special token for steps, a default system turn."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"]
    return _fast(
        _byte_level(QWEN_SPLIT, specials),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|endoftext|>" if bos else None,
        chat_template=QWEN_TEMPLATE,
    )


@cache
def llama_tokenizer() -> Any:
    """Byte-level, adds a begin mark by itself; its template trims turns and prints a date."""
    begin = "<|begin_of_text|>"
    specials = [begin, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    core = _byte_level(LLAMA_SPLIT, specials)
    core.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, 0)]
    )
    return _fast(core, eos_token="<|eot_id|>", bos_token=begin, chat_template=LLAMA_TEMPLATE)


@cache
def mistral_tokenizer() -> Any:
    """A space before every text, bytes for what it does not know (a newline), a begin mark."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    text = [line.replace("\n", " ") for line in _TEXT] * 5
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    core.train_from_iterator(text, trainer)
    learned = core.get_vocab()
    merges = _merges(core)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    names += sorted(learned, key=lambda token: learned[token])
    vocab = {name: i for i, name in enumerate(names)}
    whole = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    whole.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    whole.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    whole.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    whole.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return _fast(whole, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _merges(core: Tokenizer) -> list[tuple[str, str]]:
    import json

    merges = json.loads(core.to_str())["model"]["merges"]
    return [(a, b) for a, b in merges]
