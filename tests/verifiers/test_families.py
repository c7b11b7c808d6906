"""Every family of step PRMs against a literal transcription of its published protocol.

The transcriptions tokenise text as the published code does and run transformers' own forward once
for every prefix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from support.families import (
    head_of,
    save_causal,
    save_classifier,
    save_qwen_head,
    save_value_head,
)
from support.formats import shipped_format, shipped_model
from support.tokenizers import llama_tokenizer, mistral_tokenizer, qwen_tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Qwen2Model,
)

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.transformers import TransformersVerifier

QWEN_SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."

Protocol = Callable[[str, Sequence[str]], float]


class Family(NamedTuple):
    """A family's configuration, a tiny model of it, and its protocol on that model."""

    option: str
    build: Callable[[Path], Path]
    protocol: Callable[[Path], Protocol]


DOCUMENTED = "documented_example"


def documented_format() -> dict[str, Any]:
    """What the documentation gives as the file of a user's own model, on the generic option."""
    text = (Path(__file__).parents[2] / "docs" / "verifiers.md").read_text(encoding="utf-8")
    example = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    return shipped_format("step_prm", **example["format"])


def format_of(option: str, **changes: Any) -> dict[str, Any]:
    """The shipped format, with the ids of a tiny tokenizer instead of the real ones."""
    if option == DOCUMENTED:
        form = documented_format()
        return form | {"mark_ids": None, "head": form["head"] | {"ids": None}} | changes
    head = shipped_format(option)["head"]
    if "ids" in head:
        head["ids"] = None
    return shipped_format(option, mark_ids=None, head=head) | changes


def _qwen_hidden(folder: Path) -> Callable[[Any], Any]:
    model = Qwen2Model.from_pretrained(folder, dtype=torch.float32).eval()
    tensors = head_of(folder)

    def logits(ids: list[int]) -> torch.Tensor:
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        inner = torch.relu(hidden @ tensors["score.0.weight"].T + tensors["score.0.bias"])
        return inner @ tensors["score.2.weight"].T + tensors["score.2.bias"]

    return logits


def qwen(folder: Path, system: str | None = QWEN_SYSTEM) -> Protocol:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    logits = _qwen_hidden(folder)

    def score(question: str, steps: Sequence[str]) -> float:
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        ids = tokenizer.encode(text)
        mark = tokenizer.encode("<extra_0>")[0]
        rows = logits(ids).softmax(dim=-1)[[i == mark for i in ids]]
        assert len(rows) == len(steps)
        return float(rows[-1, 1])

    return score


def _text_model(folder: Path) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return AutoTokenizer.from_pretrained(folder), model


def _tagged(
    folder: Path, text: Callable[[str, Sequence[str]], str], tag: str, good: str
) -> Protocol:
    """Two tokens of the language model at the last position of the tag."""
    tokenizer, model = _text_model(folder)
    names = ["+", "-"] if good == "+" else [" +", " -"]
    pair = [tokenizer.encode(n, add_special_tokens=False)[-1] for n in names]
    tag_id = tokenizer.encode(tag, add_special_tokens=False)[-1]

    def score(question: str, steps: Sequence[str]) -> float:
        ids = tokenizer.encode(text(question, steps))
        places = [i for i, token in enumerate(ids) if token == tag_id]
        assert len(places) == len(steps)
        logits = model(input_ids=torch.tensor([ids])).logits[0, places[-1], pair]
        return float(logits.softmax(dim=-1)[0])

    return score


def math_shepherd(folder: Path) -> Protocol:
    def text(question: str, steps: Sequence[str]) -> str:
        lines = [f"Step {k}: {step} ки" for k, step in enumerate(steps, 1)]
        return question + " " + "\n".join(lines)

    return _tagged(folder, text, "ки", " +")


def math_psa(folder: Path) -> Protocol:
    def text(question: str, steps: Sequence[str]) -> str:
        lines = [f"Step {k}: {step} \n\n\n\n\n" for k, step in enumerate(steps, 1)]
        return f"{question} {' '.join(lines)}"

    return _tagged(folder, text, " \n\n\n\n\n", " +")


