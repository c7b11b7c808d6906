"""The self-check: what it finds in broken verifiers, and what a loaded one refuses."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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

from stepsearch.cli import main
from stepsearch.search.contracts import StepScores, VerifierSpec
from stepsearch.search.errors import VerifierError
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.selfcheck import Report, check, require
from stepsearch.verifiers.transformers import TransformersVerifier


class Toy:
    """Scores a step by its length; each fault below is one that a published pipeline had."""

    def __init__(self, fault: str = "", **spec: Any) -> None:
        self.fault = fault
        self.spec = VerifierSpec(name="toy", max_length=500, **spec)

    def count_tokens(self, chain: Chain) -> int:
        return len(chain.text)

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        widest = max(len(chain.texts) for chain in chains)
        return [self._one(chain, widest) for chain in chains]

    def _one(self, chain: Chain, widest: int) -> StepScores:
        texts = chain.texts
        if len(chain.text) > 500 and self.fault != "cuts":
            from stepsearch.search.contracts import ScoreFailure

            return StepScores(failure=ScoreFailure("too_long", "too long"))
        if self.fault == "splits at newlines":
            texts = [line for text in texts for line in text.strip().split("\n")]
        if self.fault == "drops empty steps":
            texts = [text for text in texts if text.strip()]
        values = [1 / (1 + len(text)) for text in texts]
        if self.fault == "padding leaks":
            values = [v / widest for v in values]
        if self.fault == "constant":
            values = [0.5] * len(values)
        if self.fault == "raw logits":
            values = [v + 3 for v in values]
        if self.fault == "not a number":
            values = [float("nan")] * len(values)
        if self.fault == "not incremental":
            values = [v / len(texts) for v in values]
        if self.fault == "prefers errors":
            values = [("9" in text or "8" in text or "120" in text) * 0.5 + 0.1 for text in texts]
        is_whole = chain.num_new == len(chain)
        return StepScores(values=tuple(values if is_whole else values[-chain.num_new :]))


def status(report: Report) -> dict[str, str]:
    return {finding.check: finding.status for finding in report.findings}


def test_a_sound_verifier_passes_every_check() -> None:
    for verifier in (Toy(), RuleVerifier()):
        report = check(verifier)
        assert report.is_ok
        assert "failed" not in str(report)
        assert str(report).endswith(f"{verifier.spec.name} may be used")


@pytest.mark.parametrize(
    ("fault", "where", "words"),
    [
        ("splits at newlines", "marks = steps", "a newline inside a step: malformed"),
        ("drops empty steps", "marks = steps", "an empty step: missing, 2 scores for a chain of 3"),
        ("padding leaks", "batched, padded", "pass an attention mask"),
        ("constant", "finite, probability, not constant", "all the same"),
        ("raw logits", "finite, probability, not constant", "outside the range 'probability'"),
        ("not a number", "finite, probability, not constant", "the score is nan"),
        ("not incremental", "incremental", "step by step and at once differ"),
        ("cuts", "too long is a failure", "something was cut from it"),
    ],
)
def test_faults_are_found_and_say_what_to_do(fault: str, where: str, words: str) -> None:
    report = check(Toy(fault))
    found = {f.check: f for f in report.findings}
    assert found[where].status == "failed"
    assert words in found[where].detail
    assert not report.is_ok
    assert str(report).endswith("toy must not be used")
    with pytest.raises(VerifierError, match="toy failed its self-check: "):
        require(Toy(fault))


def test_a_low_proof_is_a_warning_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require(Toy("prefers errors"))
    assert "good above corrupted: 0 of 3" in caplog.text
    assert "label may be swapped" in caplog.text


def test_it_runs_inside_a_running_loop() -> None:
    async def inside() -> Report:
        return check(Toy())

    assert asyncio.run(inside()).is_ok


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


def load(folder: Path, option: str = "qwen_prm", **changes: Any) -> TransformersVerifier:
    return TransformersVerifier(model=folder, format=format_of(option, **changes), dtype="float32")


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


def _teach_order(folder: Path) -> None:
    """Turn the last layer so that the right proofs of the self-check score high."""
    verifier = load(folder)
    from stepsearch.verifiers.selfcheck import _PROOFS

    hidden, sign = [], []
    for question, good, bad in _PROOFS:
        for steps, label in ((good, 1.0), (bad, -1.0)):
            chain = Tree(question).chain(0, tuple(Step(text=f"{s}\n\n") for s in steps))
            encoded = verifier.encode(chain)
            states = asyncio.run(
                verifier._body.runner.encode(encoded.ids, encoded.positions)  # type: ignore[union-attr]
            )
            hidden.append(states.hidden)
            sign += [label] * len(steps)
    first = head_of(folder)
    inner = torch.relu(torch.cat(hidden) @ first["score.0.weight"].T + first["score.0.bias"])
    # The first step of a pair is the same, or right: only later ones can tell.
    direction = (torch.linalg.pinv(inner.double()) @ torch.tensor(sign).double()).float()
    replace_tensors(folder, {"score.2.weight": torch.stack([-direction, direction]) * 5})


def test_swapped_labels_are_a_warning(
    prm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_of(prm, tmp_path / "taught")
    _teach_order(folder)
    taught = copy_of(folder, tmp_path / "again")  # a runner keeps the weights it has read
    head = format_of("qwen_prm")["head"]
    with caplog.at_level(logging.WARNING):
        caplog.clear()  # the untaught model was warned of, too
        load(taught)
        assert caplog.text == ""
        load(taught, head=head | {"good": 0})
    assert "good above corrupted" in caplog.text
    assert "label may be swapped" in caplog.text


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


SETTINGS = ["verifier.format.mark_ids=null", "verifier.dtype=float32"]


def test_the_command_prints_a_report(prm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verifier=qwen_prm", f"verifier.model={prm}", *SETTINGS]
    assert main(["check-verifier", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("ok       marks = steps")
    assert "hash" in out
    assert out.endswith("prm may be used\n")


def test_the_command_fails_with_a_report(
    prm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(prm, tmp_path / "constant")
    replace_tensors(folder, {"score.2.weight": torch.zeros(2, HIDDEN)})
    arguments = ["verifier=qwen_prm", f"verifier.model={folder}", *SETTINGS]
    assert main(["check-verifier", *arguments]) == 3
    assert "all the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["verifier=none"], 2, "verifier=none scores nothing"),
        (["verifier=trl_prm"], 2, "verifier.model has no value"),
        (["verifier=qwen_prm", "verifier.model=no/such/folder"], 3, "no/such/folder"),
        (["verifier=step_prm", "verifier.model=x"], 2, "verifier.format.head has no value"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-verifier", *arguments]) == code
    assert words in capsys.readouterr().err


def test_the_rule_verifier_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-verifier", "verifier=rule"]) == 0
    assert "rule may be used" in capsys.readouterr().out


def test_reports_are_values() -> None:
    report = check(Toy())
    assert replace(report, verifier="x").findings == report.findings
