"""The policy on tiny models, and on the embedded one."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import CONTEXT, KINDS, save_tiny

from stepsearch.policies.prompt import FILE_NAME, PromptFormat
from stepsearch.policies.sampling import Draw, Token
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.contracts import Policy, Sample, SamplingParams
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError, PolicyError
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Step

EPSILON = 1e-3


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / request.param, request.param)


@pytest.fixture
def policy(folder: Path) -> TransformersPolicy:
    return TransformersPolicy(model=folder, device="cpu", prompt_format=PromptFormat(separator=" "))


def run(
    policy: Policy, tree: Tree, node: int, seeds: Sequence[int], params: SamplingParams
) -> list[tuple[Step, ...]]:
    async def main() -> list[Sample]:
        chain = tree.chain(node)
        chains = [chain] * len(seeds)
        return [sample async for sample in policy.sample(chains, seeds, params)]

    samples = asyncio.run(main())
    assert sorted(s.request for s in samples) == list(range(len(seeds)))
    return [s.steps for s in sorted(samples, key=lambda s: s.request)]


def record_tokens(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> dict[int, list[Token]]:
    """Every token that is sampled from now on, by seed."""
    tokens: dict[int, list[Token]] = {}
    generate = policy.runner.generate

    async def recording(
        ids: Sequence[int],
        draw: Draw,
        on_token: Callable[[Token], bool],
        adapter: str | None = None,
    ) -> Any:
        seen = tokens.setdefault(draw.seed, [])
        del seen[:]

        def both(token: Token) -> bool:
            seen.append(token)
            return on_token(token)

        return await generate(ids, draw, both, adapter)

    monkeypatch.setattr(policy.runner, "generate", recording)
    return tokens


def first_difference(first: Sequence[Token], second: Sequence[Token]) -> Token | None:
    return next((a for a, b in zip(first, second, strict=False) if a.id != b.id), None)


END = SamplingParams(until="end", temperature=1.0, max_tokens=60, max_step_tokens=40, max_repeats=0)


def test_it_is_a_policy(policy: TransformersPolicy) -> None:
    assert isinstance(policy, Policy)
    assert policy.spec.num_parameters == policy.runner.model.num_parameters
    json.dumps(policy.spec.provenance)


def test_steps_join_to_the_decoded_ids(policy: TransformersPolicy) -> None:
    tree = Tree("How many?")
    for steps in run(policy, tree, ROOT, range(8), END):
        ids = [i for s in steps for i in s.token_ids]
        body = ids[:-1] if steps[-1].stop == "eos" else ids
        assert "".join(s.text for s in steps) == policy._starts.decode(body)
        assert all(s.stop == "step" for s in steps[:-1])
        assert all(s.logprob is not None and s.logprob <= 0 for s in steps)


def test_step_by_step_is_the_same_chain(policy: TransformersPolicy) -> None:
    tree = Tree("How many?")
    for seed, whole in enumerate(run(policy, tree, ROOT, range(4), END)):
        node, left = ROOT, END.max_tokens
        for expected in whole:
            one = SamplingParams(
                temperature=1.0, max_tokens=left, max_step_tokens=40, max_repeats=0
            )
            (step,) = run(policy, tree, node, [seed], one)[0]
            assert (step.text, step.token_ids, step.stop) == (
                expected.text,
                expected.token_ids,
                expected.stop,
            )
            node, left = tree.add(node, step), left - step.num_tokens


def test_alone_equals_among_others(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = record_tokens(policy, monkeypatch)
    tree = Tree("How many?")
    together = run(policy, tree, ROOT, range(16), END)
    among = {seed: list(t) for seed, t in tokens.items()}
    for seed in range(16):
        alone = run(policy, tree, ROOT, [seed], END)[0]
        parted = first_difference(among[seed], tokens[seed])
        if parted is None:
            assert [s.token_ids for s in alone] == [s.token_ids for s in together[seed]]
        else:
            assert parted.gap < EPSILON


def test_different_seeds_give_different_chains(policy: TransformersPolicy) -> None:
    made = run(policy, Tree("How many?"), ROOT, range(16), END)
    assert len({tuple(s.token_ids for s in steps) for steps in made}) == 16


def test_limits(policy: TransformersPolicy) -> None:
    tree = Tree("How many?")
    short = SamplingParams(temperature=1.0, max_step_tokens=1)
    assert {s[-1].stop for s in run(policy, tree, ROOT, range(20), short)} <= {
        "step",
        "eos",
        "length",
    }
    tight = SamplingParams(until="end", temperature=1.0, max_tokens=3)
    for steps in run(policy, tree, ROOT, range(20), tight):
        assert sum(s.num_tokens for s in steps) <= 3


def test_no_room_in_the_context(policy: TransformersPolicy) -> None:
    for length in (CONTEXT, 10 * CONTEXT):
        tree = Tree("x" * length)
        assert (
            run(policy, tree, ROOT, [1, 2], END)
            == [(Step(text="", stop="context", logprob=0.0),)] * 2
        )
    room = 5
    prompt = len(policy._starts.prompt("Q"))
    node = Tree("Q")
    filler = Step(text="x", token_ids=(50,) * (CONTEXT - prompt - room))
    node.add(ROOT, filler)
    long = SamplingParams(until="end", temperature=1.0, max_step_tokens=CONTEXT, max_repeats=0)
    for steps in run(policy, node, 1, range(8), long):
        used = sum(s.num_tokens for s in steps)
        assert used <= room
        if used == room:
            assert steps[-1].stop in ("context", "step", "eos")


def test_chains_that_cannot_be_continued_are_refused(policy: TransformersPolicy) -> None:
    tree = Tree("Q")
    ended = tree.add(ROOT, Step(text="a", token_ids=(5,), stop="eos"))
    unknown = tree.add(ROOT, Step(text="a ", count=3))
    with pytest.raises(PolicyError, match="eos"):
        run(policy, tree, ended, [1], END)
    with pytest.raises(PolicyError, match="unknown"):
        run(policy, tree, unknown, [1], END)


def test_no_seeds_no_samples(policy: TransformersPolicy) -> None:
    assert run(policy, Tree("Q"), ROOT, [], END) == []


def test_a_consumer_that_stops_early_cancels_the_rest(policy: TransformersPolicy) -> None:
    params = SamplingParams(until="end", temperature=1.0, max_repeats=0, max_step_tokens=400)

    async def main() -> None:
        chain = Tree("Q").chain(ROOT)
        samples = policy.sample([chain] * 9, range(9), params)
        await anext(samples)
        await samples.aclose()
        while policy.runner.has_work():
            await asyncio.sleep(0.001)

    asyncio.run(main())


def test_adapter_brings_its_prompt_format(folder: Path, tmp_path: Path) -> None:
    PromptFormat(separator=";").save(tmp_path / FILE_NAME)
    with pytest.raises(ModelNotFoundError, match="adapter_config"):
        TransformersPolicy(model=folder, device="cpu", adapter=tmp_path)


def test_wrong_settings_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        TransformersPolicy(model=tmp_path / "nowhere", device="cpu")
    with pytest.raises(ConfigurationError, match="separatr"):
        TransformersPolicy(model=folder, device="cpu", prompt_format={"separatr": " "})


def test_not_finite_logits_fail_that_request_only(tmp_path: Path) -> None:
    policy = TransformersPolicy(model=save_tiny(tmp_path), device="cpu")
    embeddings = policy.runner.model._model.get_input_embeddings().weight.data
    (bad,) = policy._starts.tokenizer.encode("Ж")[:1]
    embeddings[bad] = float("nan")

    async def main() -> None:
        async def ask(question: str) -> list[Sample]:
            chain = Tree(question).chain(ROOT)
            return [s async for s in policy.sample([chain], [1], END)]

        fine, failed = await asyncio.gather(ask("Q"), ask("Ж?"), return_exceptions=True)
        assert isinstance(failed, PolicyError)
        assert isinstance(fine, list)

    asyncio.run(main())


SCRIPT = """
import asyncio, sys, threading
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.tree import Tree

