"""From a GGUF to an ordinary transformers folder, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tqdm import tqdm

from stepsearch.policies.child import child, tail
from stepsearch.search.errors import ModelNotFoundError

_STAGES = ("tokenizer", "weights", "saving")
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
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    path = Path(gguf)
    print("tokenizer", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The GGUF names the pre-tokenizer `smollm`, which transformers does not carry over: digits
    # stand alone. Without it a number draws the last blank or newline before it to itself.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
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
