"""The implicit PRM against a literal transcription of its published protocol."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.families import save_causal, save_classifier, save_tuned
from support.formats import shipped_format
from support.tokenizers import llama_tokenizer, qwen_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.errors import ConfigurationError, VerifierError
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.formats.implicit import EncodedAnswer, ImplicitFormat
from stepsearch.verifiers.implicit import ImplicitVerifier
from stepsearch.verifiers.probes import proof_probes

BETA = 0.05


def format_of(**changes: Any) -> dict[str, Any]:
    return shipped_format("eurus_prm", beta=BETA) | changes


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("implicit")
    reference = save_causal(root / "reference", qwen_tokenizer())
    return save_tuned(root / "tuned", reference, size=0.1), reference


@pytest.fixture(scope="module")
def verifier(folders: tuple[Path, Path]) -> ImplicitVerifier:
    model, reference = folders
    return ImplicitVerifier(model=model, reference=reference, format=format_of())


@torch.no_grad()
def literal(folders: tuple[Path, Path], question: str, steps: Sequence[str]) -> list[float]:
    """All steps of a finished answer, as the published evaluation computes them."""
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    models = [AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in folders]
    answer = [f"Step {k}: {step}" for k, step in enumerate(steps, 1)]

    def conversation(count: int, **options: Any) -> Any:
        turns = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "\n\n".join(answer[:count])},
        ]
        return tokenizer.apply_chat_template(turns, add_generation_prompt=False, **options)

    places = []
    for count in range(len(answer) + 1):
        text = conversation(count, tokenize=False).strip()
        text += "\n\n" if count not in (0, len(answer)) else ""
        places.append(len(tokenizer.encode(text, add_special_tokens=False)) - 2)
    ids = torch.tensor([conversation(len(answer), return_dict=False)])
    logs = [
        model.eval()(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        for model in models
    ]
    rewards = BETA * (logs[0] - logs[1])
    rewards[: places[0]] = 0
    sums = rewards.cumsum(0)[places[1:]]
    return [float(x) for x in sums]


def chain_of(texts: Sequence[str], question: str, num_new: int = -1, done: bool = True) -> Chain:
    stops = ["step"] * (len(texts) - 1) + ["eos" if done else "step"]
    steps = tuple(Step(text=f"{t}\n\n", stop=s) for t, s in zip(texts, stops, strict=True))
    return Tree(question).chain(0, steps, num_new=num_new)


def steps_of(count: int) -> list[str]:
    ends = (".", "", "$", " eggs")
    return [f"{k} and {k * 3} are {k * 4}{ends[k % 4]}" for k in range(count)]


def score(verifier: Verifier, *chains: Chain) -> list[StepScores]:
    return asyncio.run(verifier.score(chains))


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_a_finished_chain_equals_the_published_protocol(
    verifier: ImplicitVerifier, folders: tuple[Path, Path], count: int
) -> None:
    question, steps = f"How many of {count}?", steps_of(count)
    expected = literal(folders, question, steps)
    (whole,) = score(verifier, chain_of(steps, question))
    assert whole.values == pytest.approx(expected, abs=1e-5)
    assert max(map(abs, expected)) > 1e-2


def test_step_by_step_equals_the_published_protocol(
    verifier: ImplicitVerifier, folders: tuple[Path, Path]
) -> None:
    question, steps = "One by one?", steps_of(9)
    found = [
        score(verifier, chain_of(steps[: k + 1], question, num_new=1, done=k == 8))[0].values[-1]
        for k in range(9)
    ]
    assert found == pytest.approx(literal(folders, question, steps), abs=1e-5)


def test_a_padded_batch_equals_the_published_protocol(
    verifier: ImplicitVerifier, folders: tuple[Path, Path]
) -> None:
    chains = [(f"Batch {i}?", steps_of(2 * i + 1)) for i in range(7)]
    results = score(verifier, *(chain_of(steps, question) for question, steps in chains))
    for (question, steps), result in zip(chains, results, strict=True):
        assert result.values == pytest.approx(literal(folders, question, steps), abs=1e-5)


def test_forgotten_sums_are_computed_again(folders: tuple[Path, Path]) -> None:
    model, reference = folders
    verifier = ImplicitVerifier(model=model, reference=reference, format=format_of())
    steps, question = steps_of(3), "Forgotten?"
    for k in (1, 2):
        score(verifier, chain_of(steps[:k], question, num_new=1, done=False))
    verifier._sums._found.clear()
    (last,) = score(verifier, chain_of(steps, question, num_new=1))
    assert last.values == pytest.approx(literal(folders, question, steps)[-1:], abs=1e-5)


def test_no_distinct_token_is_computed_twice(folders: tuple[Path, Path], tmp_path: Path) -> None:
    model, reference = (shutil.copytree(f, tmp_path / f.name) for f in folders)
    verifier = ImplicitVerifier(model=model, reference=reference, format=format_of())
    tree, node, computed = Tree("How many tokens?"), 0, 0
    counted = verifier.count_tokens(tree.chain(0))
    for k in range(6):
        node = tree.add(node, Step(text=f"{k} and 3 are {k + 3}.\n\n"))
        chain = tree.chain(node, num_new=1)
        counted += verifier.count_tokens(chain)
        computed += score(verifier, chain)[0].tokens or 0
    distinct = len(verifier.encode(tree.chain(node)).ids) - 1  # type: ignore[union-attr]
    assert computed == counted == 2 * distinct


def test_a_wrong_reference_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    model, reference = folders
    other = save_causal(tmp_path / "other", qwen_tokenizer(), seed=9)
    labels = save_classifier(tmp_path / "labels", qwen_tokenizer(), tokens=True, num_labels=2)
    for wrong, message in (
        (other, r"differ by 1\.\d+ of their size, which is no fine-tuning; give the model that"),
        (model, "have the same weights, so every score would be 0"),
        (labels, "weights of different shapes"),
    ):
        with pytest.raises(VerifierError, match=message):
            ImplicitVerifier(model=model, reference=wrong, format=format_of())
    llama = save_causal(tmp_path / "llama", llama_tokenizer())
    with pytest.raises(VerifierError, match="different vocabularies"):
        ImplicitVerifier(model=llama, reference=reference, format=format_of())


@pytest.fixture(scope="module")
def trained(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference, trained for a few steps to prefer the right answers of the self-check."""
    _, reference = folders
    verifier = ImplicitVerifier(
        model=folders[0], reference=reference, format=format_of(), selfcheck=False
    )
    model = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32)
    encoded = [verifier.encode(probe.chain()) for probe in proof_probes()]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(30):
        sums = [_log_probability(model, e) for e in encoded if isinstance(e, EncodedAnswer)]
        margins = torch.stack([a - b for a, b in zip(sums[::2], sums[1::2], strict=True)])
        loss = torch.nn.functional.softplus(-margins).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = Path(shutil.copytree(reference, tmp_path_factory.mktemp("trained") / "model"))
    model.save_pretrained(folder)
    return folder


