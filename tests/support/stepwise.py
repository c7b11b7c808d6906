"""Step verifiers on tiny models, each beside a full re-scoring with transformers itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.transformers import TransformersVerifier
from support.formats import shipped_format

QUESTION = "There are 12 eggs and 3 are eaten. How many are left?"


def format_of(name: str, **changes: Any) -> dict[str, Any]:
    return shipped_format(name, **changes)


class Setup(NamedTuple):
    """A verifier, a full re-scoring that owes nothing to it, and its text of a step."""

    verifier: TransformersVerifier
    oracle: Any
    ids: Any


def line_ids(tokenizer: Any, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
    """Prompt and steps as the formats' descriptions say, and the positions of the marks."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return _append(tokenizer, ids, steps, "\n")


def trl_ids(tokenizer: Any, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
    """As TRL's trainer tokenises a row."""
    ids = [tokenizer.bos_token_id, *tokenizer(question, add_special_tokens=False)["input_ids"]]
    return _append(tokenizer, ids, steps, "\n\n")


def _append(
    tokenizer: Any, ids: list[int], steps: Sequence[str], mark: str
) -> tuple[list[int], list[int]]:
    positions = []
    for step in steps:
        ids = ids + tokenizer(step.rstrip(), add_special_tokens=False)["input_ids"]
        ids = ids + tokenizer(mark, add_special_tokens=False)["input_ids"]
        positions.append(len(ids) - 1)
    return ids, positions


def line_setup(base_folder: Path, adapter_folder: Path) -> Setup:
    """The scalar head of an adapter, read at line ends."""
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(adapter_folder)).eval()
    tensors = load_file(adapter_folder / "adapter_model.safetensors")

    @torch.no_grad()
    def oracle(question: str, steps: Sequence[str]) -> list[float]:
        ids, positions = line_ids(tokenizer, question, steps)
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        hidden = output.hidden_states[-1][0, positions]
        logits = hidden @ tensors["score.weight"].T + tensors["score.bias"]
        values: list[float] = logits[:, 0].sigmoid().tolist()
        return values

    verifier = TransformersVerifier(
        model=base_folder, adapter=adapter_folder, format=format_of("line_prm"), dtype="float32"
    )
    return Setup(verifier, oracle, lambda q, s: line_ids(tokenizer, q, s)[0])


def trl_setup(classifier_folder: Path) -> Setup:
    """A token classifier with two labels, read at blank lines."""
    tokenizer = AutoTokenizer.from_pretrained(classifier_folder)
    model = AutoModelForTokenClassification.from_pretrained(classifier_folder).eval()

    @torch.no_grad()
    def oracle(question: str, steps: Sequence[str]) -> list[float]:
        ids, positions = trl_ids(tokenizer, question, steps)
        logits = model(input_ids=torch.tensor([ids])).logits[0, positions]
        values: list[float] = logits.softmax(dim=-1)[:, 1].tolist()
        return values

    verifier = TransformersVerifier(
        model=classifier_folder, format=format_of("trl_prm"), dtype="float32"
    )
    return Setup(verifier, oracle, lambda q, s: trl_ids(tokenizer, q, s)[0])


def score(verifier: Verifier, *chains: Chain) -> list[StepScores]:
    return asyncio.run(verifier.score(chains))


def chain_of(*texts: str, question: str = QUESTION, num_new: int = -1) -> Chain:
    return Tree(question).chain(0, tuple(Step(text=t) for t in texts), num_new=num_new)
