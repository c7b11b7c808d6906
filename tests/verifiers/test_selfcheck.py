"""The self-check: what it finds in broken verifiers, its report and its command."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.families import HIDDEN, replace_tensors, save_qwen_head
from support.tokenizers import qwen_tokenizer

from stepsearch.cli import main
from stepsearch.search.contracts import FailureKind, ScoreFailure, StepScores, VerifierSpec
from stepsearch.search.errors import VerifierError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.equations.checker import check_equations
from stepsearch.verifiers.findings import order
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.selfcheck import Report, check, require


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
            wrong = [any(e.verdict == "wrong" for e in check_equations(text)) for text in texts]
            values = [0.6 if is_wrong else 0.1 for is_wrong in wrong]
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
        ("prefers errors", "good above corrupted", "turn the score's sign or the labels round"),
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


@pytest.mark.parametrize("kind", ["too_long", "missing", "malformed", "budget"])
def test_one_that_scores_nothing_is_refused(
    kind: FailureKind, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy: Any = Toy()

    async def lost(chains: Sequence[Chain]) -> list[StepScores]:
        return [StepScores(failure=ScoreFailure(kind, "for a reason")) for _ in chains]

    toy.score = lost
    with pytest.raises(VerifierError, match=f"no probe was scored: {kind}, for a reason; "):
        require(toy)
    monkeypatch.setattr("stepsearch.conf.build.build_verifier", lambda *_, **__: toy)
    assert main(["check-verifier", "verifier=rule"]) == 3
    assert capsys.readouterr().out.endswith("toy must not be used\n")


def test_one_that_scores_short_chains_only_may_be_used() -> None:
    """The others are failures, and shown as such in every search."""
    toy: Any = Toy()
    inner = toy.score

    async def short(chains: Sequence[Chain]) -> list[StepScores]:
        lost = StepScores(failure=ScoreFailure("too_long", "too long"))
        scores = await inner(chains)
        return [lost if len(c) > 1 else s for c, s in zip(chains, scores, strict=True)]

    toy.score = short
    assert check(toy).is_ok


def test_a_weak_verifier_is_a_warning_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require(Toy())  # right and wrong answers have the same length
    assert "good above corrupted: 0 of 12 right answers" in caplog.text
    assert "the model is weak at this, or head, mark or template" in caplog.text


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ([0.1] * 12, [0.9] * 12, "failed"),
        ([0.1] * 11 + [0.9], [0.9] * 11 + [0.1], "failed"),
        ([0.1] * 10 + [0.9] * 2, [0.9] * 10 + [0.1] * 2, "warning"),
        ([0.1] * 10 + [0.5] * 2, [0.9] * 10 + [0.5] * 2, "warning"),
        ([0.1] * 6 + [0.9] * 6, [0.1 + 1e-6] * 6 + [0.9 + 1e-6] * 6, "warning"),
        ([0.9] * 6 + [0.1] * 6, [0.1] * 6 + [0.9] * 6, "warning"),
        ([0.9] * 7 + [0.1] * 5, [0.1] * 7 + [0.9] * 5, "ok"),
    ],
)
def test_only_a_clear_preference_for_wrong_answers_is_refused(
    right: list[float], wrong: list[float], expected: str
) -> None:
    pairs = zip(right, wrong, strict=True)
    scores = [StepScores(values=(0.5, value)) for pair in pairs for value in pair]
    assert order(VerifierSpec(name="any"), scores).status == expected


def generator_exit(chains: Sequence[Chain]) -> Any:
    raise GeneratorExit


async def yields(chains: Sequence[Chain]) -> Any:
    for _ in chains:
        yield StepScores(values=(1.0,))


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (generator_exit, "toy: score ended by GeneratorExit; let no closed generator's end out"),
        (yields, "toy: score gives a async_generator, .*returns a list, without `yield`"),
        (lambda chains: [], "toy: score gives a list, which cannot be awaited; write it as `async"),
    ],
)
def test_a_score_that_is_no_coroutine_is_named(score: Any, words: str) -> None:
    toy: Any = Toy()

    async def called(chains: Sequence[Chain]) -> Any:
        return score(chains)

    toy.score = called if score is generator_exit else score
    with pytest.raises(VerifierError, match=words):
        check(toy)


def test_it_runs_inside_a_running_loop() -> None:
    async def inside() -> Report:
        return check(Toy())

    assert asyncio.run(inside()).is_ok


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prm") / "qwen"
    return save_qwen_head(folder, qwen_tokenizer(), 2, "Qwen2ForProcessRewardModel")


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
    folder = Path(shutil.copytree(prm, tmp_path / "constant"))
    replace_tensors(folder, {"score.2.weight": torch.zeros(2, HIDDEN)})
    arguments = ["verifier=qwen_prm", f"verifier.model={folder}", *SETTINGS]
    assert main(["check-verifier", *arguments]) == 3
    assert "all the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["verifier=none"], 2, "verifier=none scores nothing"),
        (
            ["rule"],
            2,
            "'rule' is not of the form SETTING=VALUE; a verifier is named by verifier=NAME",
        ),
        (["verifier=trl_prm"], 2, "verifier.model has no value"),
        (["verifier=qwen_prm", "verifier.model=no/such/folder"], 2, "no/such/folder"),
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
