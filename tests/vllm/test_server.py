"""The OpenAI policy and verifiers on vLLM's own server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny import tiny_tokenizer
from support.vllm_models import CLASSES, OUTCOME, TOKENS, chains_of, score
from support.vllm_server import NAME, Server, serving

from stepsearch import Budget, Engine, SamplingParams
from stepsearch.policies.openai import OpenAIPolicy
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.background import background
from stepsearch.search.errors import VerifierError
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.tree import ROOT, Tree
from stepsearch.testing.policy import check_policy
from stepsearch.testing.verifier import check_verifier
from stepsearch.verifiers.openai import OpenAIOutcomeVerifier, OpenAIVerifier
from stepsearch.verifiers.outcome import OutcomeVerifier
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.transformers import TransformersVerifier

pytestmark = pytest.mark.vllm

STEP = SamplingParams(temperature=1.0, max_step_tokens=24)
GREEDY = SamplingParams(temperature=0.0, max_step_tokens=24, max_tokens=60, until="end")
CPU: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def servers(folders: dict[str, Path]) -> Iterator[dict[str, Server]]:
    """One for each model, as vLLM serves it by itself: of `process`, rows at step marks only."""
    (mark,) = tiny_tokenizer().encode("\n", add_special_tokens=False)
    pooler = {"tok_pooling_type": "STEP", "step_tag_id": mark}
    options: dict[str, dict[str, object]] = {
        "tokens": {},
        "process": {"runner": "pooling", "pooler-config": pooler},
        "outcome": {"runner": "pooling"},
    }
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(serving(folders[name], **given))
            for name, given in options.items()
        }


@pytest.fixture(scope="module")
def url(servers: dict[str, Server]) -> str:
    return servers["tokens"].url()


@pytest.fixture(params=["ids", "text"])
def policy(request: pytest.FixtureRequest, url: str, folder: Path) -> Iterator[OpenAIPolicy]:
    made = OpenAIPolicy(
        base_url=url,
        model=NAME,
        tokenizer=folder,
        prompt_format={"system": None},
        prompts=request.param,
    )
    yield made
    made.close()


def test_it_keeps_the_contract(policy: OpenAIPolicy) -> None:
    check_policy(policy)


def test_greedy_chains_by_ids_are_those_of_transformers(policy: OpenAIPolicy, folder: Path) -> None:
    if policy.spec.provenance["prompts"] != "ids":
        return
    other = TransformersPolicy(model=folder, prompt_format={"system": None}, **CPU)

    async def run(one: Any) -> list[Any]:
        chain = Tree("How many pens are left?").chain(ROOT)
        return [s async for s in one.sample([chain], [1], GREEDY)]

    ours, theirs = (background.submit(run(p)).result(timeout=60) for p in (policy, other))
    assert [s.token_ids for s in ours[0].steps] == [s.token_ids for s in theirs[0].steps]
    assert [(s.text, s.stop) for s in ours[0].steps] == [(s.text, s.stop) for s in theirs[0].steps]


def test_a_beam_keeps_its_budget(policy: OpenAIPolicy) -> None:
    solution = Engine(
        policy=policy,
        strategy=Beam(n=4, width=2),
        verifier=RuleVerifier(),
        budget=Budget(policy_tokens=100),
        sampling=replace(STEP, max_tokens=60),
    ).solve("How many pens are left?")
    assert solution.error is None
    assert 0 < solution.usage.policy_tokens <= 100


def test_two_tokens_are_read_as_in_process(url: str, folder: Path) -> None:
    ours = OpenAIVerifier(base_url=url, model=NAME, tokenizer=folder, format=TOKENS)
    _agree(ours, TransformersVerifier(model=folder, format=TOKENS, **CPU))
    chains = chains_of("A question that nobody asked before?")
    scored = [score(ours, [chain])[0] for chain in chains]
    lengths = [len(ours.encode(chain).ids) for chain in chains]
    assert [s.tokens + s.tokens_reused for s in scored] == lengths
    assert scored[-1].tokens_reused > lengths[-2] - 2 * 32, "all but the last block of 32"
    with pytest.raises(VerifierError, match=r"refuses route=pooling: .*task token_classify"):
        OpenAIVerifier(base_url=url, model=NAME, tokenizer=folder, format=CLASSES)
    ours.close()


def test_a_process_head_is_read_as_in_process(
    servers: dict[str, Server], folders: dict[str, Path]
) -> None:
    model, url = folders["process"], servers["process"].url()
    ours = OpenAIVerifier(base_url=url, model=NAME, tokenizer=model, format=CLASSES)
    _agree(ours, TransformersVerifier(model=model, format=CLASSES, **CPU))
    (chain,) = chains_of("How many?")[-1:]
    scored = score(ours, [chain])[0]
    assert (scored.tokens, scored.tokens_reused) == (len(ours.encode(chain).ids), 0)
    ours.close()


def test_an_outcome_head_is_read_as_in_process(
    servers: dict[str, Server], folders: dict[str, Path]
) -> None:
    model, url = folders["outcome"], servers["outcome"].url()
    ours = OpenAIOutcomeVerifier(base_url=url, model=NAME, tokenizer=model, format=OUTCOME)
    _agree(ours, OutcomeVerifier(model=model, format=OUTCOME, **CPU))
    (scored,) = score(ours, chains_of("How many?")[-1:])
    assert (scored.tokens, scored.tokens_reused) == (None, None), "the server does not tell"
    ours.close()


def _agree(ours: Any, theirs: Any) -> None:
    chains = chains_of("How many are left?") + chains_of("How many?")
    a, b = score(ours, chains), score(theirs, chains)
    assert all(s.failure is None for s in (*a, *b))
    for one, other in zip(a, b, strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-4)
    assert len({round(s.values[0], 4) for s in a}) > 6
    check_verifier(ours)