def versa(folder: Path) -> Protocol:
    def text(question: str, steps: Sequence[str]) -> str:
        return question + " \n\n" + "".join(f"{step} \n\n\n\n" for step in steps)

    return _tagged(folder, text, " \n\n\n\n", "+")


def rlhflow(folder: Path) -> Protocol:
    tokenizer, model = _text_model(folder)
    pair = [tokenizer.encode(n)[-1] for n in ("+", "-")]

    def score(question: str, steps: Sequence[str]) -> float:
        conversation = []
        for k, step in enumerate(steps):
            content = question + " " + step if k == 0 else step
            conversation.append({"content": content, "role": "user"})
            conversation.append({"content": "+", "role": "assistant"})
        ids = tokenizer.apply_chat_template(
            conversation, return_dict=False, date_string="26 Jul 2024"
        )
        logits = model(input_ids=torch.tensor([ids])).logits[0, -3, pair]
        return float(logits.softmax(dim=-1)[0])

    return score


def skywork(folder: Path) -> Protocol:
    tokenizer, model = _text_model(folder)
    tensors = head_of(folder)

    def score(question: str, steps: Sequence[str]) -> float:
        ids = tokenizer.encode(tokenizer.bos_token + question + "\n")
        for step in steps:
            line = step.replace("\n", " ")
            ids = [*ids, *(tokenizer.encode(line) if line else []), tokenizer.encode("\n")[-1]]
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        hidden = output.hidden_states[-1][0, -1]
        value = hidden @ tensors["v_head.summary.weight"][0] + tensors["v_head.summary.bias"][0]
        return float(value.sigmoid())

    return score


def classifier(folder: Path, signed: bool = False) -> Protocol:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    mark = tokenizer.encode("\n\n", add_special_tokens=False)

    def score(question: str, steps: Sequence[str]) -> float:
        ids = tokenizer.encode(question, add_special_tokens=False)
        for step in steps:
            ids = [*ids, *tokenizer.encode(step, add_special_tokens=False), *mark]
        both = model(input_ids=torch.tensor([ids])).logits[0, -1].softmax(dim=-1)
        return float(both[1] - both[0]) if signed else float(both[1])

    return score


def build_qwen(folder: Path) -> Path:
    return save_qwen_head(folder, qwen_tokenizer(), 2, "Qwen2ForProcessRewardModel")


def build_llama(folder: Path) -> Path:
    return save_causal(folder, llama_tokenizer(), llama=True)


FAMILIES = {
    family.option: family
    for family in (
        Family("qwen_prm", build_qwen, qwen),
        Family("reasonflux_prm", build_qwen, lambda f: qwen(f, None)),
        Family(
            "math_shepherd",
            lambda f: save_causal(f, mistral_tokenizer(), llama=True),
            math_shepherd,
        ),
        Family("rlhflow_deepseek", build_llama, rlhflow),
        Family("skywork_prm", lambda f: save_value_head(f, qwen_tokenizer(bos=True)), skywork),
        Family("versa_prm", build_llama, versa),
        Family(DOCUMENTED, build_llama, versa),
        Family("qwen_prm800k_uw", lambda f: save_causal(f, qwen_tokenizer()), versa),
        Family("math_psa", lambda f: save_causal(f, qwen_tokenizer()), math_psa),
        Family(
            "trl_prm",
            lambda f: save_classifier(f, qwen_tokenizer(), tokens=True, num_labels=2),
            classifier,
        ),
        Family(
            "pure_prm",
            lambda f: save_classifier(f, qwen_tokenizer(), tokens=True, num_labels=2),
            lambda f: classifier(f, signed=True),
        ),
    )
}


class Setup(NamedTuple):
    """A verifier and the literal protocol of its family on the same weights."""

    verifier: TransformersVerifier
    protocol: Protocol
    folder: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Setup]:
    @cache
    def make(option: str) -> Setup:
        family = FAMILIES[option]
        folder = family.build(tmp_path_factory.mktemp(option))
        verifier = TransformersVerifier(model=folder, format=format_of(option), dtype="float32")
        return Setup(verifier, torch.no_grad()(family.protocol(folder)), folder)

    return make


@pytest.fixture(params=FAMILIES)
def setup(request: pytest.FixtureRequest, made: Callable[[str], Setup]) -> Setup:
    return made(request.param)