policy = TransformersPolicy(model=sys.argv[1], device="cpu")
params = SamplingParams(until="end", temperature=1.0, max_repeats=0, max_step_tokens=10**6)

def ask():
    async def main():
        async for _ in policy.sample([Tree("Q").chain(0)] * 4, range(4), params):
            pass
    asyncio.run(main())

for _ in range(2):
    threading.Thread(target=ask, daemon=True).start()
while not policy.runner.has_work():
    pass
print("leaving")
"""


@pytest.mark.slow
def test_leaving_the_interpreter_with_requests_in_flight(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(model)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.stdout == "leaving\n", result.stderr
    assert "Fatal" not in result.stderr
    assert result.returncode == 0, result.stderr


def questions(data_dir: Path, count: int) -> list[str]:
    lines = (data_dir / "data/gsm8k/test.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["question"] for line in lines[:count]]


@pytest.mark.slow
@pytest.mark.embedded
def test_the_embedded_model_alone_equals_among_sixteen(
    embedded_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = TransformersPolicy(
        model=embedded_path,
        device="cpu",
        adapter=data_dir / "models/policy-gsm8k-lora32",
        prompt_format=PromptFormat(final_prefix="####"),
    )
    tokens = record_tokens(policy, monkeypatch)
    asked = questions(data_dir, 16)
    greedy = SamplingParams(until="end", temperature=0.0, max_tokens=24)
    warm = SamplingParams(until="end", temperature=0.8, max_tokens=24)

    async def main(params: SamplingParams, which: Sequence[int]) -> dict[int, list[Token]]:
        tokens.clear()

        async def ask(i: int) -> None:
            async for sample in policy.sample([Tree(asked[i]).chain(ROOT)], [i], params):
                assert sample.steps[0].text.strip()

        await asyncio.gather(*map(ask, which))
        return {seed: list(t) for seed, t in tokens.items()}

    for params in (greedy, warm):
        together = asyncio.run(main(params, range(16)))
        smallest = min(t.gap for row in together.values() for t in row)
        print(f"smallest gap of {sum(map(len, together.values()))} tokens: {smallest:.2e}")
        for i in (0, 7, 15):
            parted = first_difference(together[i], asyncio.run(main(params, [i]))[i])
            if parted is not None:
                print(f"question {i} parted at a gap of {parted.gap:.2e}")
                assert parted.gap < EPSILON
    assert torch.isfinite(torch.tensor([t.logprob for t in together[0]])).all()
    policy.runner.close()
