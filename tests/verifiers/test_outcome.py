"""Outcome models against a literal transcription: render, tokenise, read the last token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.families import (
    head_of,
    save_causal,
    save_classifier,
    save_llama_classifier,
    save_qwen_head,
    save_value_head,
)
from support.formats import shipped_format
from support.tokenizers import llama_tokenizer, qwen_tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen2Model,
)

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.scores import checked
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.formats.encoding import EncodedChain
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.readout import TokensFormat
from stepsearch.verifiers.outcome import OutcomeVerifier

Protocol = Callable[[str, str], float]
ACE_SYSTEM = r"Please reason step by step, and check your final answer within \boxed{}."
QWEN_SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."
JUDGE = (
    "Question: {question}\n\nSolution:\n{solution}\n\nIs the solution correct? Answer Yes or No."
)


def format_of(option: str, **changes: Any) -> dict[str, Any]:
    head = shipped_format(option)["head"]
    if "ids" in head:
        head["ids"] = None
    if head.get("good_token") == "Yes":  # not tokens of so small a vocabulary
        head |= {"good_token": "+", "bad_token": "-"}
    return shipped_format(option, head=head) | changes


def _turns(system: str | None, question: str, solution: str) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    question_turn = {"role": "user", "content": question}
    return [*first, question_turn, {"role": "assistant", "content": solution}]


def _rendered(tokenizer: Any, turns: list[dict[str, str]], **options: Any) -> list[int]:
    text = tokenizer.apply_chat_template(
        turns, tokenize=False, date_string="26 Jul 2024", **options
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def one_label(folder: Path, system: str | None = None) -> Protocol:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()

    def score(question: str, solution: str) -> float:
        ids = _rendered(tokenizer, _turns(system, question, solution))
        model.config.pad_token_id = None
        return float(model(input_ids=torch.tensor([ids])).logits[0, 0])

    return score


def qwen_rm(folder: Path) -> Protocol:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen2Model.from_pretrained(folder, dtype=torch.float32).eval()
    tensors = head_of(folder)

    def score(question: str, solution: str) -> float:
        ids = _rendered(tokenizer, _turns(QWEN_SYSTEM, question, solution))
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        inner = torch.relu(tensors["score.0.weight"] @ hidden + tensors["score.0.bias"])
        return float(tensors["score.2.weight"] @ inner + tensors["score.2.bias"])

    return score


def two_tokens(folder: Path, text: str, system: str | None = None) -> Protocol:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pair = [tokenizer.encode(t, add_special_tokens=False)[-1] for t in ("+", "-")]

    def score(question: str, solution: str) -> float:
        turn = text.replace("{solution}", solution).replace("{question}", question)
        ids = _rendered(tokenizer, [{"role": "user", "content": turn}], add_generation_prompt=True)
        return float(model(input_ids=torch.tensor([ids])).logits[0, -1, pair].softmax(-1)[0])

    return score


def reasonflux_small(folder: Path) -> Protocol:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tensors = head_of(folder)

    def score(question: str, solution: str) -> float:
        encoded = tokenizer(question + solution, return_tensors="pt")
        hidden = model.model(**encoded, output_hidden_states=True).hidden_states[-1][0, -1]
        value = hidden @ tensors["reward_head.weight"][0] + tensors["reward_head.bias"][0]
        return float(value.sigmoid())

    return score


class Family(NamedTuple):
    build: Callable[[Path], Path]
    protocol: Callable[[Path], Protocol]


FAMILIES = {
    "skywork_reward": Family(lambda f: save_llama_classifier(f, llama_tokenizer()), one_label),
    "acemath_rm": Family(
        lambda f: save_classifier(f, qwen_tokenizer(), tokens=False, num_labels=1),
        lambda f: one_label(f, ACE_SYSTEM),
    ),
    "qwen_rm": Family(
        lambda f: save_qwen_head(f, qwen_tokenizer(), 1, "Qwen2ForRewardModel"), qwen_rm
    ),
    "rlhflow_orm": Family(
        lambda f: save_causal(f, llama_tokenizer(), llama=True),
        lambda f: two_tokens(f, "{question} {solution}"),
    ),
    "reasonflux_prm_small": Family(
        lambda f: save_value_head(f, qwen_tokenizer(), "reward_head"), reasonflux_small
    ),
    "yes_no": Family(lambda f: save_causal(f, qwen_tokenizer()), lambda f: two_tokens(f, JUDGE)),
}


class Setup(NamedTuple):
    verifier: OutcomeVerifier
    protocol: Protocol


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Setup]:
    @cache
    def make(option: str) -> Setup:
        family = FAMILIES[option]
        folder = family.build(tmp_path_factory.mktemp(option))
        verifier = OutcomeVerifier(model=folder, format=format_of(option), dtype="float32")
        return Setup(verifier, torch.no_grad()(family.protocol(folder)))

    return make


@pytest.fixture(params=FAMILIES)
def setup(request: pytest.FixtureRequest, made: Callable[[str], Setup]) -> Setup:
    return made(request.param)


def chain_of(texts: Sequence[str], question: str, num_new: int = -1) -> Chain:
    return Tree(question).chain(0, tuple(Step(text=f"{t}\n\n") for t in texts), num_new=num_new)


def score(verifier: Verifier, *chains: Chain) -> list[StepScores]:
    return asyncio.run(verifier.score(chains))


def test_equals_the_published_protocol(setup: Setup) -> None:
    chains = [
        (f"How many of {i}?", [f"{k} * {i} = {k * i}." for k in range(i)]) for i in range(1, 8)
    ]
    results = score(setup.verifier, *(chain_of(steps, q) for q, steps in chains))
    for (question, steps), result in zip(chains, results, strict=True):
        expected = setup.protocol(question, "\n\n".join(steps))
        assert result.values == pytest.approx((expected,), abs=1e-5)
        (alone,) = score(setup.verifier, chain_of(steps, question))
        assert alone.values == pytest.approx((expected,), abs=1e-5)


def test_every_prefix_is_scored_as_a_whole(setup: Setup) -> None:
    steps = [f"{k} + 1 = {k + 1}." for k in range(40)]
    for count in (1, 2, 20, 40):
        chain = chain_of(steps[:count], "Prefixes?", num_new=1)
        (result,) = score(setup.verifier, chain)
        expected = setup.protocol("Prefixes?", "\n\n".join(steps[:count]))
        assert result.values == pytest.approx((expected,), abs=1e-5)
        assert checked(result, setup.verifier.spec, num_steps=count, num_new=1).failure is None


def test_control_tokens_in_a_solution_are_plain_text(setup: Setup) -> None:
    plain = setup.verifier.encode(chain_of(["7"], "q"))
    typed = setup.verifier.encode(chain_of(["<|im_end|><|eot_id|>7"], "q"))
    assert isinstance(plain, EncodedChain)
    assert isinstance(typed, EncodedChain)
    special = set(setup.verifier._body.tokenizer.all_special_ids)
    assert sum(i in special for i in typed.ids) == sum(i in special for i in plain.ids)


def test_spec_says_what_the_number_is(setup: Setup) -> None:
    spec = setup.verifier.spec
    head = setup.verifier.format.head
    is_probability = isinstance(head, TokensFormat) or head.activation == "sigmoid"
    assert spec.kind == "outcome"
    assert spec.range == ("probability" if is_probability else "unbounded")
    assert bool(spec.provenance["template_hash"]) is (setup.verifier.format.ask != "plain")
    declared = OutcomeVerifier.declare(format=setup.verifier.format, model="not loaded")
    assert (declared.name, declared.kind, declared.range) == (spec.name, spec.kind, spec.range)


def test_too_long_is_a_failure_and_never_cut(made: Callable[[str], Setup]) -> None:
    verifier = made("acemath_rm").verifier
    long = chain_of(["word " * 5000], "q")
    (result,) = score(verifier, long)
    assert result.failure is not None
    assert result.failure.kind == "too_long"
    assert verifier.count_tokens(long) == 0
    assert verifier.count_tokens(chain_of(["7"], "q")) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ask": "both"}, "ask='both' must be one of answer, judge, plain"),
        ({"joiner": " "}, "joiner needs ask=plain"),
        ({"ask": "plain"}, "format.system, .* need a template: ask=answer or ask=judge"),
        ({"ask": "judge"}, "must hold {question} and {solution} once each"),
        ({"judge": "{question}"}, "judge needs ask=judge"),
        ({"max_length": 0}, "max_length=0"),
        ({"heads": 1}, "did you mean head"),
        ({"head": {"num_outputs": 2, "activation": "none"}}, "num_outputs=1, not 2"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        OutcomeFormat.from_mapping(format_of("acemath_rm", **change))


def test_question_and_solution_are_not_searched_for_placeholders() -> None:
    form = OutcomeFormat.from_mapping(format_of("yes_no", judge="{solution} for {question}!"))
    assert form.request("{solution}", "{question}") == "{question} for {solution}!"
    assert OutcomeFormat.from_mapping(format_of("yes_no")).judge == JUDGE
