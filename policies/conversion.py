"""From a GGUF to an ordinary transformers folder, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from stepsearch.policies.child import child, tail
from stepsearch.search.errors import ModelNotFoundError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_STAGES = ("tokenizer", "weights", "saving")
_CONTROL = 3  # a token's type in GGUF: a mark, never written as text
_CHILD = "import sys; from stepsearch.policies.conversion import convert; convert(*sys.argv[1:])"


def convert_elsewhere(name: str, gguf: Path, target: Path, log: Path) -> None:
    """Run `convert` in a process of its own and show how far it is.

    That keeps the libraries' messages and memory out of this process.

    Raises:
        ModelNotFoundError: the conversion failed; says with what message.
    """
    package_root = str(Path(__file__).absolute().parents[2])
    environment = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH")))),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-P", "-c", _CHILD, str(gguf), str(target)]
    with (
        tqdm(total=len(_STAGES), desc=f"converting {name}", unit="stage") as bar,
        child(command, environment, log) as process,
    ):
        for line in process.stdout or ():
            stage = line.strip()
            if stage in _STAGES:
                bar.update(_STAGES.index(stage) - bar.n)
                bar.set_postfix_str(stage)
        code = process.wait()
        if code == 0:
            bar.update(len(_STAGES) - bar.n)
    if code:
        raise ModelNotFoundError(f"the conversion failed (exit {code}):\n{tail(log)}")


def convert(gguf: str, target: str) -> None:
    """Write the GGUF as a transformers folder: float32 weights, tokenizer, configuration.

    Prints each stage as a line.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig

    path = Path(gguf)
    print("tokenizer", flush=True)
    tokenizer = tokenizer_of(path)
    print("weights", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    eos_ids = tokenizer.convert_tokens_to_ids([tokenizer.eos_token, "<|endoftext|>"])
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=eos_ids,
        pad_token_id=tokenizer.pad_token_id,
    )
    print("saving", flush=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def tokenizer_of(gguf: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that a GGUF of kind `gpt2` describes, as the GGUF itself says.

    Transformers reads one out of a GGUF, too, but not alike in all versions: 5.17 takes the start
    of a turn for its end, and none carries over that SmolLM's digits stand alone. Without that a
    number draws the last blank or newline before it to itself.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def told(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    tokens: list[str] = told("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in told("ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    marks = [t for t, kind in zip(tokens, told("ggml.token_type"), strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token=tokens[told("ggml.bos_token_id")],
        eos_token=tokens[told("ggml.eos_token_id")],
        unk_token=tokens[told("ggml.unknown_token_id")],
        pad_token=tokens[told("ggml.padding_token_id")],
        chat_template=told("chat_template"),
        clean_up_tokenization_spaces=False,
    )