def steps_of(count: int, salt: int = 0) -> list[str]:
    return [f"After {k} they have {k} * {salt} + 7 = {k * salt + 7} eggs." for k in range(count)]


def chain_of(texts: Sequence[str], question: str, num_new: int = -1) -> Chain:
    return Tree(question).chain(0, tuple(Step(text=f"{t}\n\n") for t in texts), num_new=num_new)


def score(verifier: Verifier, *chains: Chain) -> list[StepScores]:
    return asyncio.run(verifier.score(chains))


def literal(setup: Setup, question: str, steps: Sequence[str], lengths: Sequence[int]) -> Any:
    """The score of the last step of some prefixes."""
    return pytest.approx([setup.protocol(question, steps[:k]) for k in lengths], abs=1e-5)


@pytest.mark.parametrize(
    "lengths", [(1, 2, 3, 7, 20, 40), pytest.param(range(1, 41), marks=pytest.mark.slow)]
)
def test_forty_steps_equal_the_published_protocol(setup: Setup, lengths: Sequence[int]) -> None:
    question = "There are 12 eggs and 3 are eaten.\nHow many are left?"
    steps = steps_of(40, salt=3)
    (whole,) = score(setup.verifier, chain_of(steps, question))
    assert len(whole.values) == 40
    assert [whole.values[k - 1] for k in lengths] == literal(setup, question, steps, lengths)
    assert max(whole.values) - min(whole.values) > 1e-3, "a constant would prove nothing"


@pytest.mark.parametrize("count", [1, 2, 6, pytest.param(40, marks=pytest.mark.slow)])
def test_step_by_step_equals_the_published_protocol(setup: Setup, count: int) -> None:
    question, steps = f"How many are {count} eggs?", steps_of(count, salt=5)
    found = [
        score(setup.verifier, chain_of(steps[: k + 1], question, num_new=1))[0].values[-1]
        for k in range(count)
    ]
    assert found == literal(setup, question, steps, range(1, count + 1))


def test_a_padded_batch_of_seven_equals_the_published_protocol(setup: Setup) -> None:
    chains = [(f"Batch {i}: how many?", steps_of(i + 1, salt=i)) for i in range(7)]
    results = score(setup.verifier, *(chain_of(steps, q) for q, steps in chains))
    for (question, steps), result in zip(chains, results, strict=True):
        lengths = range(1, len(steps) + 1)
        assert list(result.values) == literal(setup, question, steps, lengths)


def test_no_distinct_token_is_computed_twice(setup: Setup) -> None:
    tree = Tree("How many tokens?")
    prefixes: set[tuple[int, ...]] = set()
    computed, level = 0, [0]
    for depth in range(4):
        level = [
            tree.add(parent, Step(text=f"{depth} + {i} = {depth + i} eggs.\n\n"))
            for parent in level[:2]
            for i in range(3)
        ]
        chains = [tree.chain(node, num_new=1) for node in level]
        computed += sum(result.tokens or 0 for result in score(setup.verifier, *chains))
        for chain in chains:
            ids = setup.verifier.encode(chain).ids  # type: ignore[union-attr]
            prefixes.update(tuple(ids[: i + 1]) for i in range(len(ids)))
    assert computed <= 1.02 * len(prefixes)
    assert setup.verifier.spec.incremental


def test_the_declared_range_is_the_loaded_one(setup: Setup) -> None:
    spec = setup.verifier.spec
    declared = TransformersVerifier.declare(format=setup.verifier.format)
    assert (declared.range, declared.aggregation) == (spec.range, spec.aggregation)
    assert (spec.range == "signed") is (setup.verifier.format.name == "pure_prm")


@pytest.mark.parametrize(
    ("sibling", "family", "differs"),
    [
        ("qwen_prm800k", "qwen_prm", {"name"}),
        ("rlhflow_mistral", "rlhflow_deepseek", set()),
        ("qwen_prm800k_uw", "versa_prm", {"name", "mark_ids"}),
    ],
)
def test_siblings_share_a_format(sibling: str, family: str, differs: set[str]) -> None:
    assert shipped_model(sibling) != shipped_model(family)
    one, other = shipped_format(sibling), shipped_format(family)
    assert {key for key in one if one[key] != other[key]} == differs
