"""How likely given texts are, against transformers' own forward pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from support.tiny import CONTEXT, save_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.contracts import SamplingParams, WeighsTexts
from stepsearch.search.errors import PolicyError
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step

TEXTS = [" yes", " no, not at all", "\nVerdict: correct"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def policy(folder: Path) -> TransformersPolicy:
    return TransformersPolicy(model=folder, device="cpu")


def sampled(policy: TransformersPolicy) -> tuple[Chain, Step]:
    async def main() -> tuple[Chain, Step]:
        root = Tree("What?").chain(0)
        params = SamplingParams(max_step_tokens=8, max_tokens=8)
        async for sample in policy.sample([root], [3], params):
            step = Step(text=sample.steps[0].text, token_ids=sample.steps[0].token_ids)
            return Chain(root.tree, 0, (step,)), step
        raise AssertionError

    return asyncio.run(main())


def test_it_weighs_texts(policy: TransformersPolicy) -> None:
    assert isinstance(policy, WeighsTexts)


def test_values_are_those_of_a_plain_forward_pass(policy: TransformersPolicy, folder: Path) -> None:
    chain, step = sampled(policy)
    found = asyncio.run(policy.text_logprobs(chain, TEXTS))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What?"}], add_generation_prompt=True, return_dict=False
    )
    for text, value in zip(TEXTS, found.values, strict=True):
        start = [*prompt, *step.token_ids]
        ids = tokenizer.encode(text, add_special_tokens=False)
        with torch.no_grad():
            logits = model(torch.tensor([start + ids])).logits[0].double().log_softmax(-1)
        expected = sum(float(logits[len(start) - 1 + k, i]) for k, i in enumerate(ids))
        assert value == pytest.approx(expected, abs=1e-4)


def test_what_is_cached_is_not_computed_again(policy: TransformersPolicy) -> None:
    chain, _ = sampled(policy)
    asyncio.run(policy.text_logprobs(chain, TEXTS))
    again = asyncio.run(policy.text_logprobs(chain, TEXTS))
    assert again.tokens == 0
    assert (again.tokens_reused or 0) > 0


def test_no_room_gives_no_values(policy: TransformersPolicy) -> None:
    long = Tree("word " * CONTEXT).chain(0)
    assert asyncio.run(policy.text_logprobs(long, TEXTS)).values == ()


def test_unknown_ids_and_empty_texts_are_refused(policy: TransformersPolicy) -> None:
    root = Tree("What?").chain(0)
    with pytest.raises(PolicyError, match="unknown"):
        asyncio.run(policy.text_logprobs(Chain(root.tree, 0, (Step(text="a"),)), TEXTS))
    with pytest.raises(ValueError, match="empty"):
        asyncio.run(policy.text_logprobs(root, [""]))
