"""Models, tokenizers and templates that are not what a format says: each refuses to load."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.families import (
    HIDDEN,
    head_of,
    replace_tensors,
    save_causal,
    save_classifier,
    save_qwen_head,
)
from support.formats import shipped_format
from support.tokenizers import QWEN_TEMPLATE, llama_tokenizer, qwen_tokenizer
from tokenizers import Tokenizer

from stepsearch.policies.reading import Encoded
from stepsearch.search.errors import VerifierError
from stepsearch.search.tree import Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.formats.encoding import EncodedChain
from stepsearch.verifiers.formats.readout import HeadFormat
from stepsearch.verifiers.labels import check_labels
from stepsearch.verifiers.probes import proof_probes
from stepsearch.verifiers.selfcheck import check
from stepsearch.verifiers.transformers import TransformersVerifier


def format_of(option: str, **changes: Any) -> dict[str, Any]:
    return shipped_format(option, mark_ids=None) | changes


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_qwen_head(
        tmp_path_factory.mktemp("prm") / "qwen",
        qwen_tokenizer(),
        2,
        "Qwen2ForProcessRewardModel",
    )


def load(
    folder: Path, option: str = "qwen_prm", *, selfcheck: bool = True, **changes: Any
) -> TransformersVerifier:
    return TransformersVerifier(
        model=folder, format=format_of(option, **changes), dtype="float32", selfcheck=selfcheck
    )


def copy_of(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def test_the_shipped_ids_refuse_another_tokenizer(prm: Path) -> None:
    with pytest.raises(VerifierError, match=r"'<extra_0>' .* expected \[151651\].*own tokenizer"):
        load(prm, mark_ids=[151651])


def test_a_mark_of_two_ids_is_refused(prm: Path) -> None:
    with pytest.raises(VerifierError, match=r"not as one id: give a mark that is one token"):
        load(prm, mark="<step>")


def test_a_wrong_head_is_refused(prm: Path, tmp_path: Path) -> None:
    causal = save_causal(tmp_path / "causal", qwen_tokenizer())
    with pytest.raises(VerifierError, match=r"no head score\.weight .* lm_head\.weight"):
        load(causal)
    labels = save_classifier(tmp_path / "labels", qwen_tokenizer(), tokens=True, num_labels=3)
    with pytest.raises(VerifierError, match=r"score\.weight \[3, 32\]"):
        load(labels)
    with pytest.raises(VerifierError, match="no language-model head"):
        load(prm, "math_psa", head={"good_token": " +", "bad_token": " -"})


def test_a_constant_head_is_refused(prm: Path, tmp_path: Path) -> None:
    folder = copy_of(prm, tmp_path / "constant")
    replace_tensors(folder, {"score.2.weight": torch.zeros(2, HIDDEN)})
    with pytest.raises(VerifierError, match=r"not constant: .* all the same"):
        load(folder)


@pytest.fixture(scope="module")
def taught(prm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with a last layer that tells right answers of the self-check from wrong ones."""
    folder = copy_of(prm, tmp_path_factory.mktemp("taught") / "qwen")
    tensors = head_of(folder)
    hidden = states_of(load(prm, selfcheck=False))
    inner = torch.relu(hidden @ tensors["score.0.weight"].T + tensors["score.0.bias"])
    direction = direction_of(inner)
    replace_tensors(folder, {"score.2.weight": torch.stack([-direction, direction])})
    return folder


def states_of(verifier: TransformersVerifier) -> torch.Tensor:
    """Hidden states where answers of the self-check are scored: right, wrong, right and so on."""
    found = []
    for probe in proof_probes():
        encoded = verifier.encode(probe.chain())
        assert isinstance(encoded, EncodedChain)
        states = asyncio.run(verifier._body.hidden("prm", encoded.ids, encoded.positions))
        assert isinstance(states, Encoded)
        found.append(states.hidden)
    return torch.cat(found)


