"""Verifiers on real engines: the scores of the in-process ones, and prefixes that are reused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny import save_tiny
from support.vllm_settings import ENGINE, SIZES

from stepsearch.search.background import background
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.testing.verifier import check_verifier
from stepsearch.verifiers.outcome import OutcomeVerifier
from stepsearch.verifiers.transformers import TransformersVerifier
from stepsearch.verifiers.vllm import VllmOutcomeVerifier, VllmVerifier

pytestmark = pytest.mark.vllm

STEPS = [f"Step {n}: {n} + {n} = {2 * n} pens of the {n} boxes are left on it.\n" for n in range(6)]
CPU: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
ENGINES = {"engine": ENGINE | {"max_length": 512}}
PROMPT: dict[str, Any] = {"name": "tiny", "prompt": "chat", "mark": "\n"}
TOKENS = PROMPT | {"head": {"good_token": "+", "bad_token": "-"}}
CLASSES = PROMPT | {"head": {"num_outputs": 2, "activation": "softmax", "good": 1}}
OUTCOME = {"name": "tiny", "system": None, "head": {"num_outputs": 1, "activation": "sigmoid"}}


def with_head(folder: Path, architecture: str, outputs: int) -> Path:
    """The tiny model with a head in its files, under the names that such models use."""
    kind = "qwen2" if architecture.startswith("Qwen2") else "llama"
    save_tiny(folder, kind, **SIZES)
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)
    draw = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * 0.3

    if architecture.endswith("ForProcessRewardModel"):
        size = SIZES["hidden_size"]
        weights |= {"score.0.weight": random(size, size), "score.0.bias": random(size)}
        weights |= {"score.2.weight": random(outputs, size), "score.2.bias": random(outputs)}
    else:
        weights["score.weight"] = random(outputs, SIZES["hidden_size"])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [architecture], "num_labels": outputs}
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(outputs)}
    config["label2id"] = {f"LABEL_{i}": i for i in range(outputs)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def score(verifier: Any, chains: list[Chain]) -> list[Any]:
    async def run() -> list[Any]:
        return list(await verifier.score(chains))

    return background.submit(run()).result(timeout=120)


def chains_of(question: str) -> list[Chain]:
    """A chain that grows by a step: every prefix is in the tree, its newest step awaits a score."""
    tree = Tree(question)
    node, found = ROOT, []
    for text in STEPS:
        step = Step(text=text, stop="step", token_ids=(5,))
        found.append(tree.chain(node, (step,), 1))
        node = tree.add(node, step)
    return found


@pytest.fixture(scope="module", params=["tokens", "process", "classifier", "outcome"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Any]]:
    folder = tmp_path_factory.mktemp(request.param)
    makers: dict[str, Callable[[], tuple[Any, Any]]] = {
        "tokens": lambda: _both(save_tiny(folder, **SIZES), TOKENS),
        "process": lambda: _both(with_head(folder, "Qwen2ForProcessRewardModel", 2), CLASSES),
        "classifier": lambda: _both(
            with_head(folder, "LlamaForSequenceClassification", 2), CLASSES
        ),
        "outcome": lambda: _both(
            with_head(folder, "LlamaForSequenceClassification", 1), OUTCOME, whole=True
        ),
    }
    ours, theirs = makers[request.param]()
    yield ours, theirs
    ours.close()


def _both(folder: Path, format: Any, whole: bool = False) -> tuple[Any, Any]:
    if whole:
        return (
            VllmOutcomeVerifier(model=folder, format=format, **ENGINES),
            OutcomeVerifier(model=folder, format=format, **CPU),
        )
    return (
        VllmVerifier(model=folder, format=format, **ENGINES),
        TransformersVerifier(model=folder, format=format, **CPU),
    )


def test_scores_are_those_of_the_verifier_in_process(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    chains = chains_of("How many are left?") + chains_of("How many?")
    a, b = score(ours, chains), score(theirs, chains)
    assert all(s.failure is None for s in (*a, *b))
    for one, other in zip(a, b, strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-4)
    assert len({round(s.values[0], 4) for s in a}) > 6


def test_it_keeps_the_contract(pair: tuple[Any, Any]) -> None:
    check_verifier(pair[0])


def test_a_prefix_is_computed_once(pair: tuple[Any, Any]) -> None:
    """Blocks have 32 tokens here: what is computed again is less than one of them a step."""
    ours, _ = pair
    chains = chains_of("A question that nobody asked before?")
    scored = [score(ours, [chain])[0] for chain in chains]
    if isinstance(ours, VllmOutcomeVerifier):
        lengths = [len(ours.encode(chain)) for chain in chains]
    else:
        lengths = [ours.encode(chain).positions[-1] + 1 for chain in chains]
    assert [s.tokens + s.tokens_reused for s in scored] == lengths
    for before, length, s in zip(lengths, lengths[1:], scored[1:], strict=False):
        assert s.tokens <= length - before + 32 + 8
    again = score(ours, [chains[-1]])[0]
    assert again.tokens <= 32
    assert again.values == pytest.approx(scored[-1].values, abs=1e-5)


def test_a_head_that_vllm_cannot_read_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, **SIZES)
    with pytest.raises(ConfigurationError, match="backend=transformers"):
        VllmVerifier(model=tmp_path, format=CLASSES, **ENGINES)