def _log_probability(model: Any, encoded: EncodedAnswer) -> torch.Tensor:
    ids = torch.tensor([encoded.ids])
    logs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return logs[encoded.num_prompt - 1 :].sum()


@pytest.mark.slow
def test_model_and_reference_that_are_swapped_are_refused(
    trained: Path, folders: tuple[Path, Path]
) -> None:
    reference = folders[1]
    ImplicitVerifier(model=trained, reference=reference, format=format_of())
    message = r"verifier\.model and verifier\.reference are swapped: exchange them"
    with pytest.raises(VerifierError, match=message):
        ImplicitVerifier(model=reference, reference=trained, format=format_of())


def test_spec_names_both_models(verifier: ImplicitVerifier, folders: tuple[Path, Path]) -> None:
    provenance = verifier.spec.provenance
    assert (verifier.spec.range, verifier.spec.incremental) == ("unbounded", True)
    declared = ImplicitVerifier.declare(format=verifier.format, model="not loaded")
    assert (declared.range, declared.aggregation) == ("unbounded", "min")
    assert provenance["model_hash"] != provenance["reference"]["model_hash"]
    assert 0.05 < provenance["reference_distance"] < 0.2


def test_too_long_and_malformed_fail_alone(folders: tuple[Path, Path]) -> None:
    model, reference = folders
    verifier = ImplicitVerifier(
        model=model, reference=reference, format=format_of(max_length=150), selfcheck=False
    )
    good, long, odd = score(
        verifier, chain_of(["7"], "q"), chain_of(["word " * 90], "q"), chain_of(["\ud800"], "q")
    )
    assert good.failure is None
    assert [long.failure and long.failure.kind, odd.failure and odd.failure.kind] == [
        "too_long",
        "malformed",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": 0}, "beta=0 must be positive"),
        ({"label": "Step"}, "must hold"),
        ({"aggregation": "max"}, "aggregation='max'"),
        ({"max_length": 0}, "max_length=0"),
        ({"betta": 1}, "did you mean beta"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ImplicitFormat.from_mapping(format_of(**change))