def direction_of(states: torch.Tensor) -> torch.Tensor:
    """Weights whose product with a state is 3 for the right answers and -3 for the wrong ones."""
    wanted = torch.tensor([3.0, -3.0] * (len(states) // 2)).double()
    return (torch.linalg.pinv(states.double()) @ wanted).float()


def test_a_model_that_prefers_right_answers_is_loaded_without_a_word(
    taught: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load(taught)
    assert caplog.text == ""


def test_swapped_labels_of_a_head_are_refused(taught: Path) -> None:
    head = format_of("qwen_prm")["head"]
    message = r"prefers the wrong one; the labels are swapped: set verifier\.format\.head\.good=1"
    with pytest.raises(VerifierError, match=message):
        load(taught, head=head | {"good": 0})


def test_swapped_tokens_of_a_language_model_are_refused(tmp_path: Path) -> None:
    folder = save_causal(tmp_path / "causal", qwen_tokenizer())
    head: dict[str, Any] = {"good_token": "+", "bad_token": "-"}
    direction = direction_of(states_of(load(folder, "qwen_prm", head=head, selfcheck=False)))
    rows = head_of(folder)["lm_head.weight"].clone()
    plus, minus = (qwen_tokenizer().encode(token)[0] for token in "+-")
    rows[plus], rows[minus] = direction, -direction
    trained = copy_of(folder, tmp_path / "trained")
    replace_tensors(trained, {"lm_head.weight": rows})
    assert load(trained, "qwen_prm", head=head).spec.range == "probability"
    message = (
        r"set verifier\.format\.head\.good_token='\+' and verifier\.format\.head\.bad_token='-'"
    )
    with pytest.raises(VerifierError, match=message):
        load(trained, "qwen_prm", head={"good_token": "-", "bad_token": "+"})


@pytest.mark.parametrize(
    ("names", "is_refused"),
    [
        ({"0": "wrong", "1": "correct"}, False),
        ({"0": "LABEL_0", "1": "LABEL_1"}, False),
        ({"0": "Correct", "1": "Wrong"}, True),
        ({"0": "label", "1": "NEGATIVE"}, True),
        ({"0": "+", "1": "neutral", "2": "-"}, False),
    ],
)
def test_labels_that_the_model_names_otherwise_are_refused(
    names: dict[str, str], is_refused: bool, prm: Path, tmp_path: Path
) -> None:
    folder = copy_of(prm, tmp_path / "named")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    if not is_refused:
        assert load(folder, selfcheck=False).format.head.range == "probability"
        return
    message = r"config\.json names output .* swapped; set verifier\.format\.head\.good=0"
    with pytest.raises(VerifierError, match=message):
        load(folder, selfcheck=False)


def test_two_names_of_one_label_that_contradict_each_other_are_refused() -> None:
    config = SimpleNamespace(
        id2label={0: "wrong", 1: "correct"}, label2id={"correct": 0, "wrong": 1}
    )
    head = HeadFormat(num_outputs=2, activation="softmax", good=1)
    with pytest.raises(VerifierError, match=r"names output 0 'correct', .*set .*good=0"):
        check_labels(head, config)


@pytest.mark.parametrize("seed", range(3))
def test_a_random_model_is_not_refused(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    folder = save_causal(tmp_path / "causal", llama_tokenizer(), llama=True, seed=seed)
    head = {"good_token": "+", "bad_token": "-"}
    assert check(load(folder, "versa_prm", head=head, selfcheck=False)).is_ok


def test_a_tokenizer_that_is_set_to_cut_is_not_obeyed(prm: Path, tmp_path: Path) -> None:
    folder = copy_of(prm, tmp_path / "cutting")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    chain = Tree("How many?").chain(0, (Step(text="word " * 40), Step(text="7")))
    assert load(folder).encode(chain) == load(prm).encode(chain)


def test_swapped_tokens_are_refused(tmp_path: Path) -> None:
    folder = save_causal(tmp_path / "causal", qwen_tokenizer())
    plus, minus = (qwen_tokenizer().encode(t)[0] for t in (" +", " -"))
    with pytest.raises(VerifierError, match="the labels are swapped, or the tokenizer is not"):
        load(folder, "math_psa", head={"good_token": " -", "bad_token": " +", "ids": [plus, minus]})
    with pytest.raises(VerifierError, match=r"good_token='right' is encoded as \[.*not as one id"):
        load(folder, "math_psa", head={"good_token": "right", "bad_token": "-"})


def test_a_step_that_merges_with_its_surroundings_is_refused(tmp_path: Path) -> None:
    folder = save_causal(tmp_path / "causal", qwen_tokenizer())
    with pytest.raises(VerifierError, match="a text as a whole other ids than its steps"):
        load(folder, "versa_prm", mark="\n\n", joiner="\n")


def test_a_template_with_the_date_of_today_is_refused(prm: Path) -> None:
    today = datetime.datetime.now().strftime("%d %b %Y")
    with pytest.raises(VerifierError, match=r"today's date, .* set format\.template to one with"):
        load(prm, template=f"Today is {today}. {QWEN_TEMPLATE}")


def test_a_template_that_asks_for_the_date_gets_a_fixed_one(tmp_path: Path) -> None:
    folder = save_causal(tmp_path / "llama", llama_tokenizer(), llama=True)
    head = {"good_token": "+", "bad_token": "-"}
    verifier = load(folder, "rlhflow_deepseek", head=head)
    assert verifier.spec.provenance["template_date"] == "26 Jul 2024"
    encoded = verifier.encode(Tree("q").chain(0, (Step(text="7"),)))
    text = llama_tokenizer().decode(encoded.ids)  # type: ignore[union-attr]
    assert "Today Date: 26 Jul 2024" in text
    assert "prints the fixed date 26 Jul 2024" in str(check(verifier))


def test_a_template_that_changed_is_refused(prm: Path) -> None:
    right = load(prm).spec.provenance["template_hash"]
    assert load(prm, template_hash=right).spec.provenance["template_hash"] == right
    with pytest.raises(VerifierError, match=f"hash {right}, but format.template_hash=0123"):
        load(prm, template_hash="0123")


def test_a_format_needs_its_begin_mark(prm: Path) -> None:
    with pytest.raises(VerifierError, match=r"the tokenizer has none: .*format\.bos=if_any"):
        load(prm, "skywork_prm")


def test_a_question_that_quotes_the_mark_has_as_many_scores(prm: Path) -> None:
    verifier = load(prm)
    chain = Tree("What is <extra_0>?").chain(0, (Step(text="<extra_0>"), Step(text="7")))
    (result,) = asyncio.run(verifier.score([chain]))
    assert len(result.values) == 2


def test_a_probability_of_exactly_zero_does_not_move_its_neighbours(
    prm: Path, tmp_path: Path
) -> None:
    folder = copy_of(prm, tmp_path / "extreme")
    tensors = head_of(folder)
    replace_tensors(folder, {"score.2.weight": tensors["score.2.weight"] * 3000})
    steps = tuple(Step(text=f"{k} * 7 = {k * 7}") for k in range(12))
    (extreme,) = asyncio.run(load(folder).score([Tree("Zero?").chain(0, steps)]))
    (plain,) = asyncio.run(load(prm).score([Tree("Zero?").chain(0, steps)]))
    assert len(extreme.values) == 12
    assert {0.0, 1.0} <= set(extreme.values)
    bias = tensors["score.2.bias"]
    shift = float(bias[1] - bias[0])
    for a, b in zip(extreme.values, plain.values, strict=True):
        logit = torch.logit(torch.tensor(b, dtype=torch.float64)) - shift
        assert a == pytest.approx(float(torch.sigmoid(3000 * logit + shift)), abs=1e-2)


def test_loading_leaves_the_cache_as_it_was(prm: Path, tmp_path: Path) -> None:
    verifier = load(copy_of(prm, tmp_path / "own"))
    assert verifier._body.runner.cache_bytes == 0


def test_no_remote_code_is_run(prm: Path) -> None:
    config = json.loads((prm / "config.json").read_text())
    assert "auto_map" in config
    assert load(prm).spec.provenance["model"] == str(prm)
